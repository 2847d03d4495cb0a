#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_numbers.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace tandem::jinja {

namespace {

// A sorting key as Jinja's filters take it: strings without case unless asked.
Value without_case(Interpreter& in, const Value& value, bool case_sensitive) {
  return case_sensitive || !value.is_string() ? value : change_case(in, value.text(), Case::lower);
}

// x.a.0.b for the attribute "a.0.b"; `otherwise` (may be null) replaces what is undefined on the way.
Value follow(Interpreter& in, Value value, const Value& attribute, const Value* otherwise) {
  if (!attribute.is_string()) {
    value = in.item(value, attribute);
    return otherwise != nullptr && value.is_undefined() ? *otherwise : value;
  }
  const std::string& path = attribute.bytes();
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool digits =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    std::int64_t index = 0;
    if (digits) std::from_chars(part.data(), part.data() + part.size(), index);
    value = in.item(value, digits ? Value::integer(index) : Value(Text(part, attribute.text().origin())));
    if (otherwise != nullptr && value.is_undefined()) value = *otherwise;
    begin = end + 1;
  }
  return value;
}

// The elements, charged.
Values elements(Interpreter& in, const Value& value) {
  Values items = iterate(value);
  in.budget().charge_steps(items.size());
  return items;
}

Value generator(Values items) { return make_sequence(Sequence::Type::generator, std::move(items)); }

// --- text
// ---------------------------------------------------------------------------------------------------------

Value filter_trim(Interpreter& in, const Value& x, const Args& args) {
  return strip(in, in.text_of(x), Side::both, Bound("trim", args, {"chars"}).get(0));
}

template <Case kCase>
Value filter_case(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("the filter", args, {});
  return change_case(in, in.text_of(x), kCase);
}

Value filter_title(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("title", args, {});
  const Text text = in.text_of(x);
  const std::string& bytes = text.bytes();
  in.budget().charge_bytes(3 * bytes.size());
  std::string out;
  const auto separates = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (std::size_t i = 0; i < bytes.size();) {
    std::size_t end = i + code_point_size(bytes, i);
    if (separates(code_point_at(bytes, i))) {
      out.append(bytes, i, end - i);
    } else {
      out += to_upper(std::string_view(bytes).substr(i, end - i));
      const std::size_t rest = end;
      while (end < bytes.size() && !separates(code_point_at(bytes, end))) end += code_point_size(bytes, end);
      out += to_lower(std::string_view(bytes).substr(rest, end - rest));
    }
    i = end;
  }
  return Value(Text(std::move(out), text.origin()));
}

Value filter_string(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("the filter", args, {});
  return Value(in.text_of(x));
}

Value filter_escape(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("escape", args, {});
  const Text text = in.text_of(x);
  in.budget().charge_bytes(5, text.size());
  std::string out;
  for (const char c : text.bytes()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return Value(Text(std::move(out), text.origin()));
}

Value filter_replace(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("replace", args, {"old", "new", "count"});
  return replace(in, in.text_of(x), in.text_of(bound.required(0)), in.text_of(bound.required(1)),
                 bound.get(2) == nullptr ? Int{-1} : bound.integer(2, -1));
}

Value filter_indent(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("indent", args, {"width", "first", "blank"});
  if (!x.is_string()) fail(fmt::format("indent needs a string, not {}", type_name(x)));
  Text indention;
  if (bound.has(0) && bound.required(0).is_string()) {
    indention = bound.text(0);
  } else {
    const Int width = std::clamp<Int>(bound.integer(0, 4), 0, 1'000'000);
    indention = Text(std::string(static_cast<std::size_t>(width), ' '), Origin::templated);
  }
  Text text = x.text();
  text.append("\n", Origin::templated);
  const std::vector<Text> lines = split_lines(text, false);
  in.budget().charge_steps(lines.size());
  in.budget().charge_bytes(text.size());
  in.budget().charge_bytes(lines.size(), indention.size());
  Text out;
  if (bound.flag(1, false)) out.append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n", Origin::templated);
      if (!lines[i].empty() || bound.flag(2, false)) out.append(indention);
    }
    out.append(lines[i]);
  }
  return Value(std::move(out));
}

Value filter_format(Interpreter& in, const Value& x, const Args& args) {
  if (args.keyword.empty())
    return Value(format_percent(in.text_of(x), make_tuple(args.positional), in.budget()));
  if (!args.positional.empty()) fail("format takes positional or keyword arguments, not both");
  Dict values;
  for (const auto& [name, value] : args.keyword) values.set(Value(Text(name, Origin::templated)), value);
  return Value(format_percent(in.text_of(x), make_dict(std::move(values)), in.budget()));
}

