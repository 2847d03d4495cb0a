// What templates may call by name: filters (`x | f`), tests (`x is t`), methods (`x.m()`) and the loop's
// attributes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_interpreter.h"

namespace tandem::jinja {

// filters: abs capitalize count d default dictsort e escape first float format indent int items join last
// length list lower map max min reject rejectattr replace reverse round safe select selectattr sort string
// sum title tojson trim unique upper, and attr. tojson is json.dumps(x, ensure_ascii=False, indent,
// separators, sort_keys), as chat templates are run with, not Jinja's HTML-safe one. nullptr for another
// name.
using Filter = Value (*)(Interpreter&, const Value& subject, const Args&);
Filter find_filter(std::string_view name);
Filter find_sequence_filter(std::string_view name);  // its part that works on lists and mappings

// tests: all of Jinja 3.1's. nullptr for another name.
using Test = bool (*)(Interpreter&, const Value& subject, const Args&);
Test find_test(std::string_view name);

// Methods of str, dict, list and loop that Jinja's immutable sandbox lets through; `forbidden` are those that
// it refuses (they change the object, or begin with an underscore).
enum class MethodAccess : std::uint8_t { none, allowed, forbidden };
MethodAccess find_method(const Value& object, std::string_view name);
Value call_method(Interpreter& interpreter, const Method& method, const Args& args);

// loop.index and its like; nothing for another name.
std::optional<Value> loop_attribute(const Loop& loop, std::string_view name);

// --- pieces that filters and methods share

enum class Case : std::uint8_t { upper, lower, capitalize };
Value change_case(Interpreter& interpreter, const Text& text, Case to);
// At most `count` replacements from the left; negative: all.
Value replace(Interpreter& interpreter, const Text& text, const Text& old, const Text& replacement,
              Int count);
// str.strip() and its like; `chars` may be null (whitespace).
Value strip(Interpreter& interpreter, const Text& text, Side side, const Value* chars);
Value join(Interpreter& interpreter, const Text& separator, const Values& items);
// Without line ends unless `keep_ends`.
std::vector<Text> split_lines(const Text& text, bool keep_ends);

}  // namespace tandem::jinja
