#include "serve/api/json_body.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <unordered_map>

#include "text/unicode.h"

namespace tandem::serve {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Recursive descent over bounded depth. Every function is true when it has read what it stands for.
class Parser {
 public:
  Parser(std::string_view text, JsonBodyLimits limits) : text_(text), limits_(limits) {}

  ApiResult<Json> parse() {
    if (const auto bad = first_invalid_utf8(text_)) {
      return error_at(*bad, "invalid_json", "the body is not valid UTF-8");
    }
    Json value;
    skip_white();
    if (at_ == text_.size()) return error_at(0, "missing_body", "the body is empty; send a JSON object");
    if (!read(value, 0)) return *std::move(error_);
    skip_white();
    if (at_ < text_.size()) {
      return error_at(at_, "invalid_json", fmt::format("expected the end of the JSON, found {}", found()));
    }
    return value;
  }

 private:
  static ApiError error_at(size_t at, std::string code, std::string what) {
    return invalid_field("", std::move(code), fmt::format("body: byte {}: {}", at, what));
  }
  bool fail(std::string what, std::string code = "invalid_json") {
    error_ = error_at(at_, std::move(code), std::move(what));
    return false;
  }
  std::string found() const {
    return at_ < text_.size() ? shown(Json(text_.substr(at_, code_point_at(text_, at_).n_bytes))) : "the end";
  }
  bool expected(const char* what) { return fail(fmt::format("expected {}, found {}", what, found())); }
  bool at(char c) const { return at_ < text_.size() && text_[at_] == c; }
  void skip_white() {
    while (at_ < text_.size() && (at(' ') || at('\n') || at('\r') || at('\t'))) ++at_;
  }

  bool read(Json& value, int depth) {
    if (++n_values_ > limits_.max_values) {
      return fail(fmt::format("more than {} values", limits_.max_values), "too_large");
    }
    if (at_ == text_.size()) return expected("a value");
    switch (text_[at_]) {
      case '{':
      case '[':
        if (depth == limits_.max_depth) {
          return fail(fmt::format("nested deeper than {} levels", limits_.max_depth), "too_deep");
        }
        return text_[at_] == '{' ? read_object(value, depth + 1) : read_array(value, depth + 1);
      case '"':
        value = std::string();
        return read_string(value.get_ref<std::string&>());
      case 't':
        return read_word("true", true, value);
      case 'f':
        return read_word("false", false, value);
      case 'n':
        return read_word("null", nullptr, value);
      default:
        return read_number(value);
    }
  }

  bool read_word(std::string_view word, Json meaning, Json& value) {
    if (text_.substr(at_, word.size()) != word) return expected("a value");
    at_ += word.size();
    value = std::move(meaning);
    return true;
  }

  bool read_array(Json& value, int depth) {
    value = Json::array();
    auto& items = value.get_ref<Json::array_t&>();
    ++at_;
    skip_white();
    if (at(']')) return ++at_, true;
    while (true) {
      skip_white();
      items.emplace_back();
      if (!read(items.back(), depth)) return false;
      skip_white();
      if (at(']')) return ++at_, true;
      if (!at(',')) return expected("\",\" or \"]\"");
      ++at_;
    }
  }

  bool read_object(Json& value, int depth) {
    value = Json::object();
    // An ordered_json looks its keys up one by one and copies its members when it grows: built apart, then
    // moved.
    std::vector<std::pair<std::string, Json>> members;
    std::unordered_map<std::string, size_t> index;
    ++at_;
    skip_white();
    if (at('}')) return ++at_, true;
    const auto finish = [&] {
      std::vector<std::pair<const std::string, Json>>& object = value.get_ref<Json::object_t&>();
      object.reserve(members.size());
      for (auto& [name, member] : members) object.emplace_back(std::move(name), std::move(member));
      return ++at_, true;
    };
    std::string key;
    while (true) {
      skip_white();
      if (!at('"')) return expected("a key in quotes");
      key.clear();
      if (!read_string(key)) return false;
      skip_white();
      if (!at(':')) return expected("\":\"");
      ++at_;
      skip_white();
      const auto [known, is_new] = index.try_emplace(key, members.size());
      if (is_new) members.emplace_back(key, nullptr);
      if (!read(members[known->second].second, depth)) return false;
      skip_white();
      if (at('}')) return finish();
      if (!at(',')) return expected("\",\" or \"}\"");
      ++at_;
    }
  }

