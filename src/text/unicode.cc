#include "text/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "text/unicode_added.h"

namespace tandem {
namespace {

// What a lead byte promises: how many continuation bytes, and the range of the first of them (Unicode table
// 3-7).
struct Lead {
  int n_more;  // -1: no sequence starts with this byte
  uint8_t lowest, highest;
};

Lead lead_of(uint8_t b) {
  if (b < 0x80) return {0, 0, 0};
  if (b < 0xC2) return {-1, 0, 0};
  if (b < 0xE0) return {1, 0x80, 0xBF};
  if (b == 0xE0) return {2, 0xA0, 0xBF};
  if (b == 0xED) return {2, 0x80, 0x9F};
  if (b < 0xF0) return {2, 0x80, 0xBF};
  if (b == 0xF0) return {3, 0x90, 0xBF};
  if (b < 0xF4) return {3, 0x80, 0xBF};
  if (b == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the ASCII run at text[at..].
size_t ascii_run(std::string_view text, size_t at) {
  size_t i = at;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (i < text.size() && uint8_t(text[i]) < 0x80) ++i;
  return i - at;
}

constexpr std::array<CharClass, 128> make_ascii_classes() {
  std::array<CharClass, 128> t{};
  for (int c = 0; c < 128; ++c) {
    t[c] = CharClass::other;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) t[c] = CharClass::letter;
    if (c >= '0' && c <= '9') t[c] = CharClass::number;
  }
  t['\t'] = t['\v'] = t['\f'] = CharClass::white;
  t['\r'] = t['\n'] = CharClass::newline;
  t[' '] = CharClass::space;
  return t;
}
constexpr std::array<CharClass, 128> kAsciiClasses = make_ascii_classes();

// General category as a mask, of Unicode 16 where ICU is older.
uint32_t category_mask(char32_t c) {
  const uint32_t mask = U_GET_GC_MASK(UChar32(c));
  if (mask != U_GC_CN_MASK) return mask;
  const auto* const end = std::end(kAddedCharacters);
  const auto* const it = std::lower_bound(std::begin(kAddedCharacters), end, uint32_t(c),
                                          [](const AddedCharacters& a, uint32_t v) { return a.last < v; });
  return it != end && c >= it->first ? it->category_mask : mask;
}

const icu::Normalizer2& nfc() {
  static const icu::Normalizer2* const instance = [] {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* n = icu::Normalizer2::getNFCInstance(status);
    TD_CHECK(U_SUCCESS(status), "ICU has no NFC data: %s\n", u_errorName(status));
    return n;
  }();
  return *instance;
}

// The characters of Unicode 9: those of the reference's tables.
const icu::UnicodeSet& unicode_9() {
  static const icu::UnicodeSet* const known = [] {
    UErrorCode status = U_ZERO_ERROR;
    auto* set = new icu::UnicodeSet(UNICODE_STRING_SIMPLE("[:Age=9.0:]"), status);
    TD_CHECK(U_SUCCESS(status), "ICU has no age data: %s\n", u_errorName(status));
    set->freeze();
    return set;
  }();
  return *known;
}

// NFC that sees only those.
const icu::Normalizer2& nfc_of_unicode_9() {
  static const icu::FilteredNormalizer2 instance(nfc(), unicode_9());
  return instance;
}

// Where each range's bytes went, by walking the edits once. Ranges are ascending and do not overlap.
void move_ranges(const icu::Edits& edits, std::vector<ByteRange>& ranges) {
  std::vector<ByteRange> moved;
  UErrorCode status = U_ZERO_ERROR;
  icu::Edits::Iterator it = edits.getFineIterator();
  size_t r = 0;
  while (r < ranges.size() && it.next(status)) {
    const size_t src = size_t(it.sourceIndex()), src_end = src + size_t(it.oldLength());
    const size_t dst = size_t(it.destinationIndex()), dst_end = dst + size_t(it.newLength());
    for (size_t k = r; k < ranges.size() && ranges[k].begin < src_end; ++k) {
      const size_t from = std::max(ranges[k].begin, src), to = std::min(ranges[k].end, src_end);
      if (from >= to) continue;
      const ByteRange part =
          it.hasChange() ? ByteRange{dst, dst_end} : ByteRange{dst + from - src, dst + to - src};
      if (!moved.empty() && part.begin <= moved.back().end) {
        moved.back().end = std::max(moved.back().end, part.end);
      } else {
        moved.push_back(part);
      }
    }
    while (r < ranges.size() && ranges[r].end <= src_end) ++r;
  }
  ranges = std::move(moved);
}

// Combining marks in a row, counted in bytes.
struct MarkRun {
  size_t begin, end;
};

// A mark as canonical reordering sees it: also a character whose decomposition begins with one.
bool is_reordered(char32_t c) {
  return c >= 0x300 && u_getIntPropertyValue(UChar32(c), UCHAR_LEAD_CANONICAL_COMBINING_CLASS) != 0 &&
         unicode_9().contains(UChar32(c));
}

// Runs of marks that are long enough for ICU's reordering, which inserts one by one, to be felt.
std::vector<MarkRun> long_mark_runs(std::string_view text) {
  constexpr size_t kLong = 64;
  std::vector<MarkRun> runs;
  size_t begin = 0, n = 0;
  for (size_t i = 0; i < text.size();) {
    if (const size_t ascii = ascii_run(text, i); ascii > 0) {
      if (n >= kLong) runs.push_back({begin, i});
      n = 0;
      i += ascii;
      continue;
    }
    const CodePoint c = code_point_at(text, i);
    if (is_reordered(c.value)) {
      if (n++ == 0) begin = i;
    } else {
      if (n >= kLong) runs.push_back({begin, i});
      n = 0;
    }
    i += c.n_bytes;
  }
  if (n >= kLong) runs.push_back({begin, text.size()});
  return runs;
}

// The marks decomposed and in canonical order, by one stable sort.
std::string in_canonical_order(std::string_view marks) {
  std::vector<std::pair<uint8_t, UChar32>> sorted;
  icu::UnicodeString parts;
  for (size_t i = 0; i < marks.size();) {
    const CodePoint c = code_point_at(marks, i);
    if (nfc().getDecomposition(UChar32(c.value), parts)) {
      for (int32_t k = 0; k < parts.length(); k = parts.moveIndex32(k, 1)) {
        sorted.emplace_back(u_getCombiningClass(parts.char32At(k)), parts.char32At(k));
      }
    } else {
      sorted.emplace_back(u_getCombiningClass(UChar32(c.value)), UChar32(c.value));
    }
    i += c.n_bytes;
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string out;
  for (const auto& [ordering, c] : sorted) append_utf8(char32_t(c), out);
  return out;
}

// `text` with its long runs of marks in order, which is canonically the same. Nothing when all are in order.
std::optional<std::string> with_marks_in_order(std::string_view text, std::vector<ByteRange>* ranges) {
  std::string out;
  icu::Edits edits;
  size_t copied = 0;
  for (const MarkRun& run : long_mark_runs(text)) {
    const std::string_view marks = text.substr(run.begin, run.end - run.begin);
    const std::string ordered = in_canonical_order(marks);
    if (ordered == marks) continue;
    out += text.substr(copied, run.begin - copied);
    out += ordered;
    edits.addUnchanged(int32_t(run.begin - copied));
    edits.addReplace(int32_t(marks.size()), int32_t(ordered.size()));
    copied = run.end;
  }
  if (copied == 0) return std::nullopt;
  out += text.substr(copied);
  if (out.size() > size_t(INT32_MAX)) return std::nullopt;
  edits.addUnchanged(int32_t(text.size() - copied));
  if (ranges != nullptr) move_ranges(edits, *ranges);
  return out;
}

}  // namespace

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (true) {
    i += ascii_run(text, i);
    if (i == text.size()) return std::nullopt;
    const Lead lead = lead_of(uint8_t(text[i]));
    if (lead.n_more < 0 || text.size() - i <= size_t(lead.n_more)) return i;
    uint8_t lowest = lead.lowest, highest = lead.highest;
    for (int k = 1; k <= lead.n_more; ++k) {
      const uint8_t b = uint8_t(text[i + size_t(k)]);
      if (b < lowest || b > highest) return i;
      lowest = 0x80, highest = 0xBF;
    }
    i += size_t(lead.n_more) + 1;
  }
}

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t k) { return char32_t(uint8_t(text[at + k])); };
  const char32_t b = byte(0);
  if (b < 0x80) return {b, 1};
  if (b < 0xE0) return {(b & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (b < 0xF0) return {(b & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(b & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

CodePoint code_point_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (uint8_t(text[begin]) & 0xC0) == 0x80) --begin;
  return code_point_at(text, begin);
}

void append_utf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += char(0xC0 | c >> 6);
    out += char(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += char(0xE0 | c >> 12);
    out += char(0x80 | (c >> 6 & 0x3F));
    out += char(0x80 | (c & 0x3F));
  } else {
    out += char(0xF0 | c >> 18);
    out += char(0x80 | (c >> 12 & 0x3F));
    out += char(0x80 | (c >> 6 & 0x3F));
    out += char(0x80 | (c & 0x3F));
  }
}

void Utf8Stream::feed(std::string_view bytes, std::string& out) {
  for (size_t i = 0; i < bytes.size();) {
    const uint8_t b = uint8_t(bytes[i]);
    if (n_missing_ > 0) {
      if (b < lowest_ || b > highest_) {  // the held part can never become valid; this byte starts afresh
        finish(out);
        continue;
      }
      held_[n_held_++] = char(b);
      lowest_ = 0x80, highest_ = 0xBF;
      if (--n_missing_ == 0) {
        out.append(held_, n_held_);
        n_held_ = 0;
      }
      ++i;
      continue;
    }
    const size_t run = ascii_run(bytes, i);
    out.append(bytes, i, run);
    i += run;
    if (i == bytes.size()) break;
    const Lead lead = lead_of(uint8_t(bytes[i]));
    if (lead.n_more < 0) {
      out += kReplacement;
    } else {
      held_[0] = bytes[i];
      n_held_ = 1;
      n_missing_ = lead.n_more;
      lowest_ = lead.lowest, highest_ = lead.highest;
    }
    ++i;
  }
}

void Utf8Stream::finish(std::string& out) {
  if (n_held_ > 0) out += kReplacement;
  n_held_ = 0;
  n_missing_ = 0;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

CharClass char_class(char32_t c) {
  if (c < 0x80) return kAsciiClasses[c];
  const uint32_t mask = category_mask(c);
  if (mask & U_GC_L_MASK) return CharClass::letter;
  if (mask & U_GC_M_MASK) return CharClass::mark;
  if (mask & U_GC_N_MASK) return CharClass::number;
  return is_white_space(c) ? CharClass::white : CharClass::other;
}

bool is_word(char32_t code_point) {
  const UChar32 c = UChar32(code_point);
  return (category_mask(code_point) & (U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

std::optional<std::vector<CodePointRange>> code_points_with(std::string_view property) {
  for (const char c : property) {  // a name, never a piece of set syntax
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '=';
    if (!plain) return std::nullopt;
  }
  const std::string name(property);
  const std::string pattern = "[\\p{" + name + "}]";
  UErrorCode status = U_ZERO_ERROR;
  icu::UnicodeSet set(icu::UnicodeString::fromUTF8(pattern), status);
  if (U_FAILURE(status) || set.hasStrings()) return std::nullopt;
  const int32_t categories = u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, name.c_str());
  if (categories != UCHAR_INVALID_CODE) {
    for (const AddedCharacters& a : kAddedCharacters) {
      if (u_charType(UChar32(a.first)) != U_UNASSIGNED) continue;  // a newer ICU knows it
      if (a.category_mask & uint32_t(categories)) {
        set.add(UChar32(a.first), UChar32(a.last));
      } else {
        set.remove(UChar32(a.first), UChar32(a.last));
      }
    }
  }
  std::vector<CodePointRange> ranges;
  for (int32_t i = 0; i < set.getRangeCount(); ++i) {
    ranges.push_back({char32_t(set.getRangeStart(i)), char32_t(set.getRangeEnd(i))});
  }
  return ranges;
}

bool normalize_nfc(std::string_view text, std::string& out, std::vector<ByteRange>* ranges) {
  if (ascii_run(text, 0) == text.size()) return false;
  TD_CHECK(text.size() <= size_t(INT32_MAX), "text of %zu bytes\n", text.size());
  // Normal text has its marks in order, so what had to be ordered was not normal.
  std::optional<std::string> ordered = with_marks_in_order(text, ranges);
  if (ordered) text = *ordered;
  const icu::StringPiece piece(text.data(), int32_t(text.size()));
  UErrorCode status = U_ZERO_ERROR;
  if (nfc().isNormalizedUTF8(piece, status) && U_SUCCESS(status)) {  // then for Unicode 9 as well
    if (!ordered) return false;
    out = *std::move(ordered);
    return true;
  }
  out.clear();
  icu::StringByteSink<std::string> sink(&out);
  icu::Edits edits;
  nfc_of_unicode_9().normalizeUTF8(0, piece, sink, ranges ? &edits : nullptr, status);
  TD_CHECK(U_SUCCESS(status), "ICU normalisation failed: %s\n", u_errorName(status));
  if (ranges) move_ranges(edits, *ranges);
  return true;
}

}  // namespace tandem
