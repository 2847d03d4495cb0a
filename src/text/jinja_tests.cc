#include <fmt/format.h>
#include <unicode/uchar.h>

#include <cmath>
#include <unordered_map>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace tandem::jinja {

namespace {

template <bool (*kIs)(const Value&)>
bool test_kind(Interpreter&, const Value& x, const Args& args) {
  const Bound none("the test", args, {});
  return kIs(x);
}

template <Op kOp>
bool test_compare(Interpreter& in, const Value& x, const Args& args) {
  return compare(kOp, x, Bound("the test", args, {"other"}).required(0), in.budget());
}

bool divides(Interpreter& in, const Value& x, const Value& by, Int rest) {
  return equal(binary(Op::mod, x, by, in.budget()), Value(rest));
}

bool test_odd(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("odd", args, {});
  return divides(in, x, Value::integer(2), 1);
}

bool test_even(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("even", args, {});
  return divides(in, x, Value::integer(2), 0);
}

bool test_divisible_by(Interpreter& in, const Value& x, const Args& args) {
  return divides(in, x, Bound("divisibleby", args, {"num"}).required(0), 0);
}

bool test_same_as(Interpreter&, const Value& x, const Args& args) {
  const Bound bound("sameas", args, {"other"});
  const Value& other = bound.required(0);
  // Python's identity, for what templates can tell apart: the singletons, and otherwise type and value.
  return type_name(x) == type_name(other) && equal(x, other);
}

// Python's str.isupper() and str.islower(): some cased character, and none of the other case.
bool all_cased(const std::string& text, bool (*is_case)(UChar32)) {
  bool any = false;
  for (std::size_t i = 0; i < text.size(); i += code_point_size(text, i)) {
    const auto c = static_cast<UChar32>(code_point_at(text, i));
    if (!u_hasBinaryProperty(c, UCHAR_CASED)) continue;
    if (!is_case(c)) return false;
    any = true;
  }
  return any;
}

bool test_lower(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("lower", args, {});
  return all_cased(in.text_of(x).bytes(), [](UChar32 c) { return u_isULowercase(c) != 0; });
}

bool test_upper(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("upper", args, {});
  return all_cased(in.text_of(x).bytes(), [](UChar32 c) { return u_isUUppercase(c) != 0; });
}

bool test_filter(Interpreter&, const Value& x, const Args& args) {
  const Bound none("filter", args, {});
  return x.is_string() && find_filter(x.bytes()) != nullptr;
}

bool test_test(Interpreter&, const Value& x, const Args& args) {
  const Bound none("test", args, {});
  return x.is_string() && find_test(x.bytes()) != nullptr;
}

bool is_defined(const Value& x) { return !x.is_undefined(); }
bool is_undefined(const Value& x) { return x.is_undefined(); }
bool is_none(const Value& x) { return x.is_none(); }
bool is_string(const Value& x) { return x.is_string(); }
bool is_mapping(const Value& x) { return x.is_dict(); }
bool is_integer(const Value& x) { return x.is_int(); }
bool is_float(const Value& x) { return x.is_float(); }
bool is_number(const Value& x) { return x.is_number(); }
bool is_boolean(const Value& x) { return x.is_bool(); }
bool is_true(const Value& x) { return x.is_bool() && x.boolean(); }
bool is_false(const Value& x) { return x.is_bool() && !x.boolean(); }
bool is_escaped(const Value&) { return false; }

// What has a length and takes a subscript: text, mappings and even the undefined, but not the views of a
// dict.
bool is_sequence(const Value& x) {
  if (!x.is_sequence()) return has_length(x);
  const Sequence::Type type = x.sequence().type;
  return type == Sequence::Type::list || type == Sequence::Type::tuple || type == Sequence::Type::range;
}

bool is_callable(const Value& x) {
  return x.is_undefined() || x.get_if<std::shared_ptr<const Macro>>() ||
         x.get_if<std::shared_ptr<const Method>>() || x.get_if<Global>() || x.get_if<std::shared_ptr<Loop>>();
}

}  // namespace

Test find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, Test> kTests = {
      {"!=", test_compare<Op::ne>},
      {"<", test_compare<Op::lt>},
      {"<=", test_compare<Op::le>},
      {"==", test_compare<Op::eq>},
      {">", test_compare<Op::gt>},
      {">=", test_compare<Op::ge>},
      {"boolean", test_kind<is_boolean>},
      {"callable", test_kind<is_callable>},
      {"defined", test_kind<is_defined>},
      {"divisibleby", test_divisible_by},
      {"eq", test_compare<Op::eq>},
      {"equalto", test_compare<Op::eq>},
      {"escaped", test_kind<is_escaped>},
      {"even", test_even},
      {"false", test_kind<is_false>},
      {"filter", test_filter},
      {"float", test_kind<is_float>},
      {"ge", test_compare<Op::ge>},
      {"greaterthan", test_compare<Op::gt>},
      {"gt", test_compare<Op::gt>},
      {"in", test_compare<Op::in>},
      {"integer", test_kind<is_integer>},
      {"iterable", test_kind<is_iterable>},
      {"le", test_compare<Op::le>},
      {"lessthan", test_compare<Op::lt>},
      {"lower", test_lower},
      {"lt", test_compare<Op::lt>},
      {"mapping", test_kind<is_mapping>},
      {"ne", test_compare<Op::ne>},
      {"none", test_kind<is_none>},
      {"number", test_kind<is_number>},
      {"odd", test_odd},
      {"sameas", test_same_as},
      {"sequence", test_kind<is_sequence>},
      {"string", test_kind<is_string>},
      {"test", test_test},
      {"true", test_kind<is_true>},
      {"undefined", test_kind<is_undefined>},
      {"upper", test_upper},
  };
  const auto it = kTests.find(name);
  return it == kTests.end() ? nullptr : it->second;
}

bool Interpreter::apply_test(const std::string& name, const Value& subject, const Args& args) {
  const Test test = find_test(name);
  if (test == nullptr) fail(fmt::format("there is no test named '{}'", name));
  return test(*this, subject, args);
}

}  // namespace tandem::jinja
