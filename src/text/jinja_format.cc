#include "text/jinja_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace tandem::jinja {

namespace {

// One conversion of a printf-style format: %-08.3f
struct Conversion {
  bool left = false, zero = false, plus = false;
  std::size_t width = 0;
  int precision = -1;
  char letter = 0;
};

class PercentFormatter {
 public:
  PercentFormatter(const Text& format, const Value& values, Budget& budget)
      : format_(format), bytes_(format.bytes()), values_(values), budget_(budget) {
    if (values.is_sequence() && values.sequence().type == Sequence::Type::tuple)
      tuple_ = &values.sequence().items;
  }

  Text run() {
    for (std::size_t begin = 0; pos_ < bytes_.size(); begin = pos_) {
      pos_ = std::min(bytes_.find('%', pos_), bytes_.size());
      budget_.charge_bytes(pos_ - begin);
      out_.append(format_.slice(begin, pos_));
      if (pos_ < bytes_.size()) convert();
    }
    // What could be a mapping need not be used.
    const bool optional = values_.is_dict() || values_.is_sequence() || values_.is_undefined();
    const std::size_t given = tuple_ != nullptr ? tuple_->size() : optional ? 0 : 1;
    if (used_ < given) fail("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  char next() {
    if (++pos_ >= bytes_.size()) fail("incomplete format: a '%' stands at the end");
    return bytes_[pos_];
  }

  int number() {
    int value = 0;
    while (bytes_[pos_] >= '0' && bytes_[pos_] <= '9') {
      value = value * 10 + (bytes_[pos_] - '0');
      if (value > 1000) fail("a width or precision in a format is larger than 1000");
      next();
    }
    return value;
  }

  void convert() {
    Conversion conversion;
    const Value* value = nullptr;
    if (next() == '(') {
      const std::size_t end = bytes_.find(')', pos_);
      if (end == std::string::npos) fail("incomplete format: a '%(' is never closed");
      if (!values_.is_dict()) fail("a format with %(name) needs a mapping");
      const std::string name = bytes_.substr(pos_ + 1, end - pos_ - 1);
      value = values_.dict().find(name);
      if (value == nullptr) fail(fmt::format("the format names '{}', which is not given", name));
      pos_ = end;
      next();
    }
    for (; bytes_[pos_] == '-' || bytes_[pos_] == '0' || bytes_[pos_] == '+'; next()) {
      conversion.left |= bytes_[pos_] == '-';
      conversion.zero |= bytes_[pos_] == '0';
      conversion.plus |= bytes_[pos_] == '+';
    }
    conversion.width = static_cast<std::size_t>(number());
    if (bytes_[pos_] == '.') {
      next();
      conversion.precision = number();
    }
    conversion.letter = bytes_[pos_++];
    if (conversion.letter == '%') {
      out_.append("%", Origin::templated);
      return;
    }
    put(conversion, value != nullptr ? *value : argument());
  }

  const Value& argument() {
    if (tuple_ == nullptr) {
      if (used_++ > 0) fail("not enough arguments for a format string");
      return values_;
    }
    if (used_ >= tuple_->size()) fail("not enough arguments for a format string");
    return (*tuple_)[used_++];
  }

  void put(const Conversion& conversion, const Value& value) {
    if (value.is_undefined() && conversion.letter != 's' && conversion.letter != 'r') value.fail_undefined();
    switch (conversion.letter) {
      case 's':
        return pad(conversion, cut(to_text(value, budget_), conversion.precision), false);
      case 'r':
        return pad(conversion, cut(Text(repr(value, budget_), Origin::content), conversion.precision), false);
      case 'd':
      case 'i':
      case 'u':
        if (!value.is_number()) fail(fmt::format("%d needs a number, not {}", type_name(value)));
        if (value.is_float() && !(std::abs(value.number()) < 0x1p126))
          fail("%d: the number is beyond 126 bits");
        return put_number(conversion,
                          format_int(value.is_float() ? static_cast<Int>(value.number()) : value.integral()));
      case 'f':
      case 'F':
        if (!value.is_number()) fail(fmt::format("%f needs a number, not {}", type_name(value)));
        return put_number(conversion, fmt::format("{:.{}f}", value.number(),
                                                  conversion.precision < 0 ? 6 : conversion.precision));
      default:
        fail(fmt::format("the format '%{}' is not supported; there are %s %r %d %f", conversion.letter));
    }
  }

  static Text cut(Text text, int precision) {
    const auto offsets = code_point_offsets(text.bytes());
    const std::size_t count = offsets.size() - 1;
    if (precision < 0 || static_cast<std::size_t>(precision) >= count) return text;
    return text.slice(0, offsets[static_cast<std::size_t>(precision)]);
  }

  void put_number(const Conversion& conversion, std::string digits) {
    if (conversion.plus && digits[0] != '-') digits.insert(0, "+");
    pad(conversion, Text(std::move(digits), Origin::templated), conversion.zero);
  }

  void pad(const Conversion& conversion, const Text& text, bool zeros) {
    const std::size_t count = count_code_points(text.bytes());
    const std::size_t missing = conversion.width > count ? conversion.width - count : 0;
    budget_.charge_bytes(text.size() + missing);
    if (conversion.left) {
      out_.append(text);
      out_.append(std::string(missing, ' '), Origin::templated);
      return;
    }
    const std::size_t sign = zeros && (text.bytes()[0] == '-' || text.bytes()[0] == '+') ? 1 : 0;
    out_.append(text.slice(0, sign));
    out_.append(std::string(missing, zeros ? '0' : ' '), Origin::templated);
    out_.append(text.slice(sign, text.size()));
  }

  const Text& format_;
  const std::string& bytes_;
  const Value& values_;
  Budget& budget_;
  const Values* tuple_ = nullptr;
  std::size_t used_ = 0;
  std::size_t pos_ = 0;
  Text out_;
};

}  // namespace

Text format_percent(const Text& format, const Value& values, Budget& budget) {
  return PercentFormatter(format, values, budget).run();
}

Text format_braces(Interpreter& interpreter, const Text& format, const Args& args) {
  const std::string& bytes = format.bytes();
  Text out;
  std::size_t automatic = 0;
  const auto argument = [&](const std::string& field) -> Value {
    std::size_t index = 0;
    const bool numbered =
        field.empty() ||
        std::from_chars(field.data(), field.data() + field.size(), index).ptr == field.data() + field.size();
    if (numbered) {
      if (field.empty()) index = automatic++;
      if (index >= args.positional.size()) fail("format(): a field has no argument");
      return args.positional[index];
    }
    for (const auto& [name, value] : args.keyword) {
      if (name == field) return value;
    }
    fail(fmt::format("format(): no argument is named '{}'", field));
  };
  // {first.attribute[index]}
  const auto resolve = [&](const std::string& field) {
    std::size_t at = std::min(field.find_first_of(".["), field.size());
    Value value = argument(field.substr(0, at));
    while (at < field.size()) {
      const bool is_attribute = field[at] == '.';
      const std::size_t begin = at + 1;
      const std::size_t end = std::min(field.find_first_of(is_attribute ? ".[" : "]", begin), field.size());
      const std::string key = field.substr(begin, end - begin);
      std::size_t index = 0;
      const bool numbered = !key.empty() && std::from_chars(key.data(), key.data() + key.size(), index).ptr ==
                                                key.data() + key.size();
      if (is_attribute) {
        value = interpreter.attribute(value, key);
      } else {
        value = interpreter.item(value, numbered ? Value::size(index) : Value(Text(key, format.origin())));
      }
      at = is_attribute ? end : std::min(end + 1, field.size());
    }
    return value;
  };

  for (std::size_t pos = 0; pos < bytes.size();) {
    const std::size_t brace = std::min(bytes.find_first_of("{}", pos), bytes.size());
    interpreter.budget().charge_steps(1);
    interpreter.budget().charge_bytes(brace - pos);
    out.append(format.slice(pos, brace));
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.append(format.slice(brace, brace + 1));
      pos = brace + 2;
      continue;
    }
    const std::size_t end = bytes.find('}', brace);
    if (bytes[brace] == '}' || end == std::string::npos)
      fail("format(): a single '{' or '}' stands in the format");
    std::string field = bytes.substr(brace + 1, end - brace - 1);
    if (field.find_first_of(":{") != std::string::npos)
      fail("format(): format specifications are not supported");
    const bool as_repr = field.ends_with("!r");
    if (as_repr || field.ends_with("!s")) field.resize(field.size() - 2);
    const Value value = resolve(field);
    out.append(as_repr ? Text(repr(value, interpreter.budget()), Origin::content)
                       : interpreter.text_of(value));
    pos = end + 1;
  }
  return out;
}

}  // namespace tandem::jinja
