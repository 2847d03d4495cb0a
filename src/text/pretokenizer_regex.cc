#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenizer_regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "text/unicode.h"

namespace tandem {
namespace {

constexpr size_t kMaxPatternBytes = 4096;        // published patterns have about 300
constexpr size_t kMaxTranslatedBytes = 1 << 20;  // \p{L} takes about 12,000
constexpr char32_t kLastCodePoint = 0x10FFFF;

std::vector<CodePointRange> complement(const std::vector<CodePointRange>& ranges) {
  std::vector<CodePointRange> out;
  char32_t next = 0;
  for (const CodePointRange& r : ranges) {
    if (r.first > next) out.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= kLastCodePoint) out.push_back({next, kLastCodePoint});
  return out;
}

// Translates one pattern; every function consumes from pattern_[at_..] and appends to out_.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (at_ < pattern_.size()) {
      TD_RETURN_IF_ERROR(item());
      if (out_.size() > kMaxTranslatedBytes) return refuse(at_, "too many Unicode classes");
    }
    if (!caseless_.empty()) return refuse(at_, "a group without its ')'");
    return std::move(out_);
  }

 private:
  Error refuse(size_t at, const std::string& what) const {
    return Error{fmt::format("at byte {}: {}", at, what)};
  }
  bool next_is(std::string_view s) const { return pattern_.substr(at_).starts_with(s); }
  bool take(std::string_view s) {
    if (!next_is(s)) return false;
    at_ += s.size();
    return true;
  }
  bool caseless() const { return !caseless_.empty() && caseless_.back(); }

  Status item() {
    const size_t start = at_;
    switch (pattern_[at_]) {
      case '(':
        return group();
      case ')':
        if (caseless_.empty()) return refuse(start, "a ')' without its group");
        caseless_.pop_back();
        ++at_;
        out_ += ')';
        return quantifier();
      case '|':
        ++at_;
        out_ += '|';
        return {};
      case '[':
        if (caseless()) return refuse(start, "a class inside (?i: )");
        TD_RETURN_IF_ERROR(bracket());
        return quantifier();
      case '.':
        ++at_;
        out_ += "[^\\n]";
        return quantifier();
      case '^':
      case '$':
        return refuse(start, "the anchors ^ and $");
      case '?':
      case '*':
      case '+':
      case '{':
        return refuse(start, "a quantifier with nothing to repeat");
      default:
        break;
    }
    TD_ASSIGN_OR_RETURN(const Atom atom, this->atom());
    if (atom.ranges) {
      if (caseless()) return refuse(start, "a class inside (?i: )");
      out_ += '[';
      append_ranges(*atom.ranges);
      out_ += ']';
    } else {
      if (caseless() && atom.literal >= 0x80) return refuse(start, "a character outside ASCII inside (?i: )");
      append_literal(atom.literal);
    }
    return quantifier();
  }

  Status group() {
    const size_t start = at_;
    const bool outer = caseless();
    for (const std::string_view open : {"(?:", "(?i:", "(?>", "(?=", "(?!", "(?<=", "(?<!"}) {
      if (!take(open)) continue;
      out_ += open;
      caseless_.push_back(outer || open == "(?i:");
      return {};
    }
    if (next_is("(?")) return refuse(start, "a group that is none of (?: (?i: (?> (?= (?! (?<= (?<!");
    ++at_;
    out_ += "(?:";  // nothing reads the captures
    caseless_.push_back(outer);
    return {};
  }

  // ? * + with a following ? or +, or {n} {n,} {,m} {n,m} (with a lazy ? unless it is {n}, where engines
  // disagree).
  Status quantifier() {
    if (at_ == pattern_.size()) return {};
    const char c = pattern_[at_];
    if (c == '?' || c == '*' || c == '+') {
      ++at_;
      out_ += c;
      if (at_ < pattern_.size() && (pattern_[at_] == '?' || pattern_[at_] == '+')) out_ += pattern_[at_++];
    } else if (c == '{') {
      TD_RETURN_IF_ERROR(interval());
    } else {
      return {};
    }
    if (at_ < pattern_.size() && std::string_view("?*+{").find(pattern_[at_]) != std::string_view::npos) {
      return refuse(at_, "a quantifier on a quantifier");
    }
    return {};
  }

  Status interval() {
    const size_t start = at_++;
    const std::string low = digits();
    const bool comma = take(",");
    const std::string high = comma ? digits() : "";
    if (!take("}") || (low.empty() && high.empty())) return refuse(start, "a '{' that opens no {n,m}");
    out_ += '{' + (low.empty() ? "0" : low) + (comma ? "," : "") + high + '}';
    if (comma && take("?")) out_ += '?';
    return {};
  }

  std::string digits() {
    std::string d;
    while (at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9') d += pattern_[at_++];
    return d;
  }

  Status bracket() {
    const size_t start = at_++;
    out_ += '[';
    if (take("^")) out_ += '^';
    if (next_is("]")) return refuse(start, "an empty class or one that starts with ']'");
    while (true) {
      if (at_ >= pattern_.size()) return refuse(start, "a class without its ']'");
      if (take("]")) break;
      if (next_is("[")) return refuse(at_, "a class inside a class");
      if (next_is("&&")) return refuse(at_, "an intersection of classes");
      TD_ASSIGN_OR_RETURN(const Atom first, atom());
      const bool dash = next_is("-") && !next_is("-]");
      if (first.ranges) {
        if (dash) return refuse(at_, "a range that starts at a class");
        append_ranges(*first.ranges);
        continue;
      }
      append_literal(first.literal);
      if (!dash) continue;
      ++at_;
      const size_t last_at = at_;
      if (at_ >= pattern_.size() || next_is("[")) return refuse(last_at, "a range without its end");
      TD_ASSIGN_OR_RETURN(const Atom last, atom());
      if (last.ranges || last.literal < first.literal)
        return refuse(last_at, "a range that ends before it starts");
      out_ += '-';
      append_literal(last.literal);
    }
    out_ += ']';
    return {};
  }

  struct Atom {
    char32_t literal = 0;
    std::optional<std::vector<CodePointRange>> ranges;  // set for a class escape
  };

  // A literal character or an escape, in or out of brackets.
  Result<Atom> atom() {
    const size_t start = at_;
    const CodePoint c = code_point_at(pattern_, at_);
    at_ += c.n_bytes;
    if (c.value != '\\') return Atom{.literal = c.value, .ranges = std::nullopt};
    if (at_ == pattern_.size()) return refuse(start, "a '\\' at the end");
    const char e = pattern_[at_++];
    const auto literal = [](char32_t v) { return Atom{.literal = v, .ranges = std::nullopt}; };
    switch (e) {
      case 'r':
        return literal('\r');
      case 'n':
        return literal('\n');
      case 't':
        return literal('\t');
      case 'f':
        return literal('\f');
      case 'v':
        return literal('\v');
      case 'a':
        return literal('\a');
      case 'e':
        return literal(0x1B);
      case 'x':
        return take("{") ? hex(start, 1, 6, "}") : hex(start, 2, 2, "");
      case 'u':
        return hex(start, 4, 4, "");
      case 's':
      case 'S':
        return property(start, "White_Space", e == 'S');
      case 'd':
      case 'D':
        return property(start, "Nd", e == 'D');
      case 'p':
      case 'P':
        return braced_property(start, e == 'P');
      default:
        break;
    }
    const bool punctuation =
        e > ' ' && e < 0x7F && !(e >= '0' && e <= '9') && !(e >= 'a' && e <= 'z') && !(e >= 'A' && e <= 'Z');
    if (!punctuation) return refuse(start, "an escape that is not supported");
    return literal(char32_t(e));
  }

  Result<Atom> hex(size_t start, int min_digits, int max_digits, std::string_view close) {
    char32_t value = 0;
    int n = 0;
    for (; n < max_digits && at_ < pattern_.size(); ++n, ++at_) {
      const char c = pattern_[at_];
      if (c >= '0' && c <= '9') {
        value = value * 16 + char32_t(c - '0');
      } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
        value = value * 16 + char32_t((c | 0x20) - 'a' + 10);
      } else {
        break;
      }
    }
    if (n < min_digits || !take(close) || value > kLastCodePoint || (value >= 0xD800 && value < 0xE000)) {
      return refuse(start, "a hexadecimal escape that names no character");
    }
    return Atom{.literal = value, .ranges = std::nullopt};
  }

  Result<Atom> property(size_t start, std::string_view name, bool negated) {
    std::optional<std::vector<CodePointRange>> ranges = code_points_with(name);
    if (!ranges) return refuse(start, "a property with an unknown name");
    if (negated) ranges = complement(*ranges);
    std::erase_if(*ranges, [](const CodePointRange& r) { return r.first >= 0xD800 && r.last < 0xE000; });
    if (ranges->empty()) return refuse(start, "a property without characters");
    return Atom{.literal = 0, .ranges = std::move(*ranges)};
  }

  Result<Atom> braced_property(size_t start, bool negated) {
    if (!take("{")) return refuse(start, "a property without its {}");
    if (take("^")) negated = !negated;
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) return refuse(start, "a property without its {}");
    const std::string_view name = pattern_.substr(at_, close - at_);
    at_ = close + 1;
    return property(start, name, negated);
  }

  void append_literal(char32_t c) { out_ += fmt::format("\\x{{{:x}}}", uint32_t(c)); }

  // Surrogates are left out: valid UTF-8 has none, and PCRE2 refuses them.
  void append_ranges(const std::vector<CodePointRange>& ranges) {
    const auto append = [&](char32_t first, char32_t last) {
      if (first > last) return;
      append_literal(first);
      if (last > first) out_ += '-', append_literal(last);
    };
    for (const CodePointRange& r : ranges) {
      append(r.first, std::min(r.last, char32_t{0xD7FF}));
      append(std::max(r.first, char32_t{0xE000}), r.last);
    }
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
  std::vector<bool> caseless_;  // one per open group
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

pcre2_code* as_code(void* code) { return static_cast<pcre2_code*>(code); }

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return Error{fmt::format("{} bytes long, at most {} are accepted", pattern.size(), kMaxPatternBytes)};
  }
  if (const auto bad = first_invalid_utf8(pattern))
    return Error{fmt::format("at byte {}: invalid UTF-8", *bad)};
  return Translator(pattern).run();
}

