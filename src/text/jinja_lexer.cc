#include "text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

namespace tandem::jinja {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// \r\n and \r become \n.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  std::vector<Token> run() {
    while (pos_ < source_.size()) lex_data();
    tokens_.push_back({TokenKind::end, line_, "", 0, 0});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail_here(std::string message) const { throw Failure{std::move(message), line_}; }

  bool at(std::string_view text) const { return source_.compare(pos_, text.size(), text) == 0; }
  char peek(std::size_t ahead = 0) const {
    return pos_ + ahead < source_.size() ? source_[pos_ + ahead] : '\0';
  }

  void advance(std::size_t n) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(pos_ + n), '\n'));
    pos_ += n;
    if (n > 0) line_starting_ = source_[pos_ - 1] == '\n';
  }

  std::size_t spaces_at(std::size_t pos) const {
    std::size_t end = pos;
    while (end < source_.size() && is_space(code_point_at(source_, end)))
      end += code_point_size(source_, end);
    return end - pos;
  }
  void skip_spaces() { advance(spaces_at(pos_)); }

  void push(TokenKind kind, std::string text = {}) {
    tokens_.push_back({kind, line_, std::move(text), 0, 0});
  }

  // What whitespace control leaves of the text before a tag. `sign` is the tag's '-' or '+', or '\0'.
  std::string_view left_of_tag(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return text.substr(0, strip_range(text, Side::right).end);
    if (sign == '+' || is_variable) return text;
    const std::size_t newline = text.rfind('\n');
    const std::size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_begin == 0 && !line_starting_) return text;
    const Range rest = strip_range(text.substr(line_begin), Side::left);
    return rest.begin == rest.end ? text.substr(0, line_begin) : text;
  }

  char sign_at(std::size_t pos) const {
    return pos < source_.size() && (source_[pos] == '-' || source_[pos] == '+') ? source_[pos] : '\0';
  }

  // If `{%` at `pos` opens or closes the raw block `name` (raw, endraw): the size of `{%- name`, blanks
  // included.
  std::optional<std::size_t> raw_tag(std::size_t pos, std::string_view name) const {
    std::size_t p = pos + 2 + (sign_at(pos + 2) ? 1 : 0);
    p += spaces_at(p);
    if (source_.compare(p, name.size(), name) != 0) return std::nullopt;
    p += name.size();
    return p + spaces_at(p) - pos;
  }

  void lex_data() {
    const std::size_t tag = find_tag();
    const std::string_view text = std::string_view(source_).substr(pos_, tag - pos_);
    if (tag == source_.size()) {
      push(TokenKind::data, std::string(text));
      advance(text.size());
      return;
    }
    const char sign = sign_at(tag + 2);
    const char kind = source_[tag + 1];
    const std::string_view kept = left_of_tag(text, sign, kind == '{');
    if (!kept.empty()) push(TokenKind::data, std::string(kept));
    advance(text.size());
    if (kind == '%' && lex_raw()) return;
    const TokenKind begin = kind == '%' ? TokenKind::block_begin : TokenKind::variable_begin;
    if (kind != '#') push(begin);
    advance(sign ? 3 : 2);
    kind == '#' ? skip_comment() : lex_tag(begin);
  }

  std::size_t find_tag() const {
    for (std::size_t p = source_.find('{', pos_); p != std::string::npos; p = source_.find('{', p + 1)) {
      if (p + 1 < source_.size() && (source_[p + 1] == '%' || source_[p + 1] == '{' || source_[p + 1] == '#'))
        return p;
    }
    return source_.size();
  }

  // The end of a tag at pos_: `-%}` with the blanks after it, `+%}`, or `%}` with one newline after it (not
  // for variables, which have no `+}}` either). Skips it.
  bool skip_end(std::string_view end) {
    const bool is_variable = end == "}}";
    if (peek() == '-' && source_.compare(pos_ + 1, 2, end) == 0) {
      advance(3);
      skip_spaces();
      return true;
    }
    if (!is_variable && peek() == '+' && source_.compare(pos_ + 1, 2, end) == 0) {
      advance(3);
      return true;
    }
    if (!at(end)) return false;
    advance(2);
    if (!is_variable && peek() == '\n') advance(1);
    return true;
  }

  void skip_comment() {
    while (pos_ < source_.size()) {
      if (skip_end("#}")) return;
      advance(1);
    }
    fail_here("a comment {# ... #} is never closed");
  }

  bool lex_raw() {
    const auto open = raw_tag(pos_, "raw");
    if (!open) return false;
    std::size_t after = pos_ + *open;
    if (source_.compare(after, 3, "-%}") == 0) {
      after += 3;
      after += spaces_at(after);
    } else if (source_.compare(after, 2, "%}") == 0) {
      after += 2;
    } else {
      return false;
    }
    advance(after - pos_);
    for (std::size_t p = source_.find("{%", pos_); p != std::string::npos; p = source_.find("{%", p + 1)) {
      const auto close = raw_tag(p, "endraw");
      if (!close) continue;
      const std::size_t tag_end = p + *close;
      if (source_.compare(tag_end, 2, "%}") != 0 && source_.compare(tag_end, 3, "-%}") != 0 &&
          source_.compare(tag_end, 3, "+%}") != 0) {
        continue;
      }
      const std::string_view text = std::string_view(source_).substr(pos_, p - pos_);
      push(TokenKind::data, std::string(left_of_tag(text, sign_at(p + 2), false)));
      advance(tag_end - pos_);
      skip_end("%}");
      return true;
    }
    fail_here("a {% raw %} block is never closed");
  }

  void lex_tag(TokenKind begin) {
    const bool is_block = begin == TokenKind::block_begin;
    std::string open;  // brackets still to close
    while (pos_ < source_.size()) {
      if (open.empty()) {
        const int line = line_;
        if (skip_end(is_block ? "%}" : "}}")) {
          tokens_.push_back({is_block ? TokenKind::block_end : TokenKind::variable_end, line, "", 0, 0});
          return;
        }
      }
      if (is_space(code_point_at(source_, pos_))) {
        skip_spaces();
      } else if (is_digit(peek())) {
        lex_number();
      } else if (is_name_start(peek())) {
        std::size_t n = 1;
        while (is_name_part(peek(n))) ++n;
        push(TokenKind::name, source_.substr(pos_, n));
        advance(n);
      } else if (peek() == '\'' || peek() == '"') {
        lex_string();
      } else {
        lex_operator(open);
      }
    }
    fail_here(is_block ? "a block {% ... %} is never closed" : "an expression {{ ... }} is never closed");
  }

  // Digits with single underscores between them, from `pos`.
  std::size_t digits_at(std::size_t pos) const {
    std::size_t end = pos;
    while (end < source_.size() &&
           (is_digit(source_[end]) || (source_[end] == '_' && end > pos && source_[end - 1] != '_' &&
                                       end + 1 < source_.size() && is_digit(source_[end + 1])))) {
      ++end;
    }
    return end - pos;
  }

  void lex_number() {
    const std::size_t whole = digits_at(pos_);
    std::size_t size = whole;
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
    bool is_float = false;
    if (!after_dot) {
      if (peek(size) == '.' && digits_at(pos_ + size + 1) > 0) {
        size += 1 + digits_at(pos_ + size + 1);
        is_float = true;
      }
      if (peek(size) == 'e' || peek(size) == 'E') {
        const std::size_t sign = peek(size + 1) == '+' || peek(size + 1) == '-' ? 1 : 0;
        const std::size_t exponent = digits_at(pos_ + size + 1 + sign);
        if (exponent > 0) {
          size += 1 + sign + exponent;
          is_float = true;
        }
      }
    }
    std::string digits = source_.substr(pos_, size);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    if (is_float) {
      push(TokenKind::real, digits);
      tokens_.back().real = std::strtod(digits.c_str(), nullptr);
    } else {
      if (digits.size() > 1 && digits[0] == '0')
        fail_here(fmt::format("number {} has leading zeros", digits));
      if (is_name_start(peek(size))) fail_here(fmt::format("number {} runs into a name", digits));
      std::int64_t value = 0;
      const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (parsed.ec != std::errc()) fail_here(fmt::format("number {} is larger than 64 bits", digits));
      push(TokenKind::integer, digits);
      tokens_.back().integer = value;
    }
    advance(size);
  }

  void lex_string() {
    const char quote = peek();
    std::size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_here("a string is never closed");
    push(TokenKind::string, unescape(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1)));
    advance(end + 1 - pos_);
  }

  std::string unescape(std::string_view body) const {
    std::string out;
    for (std::size_t i = 0; i < body.size(); ++i) {
      if (body[i] != '\\') {
        out += body[i];
        continue;
      }
      const char c = body[++i];  // the scan for the closing quote left no lone backslash
      static constexpr std::string_view kShort = "\\'\"abfnrtv", kMeaning = "\\'\"\a\b\f\n\r\t\v";
      const std::size_t known = kShort.find(c);
      if (known != std::string_view::npos) {
        out += kMeaning[known];
      } else if (c == '\n') {
        // a line continuation
      } else if (c >= '0' && c <= '7') {
        append_code(out, body, i, 8, 3, i);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t width = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        const std::size_t begin = i + 1;
        append_code(out, body, begin, 16, width, i);
        if (i + 1 != begin + width)
          fail_here(fmt::format("\\{} in a string needs {} hexadecimal digits", c, width));
      } else if (c == 'N') {
        fail_here("\\N{...} in strings is not supported; write \\uXXXX");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  // Reads at most `width` digits from `begin`; `last` becomes the index of the last one.
  void append_code(std::string& out, std::string_view body, std::size_t begin, int base, std::size_t width,
                   std::size_t& last) const {
    const std::string_view digits = body.substr(std::min(begin, body.size()), width);
    std::uint32_t code = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    if (parsed.ec != std::errc()) fail_here("a string has an escape without digits");
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail_here(fmt::format("a string escape names U+{:04X}, which is not a character", code));
    }
    last = begin + static_cast<std::size_t>(parsed.ptr - digits.data()) - 1;
    append_utf8(out, code);
  }

  void lex_operator(std::string& open) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kOne = "+-*/%~[](){}><=.:|,;";
    for (const std::string_view two : kTwo) {
      if (at(two)) {
        push(TokenKind::op, std::string(two));
        advance(2);
        return;
      }
    }
    const char c = peek();
    if (kOne.find(c) == std::string_view::npos) {
      fail_here(fmt::format("unexpected character '{}' in a tag",
                            source_.substr(pos_, code_point_size(source_, pos_))));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail_here(fmt::format("unexpected '{}'", c));
      if (open.back() != c) fail_here(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    push(TokenKind::op, std::string(1, c));
    advance(1);
  }

  std::string source_;
  std::size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace tandem::jinja
