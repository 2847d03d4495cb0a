#include "text/jinja_numbers.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "text/jinja_text.h"

namespace tandem::jinja {

namespace {

std::string_view stripped(std::string_view text) {
  const Range range = strip_range(text, Side::both);
  return text.substr(range.begin, range.end - range.begin);
}

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

}  // namespace

std::optional<Int> parse_int(std::string_view text, int base) {
  text = stripped(text);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  bool after_prefix = false;
  if (text.size() > 1 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    const int meant = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (meant != 0 && (base == meant || base == 0)) {
      base = meant;
      text.remove_prefix(2);
      after_prefix = true;
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || text.empty()) return std::nullopt;
  Int value = 0;
  bool after_digit = after_prefix;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && after_digit && i + 1 < text.size()) {
      after_digit = false;
      continue;
    }
    const int digit = digit_value(text[i]);
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, Int{base}, &value) ||
        __builtin_add_overflow(value, Int{digit}, &value)) {
      fail("int: the number is beyond 127 bits");
    }
    after_digit = true;
  }
  return negative ? -value : value;
}

std::optional<double> parse_float(std::string_view text) {
  text = stripped(text);
  // Checked by hand, since strtod takes more (hexadecimal, nan(...)).
  std::string plain;
  std::size_t i = 0;
  const auto digits = [&] {
    std::size_t count = 0;
    while (i < text.size()) {
      if (text[i] >= '0' && text[i] <= '9') {
        plain += text[i];
        ++count;
      } else if (text[i] != '_' || count == 0 || text[i - 1] == '_' || i + 1 >= text.size() ||
                 text[i + 1] < '0' || text[i + 1] > '9') {
        break;
      }
      ++i;
    }
    return count;
  };
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) plain += text[i++];
  const std::string word = to_lower(text.substr(i));
  if (word == "inf" || word == "infinity" || word == "nan")
    return std::strtod((plain + word).c_str(), nullptr);
  std::size_t count = digits();
  if (i < text.size() && text[i] == '.') {
    plain += text[i++];
    count += digits();
  }
  if (count == 0) return std::nullopt;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    plain += text[i++];
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) plain += text[i++];
    if (digits() == 0) return std::nullopt;
  }
  return i == text.size() ? std::optional(std::strtod(plain.c_str(), nullptr)) : std::nullopt;
}

Value round_number(const Value& value, int precision) {
  if (value.is_integral()) {
    if (precision >= 0) return Value(value.integral());
    Int unit = 1;
    for (int i = 0; i < -precision; ++i) unit *= 10;
    const Int n = value.integral();
    Int quotient = n / unit;
    const Int rest = n % unit < 0 ? -(n % unit) : n % unit;
    if (rest * 2 > unit || (rest * 2 == unit && quotient % 2 != 0)) quotient += n < 0 ? -1 : 1;
    if (__builtin_mul_overflow(quotient, unit, &quotient)) fail("round: the number is beyond 127 bits");
    return Value(quotient);
  }
  const double x = value.number();
  if (!std::isfinite(x)) return Value(x);
  if (precision >= 0) return Value(std::strtod(fmt::format("{:.{}f}", x, precision).c_str(), nullptr));
  const double unit = std::pow(10.0, -precision);
  return Value(std::nearbyint(x / unit) * unit);
}

}  // namespace tandem::jinja