Value filter_tojson(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (const Value* indent = bound.get(1)) {
    style.indent =
        indent->is_string()
            ? indent->bytes()
            : std::string(static_cast<std::size_t>(std::clamp<Int>(bound.integer(1, 0), 0, 1000)), ' ');
    style.item_separator = ",";
  }
  if (const Value* separators = bound.get(2)) {
    const Values pair = iterate(*separators);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      fail("tojson: 'separators' must be a pair of strings");
    }
    style.item_separator = pair[0].bytes();
    style.key_separator = pair[1].bytes();
  }
  return Value(Text(to_json(x, style, in.budget()), Origin::content));
}

// --- numbers
// ------------------------------------------------------------------------------------------------------

Value filter_int(Interpreter&, const Value& x, const Args& args) {
  const Bound bound("int", args, {"default", "base"});
  const Int base = bound.integer(1, 10);
  if (x.is_undefined()) x.fail_undefined();
  std::optional<Int> result;
  if (x.is_integral()) result = x.integral();
  if (x.is_string()) result = parse_int(x.bytes(), static_cast<int>(std::clamp<Int>(base, 0, 37)));
  if (!result) {
    const std::optional<double> real = x.is_float()    ? std::optional(x.number())
                                       : x.is_string() ? parse_float(x.bytes())
                                                       : std::nullopt;
    if (real && !std::isnan(*real)) {
      if (std::abs(*real) >= 0x1p126) fail("int: the number is beyond 126 bits");
      result = static_cast<Int>(*real);
    }
  }
  return result ? Value(*result) : bound.has(0) ? bound.required(0) : Value::integer(0);
}

Value filter_float(Interpreter&, const Value& x, const Args& args) {
  const Bound bound("float", args, {"default"});
  if (x.is_undefined()) x.fail_undefined();
  if (x.is_number()) return Value(x.number());
  if (x.is_string()) {
    if (const auto real = parse_float(x.bytes())) return Value(*real);
  }
  return bound.has(0) ? bound.required(0) : Value(0.0);
}

Value filter_abs(Interpreter&, const Value& x, const Args& args) {
  const Bound none("abs", args, {});
  if (x.is_integral()) return x.integral() < 0 ? negate(x) : Value(x.integral());
  if (x.is_float()) return Value(std::fabs(x.number()));
  fail(fmt::format("abs needs a number, not {}", type_name(x)));
}

