// Values as text: what Python's str() and repr() and json.dumps() print.
#pragma once

#include <optional>
#include <string>

#include "text/jinja_budget.h"
#include "text/jinja_value.h"

namespace tandem::jinja {

// str(value): strings unchanged (origin kept), undefined as nothing, floats as Python writes them, containers
// by repr(). Generators and ranges have no useful form and fail.
Text to_text(const Value& value, Budget& budget);

// repr(value), content.
std::string repr(const Value& value, Budget& budget);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// json.dumps(value). Fails for what has no JSON form (undefined, macros, ...).
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

// Shortest digits that read back as the same double, laid out as Python does: 1.0, 0.1, 1e+16, inf.
std::string format_float(double value);
std::string format_int(Int value);

}  // namespace tandem::jinja
