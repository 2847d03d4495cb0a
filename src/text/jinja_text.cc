#include "text/jinja_text.h"

#include <unicode/locid.h>
#include <unicode/stringoptions.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::jinja {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) runs_.push_back({bytes_.size(), origin});
}

Origin Text::origin() const {
  if (runs_.empty()) return Origin::templated;
  return runs_.size() == 1 ? runs_[0].origin : Origin::content;
}

void Text::append_run(std::size_t size, Origin origin) {
  if (size == 0) return;
  const std::size_t begin = runs_.empty() ? 0 : runs_.back().end;
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end += size;
  } else {
    runs_.push_back({begin + size, origin});
  }
}

void Text::append(const Text& other) {
  bytes_ += other.bytes_;
  std::size_t begin = 0;
  for (const Run& run : other.runs_) {
    append_run(run.end - begin, run.origin);
    begin = run.end;
  }
}

void Text::append(std::string_view bytes, Origin origin) {
  bytes_ += bytes;
  append_run(bytes.size(), origin);
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  TD_CHECK(begin <= end && end <= bytes_.size(), "slice [%zu, %zu) of %zu bytes\n", begin, end,
           bytes_.size());
  Text out;
  out.bytes_ = bytes_.substr(begin, end - begin);
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](std::size_t b, const Run& r) { return b < r.end; });
  for (std::size_t at = begin; at < end; at = run->end, ++run) {
    out.append_run(std::min(run->end, end) - at, run->origin);
  }
  return out;
}

bool is_valid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4 || i + static_cast<std::size_t>(more) >= text.size()) return false;
    for (int k = 1; k <= more; ++k) {
      if ((static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]) & 0xC0) != 0x80) return false;
    }
    const auto second = static_cast<unsigned char>(text[i + 1]);
    const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
    const bool surrogate = lead == 0xED && second >= 0xA0;
    const bool too_big = lead == 0xF4 && second >= 0x90;
    if (overlong || surrogate || too_big) return false;
    i += static_cast<std::size_t>(more) + 1;
  }
  return true;
}

std::size_t code_point_size(std::string_view text, std::size_t pos) {
  const auto lead = static_cast<unsigned char>(text[pos]);
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

char32_t code_point_at(std::string_view text, std::size_t pos) {
  const std::size_t size = code_point_size(text, pos);
  const auto byte = [&](std::size_t k) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[pos + k]));
  };
  switch (size) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

std::size_t count_code_points(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::size_t> code_point_offsets(std::string_view text) {
  std::vector<std::size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (std::size_t i = 0; i < text.size(); i += code_point_size(text, i)) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

namespace {

template <class Drop>
Range strip_if(std::string_view text, Side side, Drop drop) {
  Range range{0, text.size()};
  if (side != Side::right) {
    while (range.begin < range.end && drop(code_point_at(text, range.begin))) {
      range.begin += code_point_size(text, range.begin);
    }
  }
  if (side != Side::left) {
    while (range.end > range.begin) {
      std::size_t last = range.end - 1;
      while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
      if (!drop(code_point_at(text, last))) break;
      range.end = last;
    }
  }
  return range;
}

icu::UnicodeString to_icu(std::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
}

std::string from_icu(const icu::UnicodeString& text) {
  std::string out;
  text.toUTF8String(out);
  return out;
}

}  // namespace

Range strip_range(std::string_view text, Side side) { return strip_if(text, side, is_space); }

Range strip_range(std::string_view text, Side side, std::string_view chars) {
  std::vector<char32_t> set;
  for (std::size_t i = 0; i < chars.size(); i += code_point_size(chars, i))
    set.push_back(code_point_at(chars, i));
  std::sort(set.begin(), set.end());
  return strip_if(text, side, [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

std::string to_upper(std::string_view text) { return from_icu(to_icu(text).toUpper(icu::Locale::getRoot())); }

std::string to_lower(std::string_view text) { return from_icu(to_icu(text).toLower(icu::Locale::getRoot())); }

std::string to_capitalized(std::string_view text) {
  return from_icu(to_icu(text).toTitle(nullptr, icu::Locale::getRoot(),
                                       U_TITLECASE_WHOLE_STRING | U_TITLECASE_NO_BREAK_ADJUSTMENT));
}

}  // namespace tandem::jinja
