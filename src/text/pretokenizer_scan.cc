#include "text/pretokenizer_scan.h"

#include "text/unicode.h"

namespace tandem {
namespace {

// Pieces of the patterns as the files write them.
#define TD_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TD_WHITE R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
constexpr std::string_view kQwen2 =
    TD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" TD_WHITE;
constexpr std::string_view kQwen35 =
    TD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" TD_WHITE;
constexpr std::string_view kLlama3 =
    TD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" TD_WHITE;
#undef TD_CONTRACTIONS
#undef TD_WHITE

bool is_white(CharClass c) {
  return c == CharClass::newline || c == CharClass::space || c == CharClass::white;
}

// The text seen as classified characters.
class Scanner {
 public:
  Scanner(std::string_view text, const ScanRules& rules) : text_(text), rules_(rules) {}

  struct Char {
    CharClass kind;
    size_t end;  // offset behind it
  };
  Char at(size_t i) const {
    const CodePoint c = code_point_at(text_, i);
    CharClass kind = char_class(c.value);
    if (kind == CharClass::mark) kind = rules_.marks_are_letters ? CharClass::letter : CharClass::other;
    return {kind, i + c.n_bytes};
  }
  bool is(size_t i, CharClass kind) const { return i < text_.size() && at(i).kind == kind; }

  // Behind the run of `kind` at i, at most `limit` characters.
  size_t run(size_t i, CharClass kind, size_t limit = SIZE_MAX) const {
    for (; limit > 0 && i < text_.size(); --limit) {
      const Char c = at(i);
      if (c.kind != kind) break;
      i = c.end;
    }
    return i;
  }

  // Behind an apostrophe at i: the end of 's 't 're 've 'm 'll 'd in any case, or i when none follows. Case
  // folding pairs s with U+017F (long s), and no other character outside ASCII with one of these letters.
  size_t contraction(size_t i) const {
    const auto letter = [&](size_t k) { return k < text_.size() ? char(text_[k] | 0x20) : '\0'; };
    const char a = letter(i + 1), b = letter(i + 2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
    if (text_.substr(i + 1, 2) == "\xC5\xBF") return i + 3;
    return i;
  }

  // White space from i on that starts no other piece: through its last line break if it has one; else all of
  // it at the end of the text; else all but the last character, which belongs to the next piece; a lone one
  // stands alone.
  size_t white(size_t i) const {
    size_t end = i, last_start = i, behind_newline = i;
    while (end < text_.size()) {
      const Char c = at(end);
      if (!is_white(c.kind)) break;
      last_start = end;
      end = c.end;
      if (c.kind == CharClass::newline) behind_newline = end;
    }
    if (behind_newline > i) return behind_newline;
    if (end == text_.size() || last_start == i) return end;
    return last_start;
  }

 private:
  std::string_view text_;
  const ScanRules& rules_;
};

}  // namespace

std::optional<ScanRules> known_pattern(std::string_view pattern) {
  if (pattern == kQwen2) return ScanRules{.marks_are_letters = false, .max_digits = 1};
  if (pattern == kQwen35) return ScanRules{.marks_are_letters = true, .max_digits = 1};
  if (pattern == kLlama3) return ScanRules{.marks_are_letters = false, .max_digits = 3};
  return std::nullopt;
}

size_t scan_piece(std::string_view text, size_t at, const ScanRules& rules) {
  const Scanner s(text, rules);
  if (text[at] == '\'') {
    if (const size_t end = s.contraction(at); end > at) return end;
  }
  const Scanner::Char first = s.at(at);
  // A letter run, led by at most one character that is neither letter, number nor line break.
  if (first.kind == CharClass::letter) return s.run(first.end, CharClass::letter);
  if (first.kind == CharClass::number) return s.run(at, CharClass::number, size_t(rules.max_digits));
  if (first.kind == CharClass::newline) return s.white(at);
  if (s.is(first.end, CharClass::letter)) return s.run(first.end, CharClass::letter);
  // A run of other characters, led by at most one space, followed by its line breaks.
  if (first.kind == CharClass::other ||
      (first.kind == CharClass::space && s.is(first.end, CharClass::other))) {
    return s.run(s.run(first.end, CharClass::other), CharClass::newline);
  }
  return s.white(at);
}

}  // namespace tandem
