#include "text/jinja_print.h"

#include <fmt/format.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace tandem::jinja {

namespace {

bool is_printable(char32_t c) {
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_SURROGATE:
    case U_PRIVATE_USE_CHAR:
    case U_UNASSIGNED:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
      return false;
    case U_SPACE_SEPARATOR:
      return c == ' ';
    default:
      return true;
  }
}

void append_repr(std::string& out, const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos,
             has_double = text.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out += quote;
  for (std::size_t i = 0; i < text.size(); i += code_point_size(text, i)) {
    const char32_t c = code_point_at(text, i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(text, i, code_point_size(text, i));
    } else {
      const auto code = static_cast<std::uint32_t>(c);
      out += c < 0x100     ? fmt::format("\\x{:02x}", code)
             : c < 0x10000 ? fmt::format("\\u{:04x}", code)
                           : fmt::format("\\U{:08x}", code);
    }
  }
  out += quote;
}

void append_json_string(std::string& out, const std::string& text, bool ensure_ascii) {
  out += '"';
  for (std::size_t i = 0; i < text.size(); i += code_point_size(text, i)) {
    const char32_t c = code_point_at(text, i);
    switch (c) {
      case '"':
        out += "\\\"";
        continue;
      case '\\':
        out += "\\\\";
        continue;
      case '\n':
        out += "\\n";
        continue;
      case '\r':
        out += "\\r";
        continue;
      case '\t':
        out += "\\t";
        continue;
      case '\f':
        out += "\\f";
        continue;
      case '\b':
        out += "\\b";
        continue;
      default:
        break;
    }
    const auto code = static_cast<std::uint32_t>(c);
    if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
      out += c == 0x7F ? std::string("\x7F") : fmt::format("\\u{:04x}", code);
    } else if (ensure_ascii && c >= 0x10000) {
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF));
    } else {
      out.append(text, i, code_point_size(text, i));
    }
  }
  out += '"';
}

// Charges the budget for what was appended since the last call.
class Meter {
 public:
  Meter(const std::string& out, Budget& budget) : out_(out), budget_(budget) {}
  void tick() {
    budget_.charge_steps(1);
    budget_.charge_bytes(out_.size() - charged_);
    charged_ = out_.size();
  }

 private:
  const std::string& out_;
  Budget& budget_;
  std::size_t charged_ = 0;
};

class ReprWriter {
 public:
  explicit ReprWriter(Budget& budget) : meter_(out_, budget), budget_(budget) {}

  std::string take() && { return std::move(out_); }

  void write(const Value& value) {
    meter_.tick();
    if (value.is_undefined()) {
      out_ += "Undefined";
    } else if (value.is_string()) {
      append_repr(out_, value.bytes());
    } else if (value.is_dict()) {
      write_dict(value.dict());
    } else if (value.is_sequence()) {
      write_sequence(value.sequence());
    } else if (const auto* ns = value.get_if<Namespace*>()) {
      const Budget::Level level(budget_);  // a namespace may hold itself
      out_ += "<Namespace ";
      write_dict((*ns)->attributes);
      out_ += '>';
    } else if (value.is_none() || value.is_number()) {
      out_ += scalar(value);
    } else {
      fail(fmt::format("a value of type '{}' has no printed form", type_name(value)));
    }
    meter_.tick();
  }

  static std::string scalar(const Value& value) {
    if (value.is_none()) return "None";
    if (value.is_bool()) return value.boolean() ? "True" : "False";
    return value.is_int() ? format_int(value.integral()) : format_float(value.number());
  }

 private:
  void write_dict(const Dict& dict) {
    out_ += '{';
    const char* separator = "";
    for (const auto& [key, item] : dict.entries) {
      out_ += separator;
      write(key);
      out_ += ": ";
      write(item);
      separator = ", ";
    }
    out_ += '}';
  }

