// Filters that take lists and mappings apart.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"

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
    require_hashable(key);
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

}  // namespace

Filter find_sequence_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> kFilters = {
      {"count", filter_length},
      {"dictsort", filter_dictsort},
      {"first", filter_first},
      {"items", filter_items},
      {"join", filter_join},
      {"last", filter_last},
      {"length", filter_length},
      {"list", filter_list},
      {"map", filter_map},
      {"max", filter_extreme<Which::max>},
      {"min", filter_extreme<Which::min>},
      {"reject", filter_select<Keep::rejected, Look::item>},
      {"rejectattr", filter_select<Keep::rejected, Look::attribute>},
      {"reverse", filter_reverse},
      {"select", filter_select<Keep::selected, Look::item>},
      {"selectattr", filter_select<Keep::selected, Look::attribute>},
      {"sort", filter_sort},
      {"sum", filter_sum},
      {"unique", filter_unique},
  };
  const auto it = kFilters.find(name);
  return it == kFilters.end() ? nullptr : it->second;
}

}  // namespace tandem::jinja