Result<std::shared_ptr<const SplitRegex>> SplitRegex::compile(const std::string& pattern) {
  TD_ASSIGN_OR_RETURN(const std::string translated, translate_pattern(pattern));
  int code = 0;
  PCRE2_SIZE at = 0;
  // Unicode matching also gives (?i:s) the long s. No UCP: no \w or \b passes the translation.
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_NO_UTF_CHECK | PCRE2_NO_AUTO_CAPTURE, &code, &at, nullptr);
  if (compiled == nullptr) return Error{"PCRE2 refuses it: " + pcre2_message(code)};
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);  // without JIT the interpreter gives the same matches
  std::shared_ptr<SplitRegex> regex(new SplitRegex);
  regex->code_ = compiled;
  return std::shared_ptr<const SplitRegex>(std::move(regex));
}

SplitRegex::~SplitRegex() { pcre2_code_free(as_code(code_)); }

Status SplitRegex::for_each(std::string_view text, const std::function<void(size_t, size_t)>& match) const {
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(pcre2_match_data_create(1, nullptr));
  if (!data) return Error{"out of memory for a regex match"};
  size_t at = 0;
  std::optional<size_t> last_end;
  while (at <= text.size()) {
    const int rc = pcre2_match(as_code(code_), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                               PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return Error{"pre-tokenizer pattern gave up on this text: " + pcre2_message(rc)};
    const PCRE2_SIZE* const span = pcre2_get_ovector_pointer(data.get());
    const size_t begin = span[0], end = span[1];
    if (begin == end && last_end == end) {  // an empty match right behind the last one: try one character on
      at += at < text.size() ? code_point_at(text, at).n_bytes : 1;
      continue;
    }
    match(begin, end);
    at = end;
    last_end = end;
  }
  return {};
}

}  // namespace tandem