Value filter_round(Interpreter&, const Value& x, const Args& args) {
  const Bound bound("round", args, {"precision", "method"});
  if (!x.is_number()) fail(fmt::format("round needs a number, not {}", type_name(x)));
  const Int precision = bound.integer(0, 0);
  if (precision < -30 || precision > 300) fail("round: 'precision' must be between -30 and 300");
  const std::string method = bound.has(1) ? bound.text(1).bytes() : "common";
  if (method == "common") return round_number(x, static_cast<int>(precision));
  if (method != "ceil" && method != "floor") fail("round: 'method' must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = x.number() * scale;
  if (!std::isfinite(scaled)) fail("round: the number is too large");
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// --- sequences
// ----------------------------------------------------------------------------------------------------

Value filter_length(Interpreter&, const Value& x, const Args& args) {
  const Bound none("length", args, {});
  return Value::size(length(x));
}

Value filter_list(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("list", args, {});
  return make_list(elements(in, x));
}

Value filter_items(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("items", args, {});
  if (x.is_undefined()) return generator({});
  if (!x.is_dict()) fail("items: can only get item pairs from a mapping");
  Values pairs;
  in.budget().charge_steps(x.dict().entries.size());
  for (const auto& [key, value] : x.dict().entries) pairs.push_back(make_tuple({key, value}));
  return generator(std::move(pairs));
}

Value filter_first(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("first", args, {});
  Values items = elements(in, x);
  return items.empty() ? Value::undefined("no first item, the sequence was empty") : std::move(items.front());
}

Value filter_last(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("last", args, {});
  if (!has_length(x)) fail(fmt::format("'{}' object is not reversible", type_name(x)));
  Values items = elements(in, x);
  return items.empty() ? Value::undefined("no last item, the sequence was empty") : std::move(items.back());
}

Value filter_reverse(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("reverse", args, {});
  if (x.is_string()) return slice(x, Value(), Value(), Value::integer(-1), in.budget());
  Values items = elements(in, x);
  std::reverse(items.begin(), items.end());
  return x.is_sequence() && x.sequence().type == Sequence::Type::generator ? make_list(std::move(items))
                                                                           : generator(std::move(items));
}

Value filter_join(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("join", args, {"d", "attribute"});
  Values items = elements(in, x);
  if (const Value* attribute = bound.get(1)) {
    for (Value& item : items) item = follow(in, item, *attribute, nullptr);
  }
  return join(in, bound.has(0) ? in.text_of(bound.required(0)) : Text(), items);
}

Value filter_map(Interpreter& in, const Value& x, const Args& args) {
  if (!truthy(x)) return generator({});
  Values items = elements(in, x);
  if (args.positional.empty()) {
    const Bound bound("map", args, {"attribute", "default"});
    for (Value& item : items) item = follow(in, item, bound.required(0), bound.get(1));
    return generator(std::move(items));
  }
  if (!args.positional[0].is_string()) fail("map needs the name of a filter");
  const Args rest{Values(args.positional.begin() + 1, args.positional.end()), args.keyword};
  for (Value& item : items) item = in.apply_filter(args.positional[0].bytes(), item, rest);
  return generator(std::move(items));
}

enum class Keep : bool { rejected, selected };
enum class Look : bool { item, attribute };

template <Keep kKeep, Look kLook>
Value filter_select(Interpreter& in, const Value& x, const Args& args) {
  if (!truthy(x)) return generator({});
  constexpr std::size_t kSkip = kLook == Look::attribute ? 1 : 0;
  if (args.positional.size() < kSkip) fail("selectattr and rejectattr need the name of an attribute");
  Args rest{{}, args.keyword};
  std::string test;
  if (args.positional.size() > kSkip) {
    if (!args.positional[kSkip].is_string()) fail("select and reject need the name of a test");
    test = args.positional[kSkip].bytes();
    rest.positional.assign(args.positional.begin() + kSkip + 1, args.positional.end());
  }
  Values kept;
  for (const Value& item : elements(in, x)) {
    const Value subject = kLook == Look::attribute ? follow(in, item, args.positional[0], nullptr) : item;
    const bool passes = test.empty() ? truthy(subject) : in.apply_test(test, subject, rest);
    if (passes == (kKeep == Keep::selected)) kept.push_back(item);
  }
  return generator(std::move(kept));
}

using Less = std::function<bool(const Value&, const Value&)>;

// The items in the order of their keys; equal ones keep their places, in reverse too.
Values sorted(Interpreter& in, Values items, const Values& keys, bool reverse) {
  std::size_t weight = 1;
  for (const Value& key : keys) weight += extent_of(key).weight;
  std::size_t rounds = 1;
  while ((std::size_t{1} << rounds) < items.size()) ++rounds;
  in.budget().charge_steps(weight * rounds);
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  Values result;
  for (const std::size_t i : order) result.push_back(items[i]);
  return result;
}

Value filter_sort(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("sort", args, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound.flag(1, false);
  Values items = elements(in, x), keys;
  for (const Value& item : items) {
    const Value* attribute = bound.get(2);
    if (attribute == nullptr || !attribute->is_string()) {
      keys.push_back(
          without_case(in, attribute == nullptr ? item : in.item(item, *attribute), case_sensitive));
      continue;
    }
    Values parts;  // "a,b": by a, then by b
    const std::string& names = attribute->bytes();
    for (std::size_t begin = 0; begin <= names.size();) {
      const std::size_t end = std::min(names.find(',', begin), names.size());
      const Value part(attribute->text().slice(begin, end));
      parts.push_back(without_case(in, follow(in, item, part, nullptr), case_sensitive));
      begin = end + 1;
    }
    keys.push_back(make_list(std::move(parts)));
  }
  return make_list(sorted(in, std::move(items), keys, bound.flag(0, false)));
}

Value filter_dictsort(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("dictsort", args, {"case_sensitive", "by", "reverse"});
  if (!x.is_dict()) fail(fmt::format("dictsort needs a mapping, not {}", type_name(x)));
  const std::string by = bound.has(1) ? bound.text(1).bytes() : "key";
  if (by != "key" && by != "value") fail("dictsort: 'by' must be \"key\" or \"value\"");
  Values items, keys;
  for (const auto& [key, value] : x.dict().entries) {
    items.push_back(make_tuple({key, value}));
    keys.push_back(without_case(in, by == "key" ? key : value, bound.flag(0, false)));
  }
  return make_list(sorted(in, std::move(items), keys, bound.flag(2, false)));
}

Value filter_unique(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("unique", args, {"case_sensitive", "attribute"});
  std::unordered_set<std::string> seen_strings;
  Values seen, kept;
  for (const Value& item : elements(in, x)) {
    const Value whole = bound.get(1) == nullptr ? item : follow(in, item, *bound.get(1), nullptr);
    const Value key = without_case(in, whole, bound.flag(0, false));
    if (key.is_string()) {
      if (seen_strings.insert(key.bytes()).second) kept.push_back(item);
      continue;
    }
    in.budget().charge_steps(seen.size() * extent_of(key).weight);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& other) { return equal(key, other); }))
      continue;
    seen.push_back(key);
    kept.push_back(item);
  }
  return generator(std::move(kept));
}