  bool read_string(std::string& out) {
    ++at_;
    while (true) {
      size_t end = at_;
      while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' && uint8_t(text_[end]) >= 0x20)
        ++end;
      out += text_.substr(at_, end - at_);
      at_ = end;
      if (at_ == text_.size()) return fail("the string has no end");
      if (text_[at_] == '"') return ++at_, true;
      if (text_[at_] != '\\') return fail("control character in a string; write it as an escape");
      if (!read_escape(out)) return false;
    }
  }

  bool read_escape(std::string& out) {
    constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeaning = "\"\\/\b\f\n\r\t";
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (c != 'u') {
      const size_t which = c == '\0' ? std::string_view::npos : kEscapes.find(c);
      if (which == std::string_view::npos) return fail("unknown escape in a string");
      out += kMeaning[which];
      at_ += 2;
      return true;
    }
    const auto high = hex4(at_ + 2);
    if (!high) return fail("\\u needs four hexadecimal digits");
    char32_t code = *high;
    size_t n = 6;
    if (code >= 0xD800 && code < 0xE000) {
      const auto low = text_.substr(at_ + 6, 2) == "\\u" ? hex4(at_ + 8) : std::nullopt;
      if (code >= 0xDC00 || !low || *low < 0xDC00 || *low >= 0xE000) return fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (*low - 0xDC00);
      n = 12;
    }
    append_utf8(code, out);
    at_ += n;
    return true;
  }

  std::optional<char32_t> hex4(size_t from) const {
    if (from + 4 > text_.size()) return std::nullopt;
    uint32_t value = 0;
    const auto [end, errc] = std::from_chars(text_.data() + from, text_.data() + from + 4, value, 16);
    if (errc != std::errc() || end != text_.data() + from + 4) return std::nullopt;
    return char32_t(value);
  }

  bool read_number(Json& value) {
    size_t i = at_ + (at('-') ? 1 : 0);
    const auto digits = [&] {
      const size_t from = i;
      while (i < text_.size() && is_digit(text_[i])) ++i;
      return i > from;
    };
    const bool zero = i < text_.size() && text_[i] == '0';
    if (!digits()) return expected("a value");
    if (zero && i - at_ > (at('-') ? 2u : 1u)) return fail("a number may not begin with 0");
    bool whole = true;
    if (i < text_.size() && text_[i] == '.') {
      whole = false;
      ++i;
      if (!digits()) return fail("digits must follow the point of a number");
    }
    if (i < text_.size() && (text_[i] == 'e' || text_[i] == 'E')) {
      whole = false;
      ++i;
      if (i < text_.size() && (text_[i] == '+' || text_[i] == '-')) ++i;
      if (!digits()) return fail("digits must follow the exponent of a number");
    }
    const char *const first = text_.data() + at_, *const last = text_.data() + i;
    if (whole) {
      int64_t integer = 0;
      uint64_t natural = 0;
      if (std::from_chars(first, last, integer).ec == std::errc()) {
        value = integer;
        return at_ = i, true;
      }
      if (std::from_chars(first, last, natural).ec == std::errc()) {
        value = natural;
        return at_ = i, true;
      }
    }
    double number = 0;
    const auto errc = std::from_chars(first, last, number).ec;
    if (errc != std::errc()) {
      // Too small is as good as 0; too large is no number that could be meant.
      const std::string text(first, last);
      number = std::strtod(text.c_str(), nullptr);
      if (!std::isfinite(number)) return fail("the number is too large");
    }
    value = number;
    at_ = i;
    return true;
  }

  std::string_view text_;
  JsonBodyLimits limits_;
  size_t at_ = 0, n_values_ = 0;
  std::optional<ApiError> error_;
};

}  // namespace

ApiResult<Json> parse_json(std::string_view text, JsonBodyLimits limits) {
  return Parser(text, limits).parse();
}

ApiResult<Json> parse_body(std::string_view text, JsonBodyLimits limits) {
  auto body = parse_json(text, limits);
  if (body.ok() && !body->is_object()) {
    return invalid_field("", "invalid_type",
                         fmt::format("body: expected a JSON object, found {}", shown(*body)));
  }
  return body;
}

}  // namespace tandem::serve
