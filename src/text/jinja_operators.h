// Python's operators on values. Operands that are undefined raise their hint, wrong types raise what Python
// would say.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja_ast.h"
#include "text/jinja_budget.h"
#include "text/jinja_value.h"

namespace tandem::jinja {

// a + b, a - b, a * b, a / b, a // b, a % b (also printf-style formatting), a ** b.
Value binary(Op op, const Value& a, const Value& b, Budget& budget);
// ==, !=, <, <=, >, >=, in, not in.
bool compare(Op op, const Value& a, const Value& b, Budget& budget);
Value negate(const Value& value);
Value plus(const Value& value);

// object[key] for lists, tuples, ranges, strings and dicts: the element, or nothing if Python would raise.
std::optional<Value> element(const Value& object, const Value& key);
// object[start:stop:step] of a list, tuple or string; each bound may be None.
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step, Budget& budget);

// First `needle` in `text` at or after `from`, or npos; linear time.
std::size_t find_bytes(std::string_view text, std::string_view needle, std::size_t from);

// "..." % values, and "...".format(...) without format specifications.
Text format_percent(const Text& format, const Value& values, Budget& budget);

}  // namespace tandem::jinja