enum class Which : bool { min, max };

template <Which kWhich>
Value filter_extreme(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("min or max", args, {"case_sensitive", "attribute"});
  const Values items = elements(in, x);
  if (items.empty()) return Value::undefined("no aggregated item, the sequence was empty");
  std::size_t best = 0;
  Value best_key;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Value whole = bound.get(1) == nullptr ? items[i] : follow(in, items[i], *bound.get(1), nullptr);
    Value key = without_case(in, whole, bound.flag(0, false));
    in.budget().charge_steps(extent_of(key).weight);
    if (i == 0 || (kWhich == Which::min ? less(key, best_key) : less(best_key, key))) {
      best = i;
      best_key = std::move(key);
    }
  }
  return items[best];
}

Value filter_sum(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("sum", args, {"attribute", "start"});
  Value total = bound.has(1) ? bound.required(1) : Value::integer(0);
  if (total.is_string()) fail("sum cannot add strings; use join");
  for (const Value& item : elements(in, x)) {
    total = binary(Op::add, total, bound.get(0) == nullptr ? item : follow(in, item, *bound.get(0), nullptr),
                   in.budget());
  }
  return total;
}

// --- any value
// ----------------------------------------------------------------------------------------------------

Value filter_default(Interpreter&, const Value& x, const Args& args) {
  const Bound bound("default", args, {"default_value", "boolean"});
  if (!x.is_undefined() && !(bound.flag(1, false) && !truthy(x))) return x;
  return bound.has(0) ? bound.required(0) : Value(Text());
}

Value filter_attr(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("attr", args, {"name"});
  const std::string& name = bound.text(0).bytes();
  // Unlike x.name, never an element of a mapping.
  if (x.is_dict() && find_method(x, name) == MethodAccess::none) {
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return in.attribute(x, name);
}

}  // namespace

Filter find_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> kFilters = {
      {"abs", filter_abs},
      {"attr", filter_attr},
      {"capitalize", filter_case<Case::capitalize>},
      {"count", filter_length},
      {"d", filter_default},
      {"default", filter_default},
      {"dictsort", filter_dictsort},
      {"e", filter_escape},
      {"escape", filter_escape},
      {"first", filter_first},
      {"float", filter_float},
      {"format", filter_format},
      {"indent", filter_indent},
      {"int", filter_int},
      {"items", filter_items},
      {"join", filter_join},
      {"last", filter_last},
      {"length", filter_length},
      {"list", filter_list},
      {"lower", filter_case<Case::lower>},
      {"map", filter_map},
      {"max", filter_extreme<Which::max>},
      {"min", filter_extreme<Which::min>},
      {"reject", filter_select<Keep::rejected, Look::item>},
      {"rejectattr", filter_select<Keep::rejected, Look::attribute>},
      {"replace", filter_replace},
      {"reverse", filter_reverse},
      {"round", filter_round},
      {"safe", filter_string},
      {"select", filter_select<Keep::selected, Look::item>},
      {"selectattr", filter_select<Keep::selected, Look::attribute>},
      {"sort", filter_sort},
      {"string", filter_string},
      {"sum", filter_sum},
      {"title", filter_title},
      {"tojson", filter_tojson},
      {"trim", filter_trim},
      {"unique", filter_unique},
      {"upper", filter_case<Case::upper>},
  };
  const auto it = kFilters.find(name);
  return it == kFilters.end() ? nullptr : it->second;
}

Value Interpreter::apply_filter(const std::string& name, const Value& subject, const Args& args) {
  const Filter filter = find_filter(name);
  if (filter == nullptr) fail(fmt::format("there is no filter named '{}'", name));
  const Budget::Level level(budget_);
  return filter(*this, subject, args);
}

}  // namespace tandem::jinja