  void write_sequence(const Sequence& sequence) {
    std::string open = "[", close = "]";
    switch (sequence.type) {
      case Sequence::Type::list:
        break;
      case Sequence::Type::tuple:
        open = "(";
        close = sequence.items.size() == 1 ? ",)" : ")";
        break;
      case Sequence::Type::keys:
        open = "dict_keys([";
        close = "])";
        break;
      case Sequence::Type::values:
        open = "dict_values([";
        close = "])";
        break;
      case Sequence::Type::items:
        open = "dict_items([";
        close = "])";
        break;
      case Sequence::Type::range:
        fail("a range is printed; write range(...)|list");
      case Sequence::Type::generator:
        fail("a generator is printed; write ...|list");
    }
    out_ += open;
    const char* separator = "";
    for (const Value& item : sequence.items) {
      out_ += separator;
      write(item);
      separator = ", ";
    }
    out_ += close;
  }

  std::string out_;
  Meter meter_;
  Budget& budget_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), meter_(out_, budget) {}

  std::string take() && { return std::move(out_); }

  void write(const Value& value, int level) {
    meter_.tick();
    if (value.is_string()) {
      append_json_string(out_, value.bytes(), style_.ensure_ascii);
    } else if (value.is_dict()) {
      write_dict(value.dict(), level);
    } else if (value.is_sequence() && (value.sequence().type == Sequence::Type::list ||
                                       value.sequence().type == Sequence::Type::tuple)) {
      write_list(value.sequence().items, level);
    } else {
      out_ += scalar(value);
    }
    meter_.tick();
  }

 private:
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is_bool()) return value.boolean() ? "true" : "false";
    if (value.is_int()) return format_int(value.integral());
    if (value.is_float()) {
      const double d = value.number();
      return std::isnan(d) ? "NaN" : std::isinf(d) ? (d > 0 ? "Infinity" : "-Infinity") : format_float(d);
    }
    if (value.is_undefined()) value.fail_undefined();
    fail(fmt::format("object of type {} is not JSON serializable", type_name(value)));
  }

  void new_line(int level) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) {
      out_ += *style_.indent;
      meter_.tick();
    }
  }

  void write_list(const Values& items, int level) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    bool first = true;
    for (const Value& item : items) {
      if (!first) out_ += style_.item_separator;
      first = false;
      new_line(level + 1);
      write(item, level + 1);
    }
    new_line(level);
    out_ += ']';
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return;
    }
    auto entries = dict.entries;
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return less(a.first, b.first); });
    }
    out_ += '{';
    bool first = true;
    for (const auto& [key, item] : entries) {
      if (!first) out_ += style_.item_separator;
      first = false;
      new_line(level + 1);
      append_json_string(out_, key.is_string() ? key.bytes() : scalar(key), style_.ensure_ascii);
      out_ += style_.key_separator;
      write(item, level + 1);
    }
    new_line(level);
    out_ += '}';
  }

  const JsonStyle& style_;
  std::string out_;
  Meter meter_;
};

}  // namespace

std::string format_int(Int value) {
  if (value == 0) return "0";
  std::string digits;
  for (Int rest = value; rest != 0; rest /= 10) {
    const auto digit = static_cast<int>(rest % 10);
    digits += static_cast<char>('0' + std::abs(digit));
  }
  if (value < 0) digits += '-';
  return {digits.rbegin(), digits.rend()};
}

std::string format_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string scientific(buffer, result.ptr);  // d.ddde+dd
  const std::size_t e = scientific.find('e');
  const int exponent = std::atoi(scientific.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) return scientific;
  std::string out(buffer, std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

Text to_text(const Value& value, Budget& budget) {
  if (value.is_undefined()) return {};
  if (value.is_string()) return value.text();
  if (value.is_none() || value.is_number()) return {ReprWriter::scalar(value), Origin::templated};
  return {repr(value, budget), Origin::content};
}

std::string repr(const Value& value, Budget& budget) {
  ReprWriter writer(budget);
  writer.write(value);
  return std::move(writer).take();
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return std::move(writer).take();
}

}  // namespace tandem::jinja
