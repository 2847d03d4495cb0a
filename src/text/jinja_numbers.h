// Numbers from text and rounding, by Python's rules.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja_value.h"

namespace tandem::jinja {

// int(text, base): blanks around, a sign, underscores between digits, a prefix for bases 2, 8, 16 and 0.
std::optional<Int> parse_int(std::string_view text, int base);
// float(text): decimal, exponent, inf, nan; underscores between digits.
std::optional<double> parse_float(std::string_view text);
// round(value, precision), halves to even; an integer stays one.
Value round_number(const Value& value, int precision);

}  // namespace tandem::jinja
