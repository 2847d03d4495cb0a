#include "text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::jinja {

namespace {

// -1, 0, 1; exact between integers, and between an integer and a float as far as a double goes.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    return a.integral() < b.integral() ? -1 : a.integral() > b.integral() ? 1 : 0;
  }
  return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : a.number() == b.number() ? 0 : 2;
}

bool is_list_like(const Value& value, Sequence::Type type) {
  return value.is_sequence() && value.sequence().type == type;
}

bool equal_dicts(const Dict& a, const Dict& b) {
  return a.entries.size() == b.entries.size() &&
         std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& e) {
           const Value* other = b.find(e.first);
           return other != nullptr && equal(e.second, *other);
         });
}

bool is_generator(const Value& value) { return is_list_like(value, Sequence::Type::generator); }

}  // namespace

void fail(std::string message) { throw Failure{std::move(message)}; }

Value Value::undefined(std::string hint) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(hint))};
  return value;
}

void Extent::add(Extent child) {
  nesting = std::max(nesting, 1 + child.nesting);
  weight += child.weight;
  if (nesting > kMaxNesting) fail(fmt::format("a value nests deeper than {} levels", kMaxNesting));
  if (weight > kMaxWeight) fail(fmt::format("a value holds more than {} elements", kMaxWeight));
}

Extent extent_of(const Value& value) {
  if (value.is_string()) return {0, 1 + value.text().size() / 64};
  if (value.is_sequence()) return value.sequence().extent;
  if (value.is_dict()) return value.dict().extent;
  Extent extent{1, 1};
  if (const auto* method = value.get_if<std::shared_ptr<const Method>>()) {
    extent.add(extent_of((*method)->object));
  } else if (const auto* loop = value.get_if<std::shared_ptr<Loop>>()) {
    for (const Value& item : (*loop)->items) extent.add(extent_of(item));
  } else {
    extent.nesting = 0;
  }
  return extent;
}

void Value::fail_undefined() const { fail(*std::get<Undefined>(data_).hint); }

Value make_sequence(Sequence::Type type, Values items) {
  Sequence sequence;
  sequence.type = type;
  for (const Value& item : items) sequence.extent.add(extent_of(item));
  sequence.items = std::move(items);
  return Value(std::make_shared<const Sequence>(std::move(sequence)));
}

std::size_t Dict::index_of(const Value& key) const {
  if (key.is_string()) {
    const auto it = string_keys_.find(key.bytes());
    return it == string_keys_.end() ? entries.size() : it->second;
  }
  const auto it = std::find_if(entries.begin(), entries.end(),
                               [&](const auto& e) { return !e.first.is_string() && equal(e.first, key); });
  return static_cast<std::size_t>(it - entries.begin());
}

const Value* Dict::find(const Value& key) const {
  const std::size_t index = index_of(key);
  return index == entries.size() ? nullptr : &entries[index].second;
}

const Value* Dict::find(const std::string& key) const {
  const auto it = string_keys_.find(key);
  return it == string_keys_.end() ? nullptr : &entries[it->second].second;
}

void Dict::set(const Value& key, Value value) {
  require_hashable(key);
  extent.add(extent_of(key));
  extent.add(extent_of(value));
  const std::size_t index = index_of(key);
  if (index < entries.size()) {
    entries[index].second = std::move(value);
    return;
  }
  if (key.is_string()) string_keys_.emplace(key.bytes(), index);
  entries.emplace_back(key, std::move(value));
}

std::string type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.is_bool()) return "bool";
  if (value.is_int()) return "int";
  if (value.is_float()) return "float";
  if (value.is_string()) return "str";
  if (value.is_dict()) return "dict";
  if (value.is_sequence()) {
    switch (value.sequence().type) {
      case Sequence::Type::list:
        return "list";
      case Sequence::Type::tuple:
        return "tuple";
      case Sequence::Type::range:
        return "range";
      case Sequence::Type::keys:
        return "dict_keys";
      case Sequence::Type::values:
        return "dict_values";
      case Sequence::Type::items:
        return "dict_items";
      case Sequence::Type::generator:
        return "generator";
    }
  }
  if (value.get_if<Namespace*>()) return "Namespace";
  if (value.get_if<std::shared_ptr<const Macro>>()) return "Macro";
  if (value.get_if<std::shared_ptr<Loop>>()) return "LoopContext";
  return "function";
}

bool truthy(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_integral()) return value.integral() != 0;
  if (value.is_float()) return value.number() != 0;
  if (value.is_string()) return !value.text().empty();
  if (value.is_dict()) return !value.dict().entries.empty();
  if (value.is_sequence() && !is_generator(value)) return !value.sequence().items.empty();
  return true;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.is_string() && b.is_string()) return a.bytes() == b.bytes();
  if (a.is_undefined() || a.is_none()) return a.is_undefined() ? b.is_undefined() : b.is_none();
  if (a.is_dict() && b.is_dict()) return equal_dicts(a.dict(), b.dict());
  if (a.is_sequence() && b.is_sequence()) {
    const Sequence &x = a.sequence(), &y = b.sequence();
    if (&x == &y) return true;
    if (x.type != y.type || x.type == Sequence::Type::generator || x.type == Sequence::Type::values)
      return false;
    return std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), equal);
  }
  if (const auto* x = a.get_if<Namespace*>()) {
    const auto* y = b.get_if<Namespace*>();
    return y != nullptr && *x == *y;
  }
  if (const auto* x = a.get_if<std::shared_ptr<const Macro>>()) {
    const auto* y = b.get_if<std::shared_ptr<const Macro>>();
    return y != nullptr && *x == *y;
  }
  return false;
}

bool less(const Value& a, const Value& b) {
  if (a.is_undefined()) a.fail_undefined();
  if (b.is_undefined()) b.fail_undefined();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_string() && b.is_string()) return a.bytes() < b.bytes();  // UTF-8 sorts as its code points do
  for (const auto type : {Sequence::Type::list, Sequence::Type::tuple}) {
    if (!is_list_like(a, type) || !is_list_like(b, type)) continue;
    const Values &x = a.sequence().items, &y = b.sequence().items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i])) return less(x[i], y[i]);
    }
    return x.size() < y.size();
  }
  fail(fmt::format("'<' is not supported between '{}' and '{}'", type_name(a), type_name(b)));
}

void require_hashable(const Value& value) {
  bool refused = value.is_dict();
  if (value.is_sequence()) {
    const Sequence& sequence = value.sequence();
    if (sequence.type == Sequence::Type::tuple) {
      for (const Value& item : sequence.items) require_hashable(item);
    }
    refused = sequence.type == Sequence::Type::list || sequence.type == Sequence::Type::keys ||
              sequence.type == Sequence::Type::items;
  }
  if (refused) fail(fmt::format("unhashable type: '{}'", type_name(value)));
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is_sequence() || value.is_dict();
}

Values iterate(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_sequence()) {
    const Sequence& sequence = value.sequence();
    if (sequence.type != Sequence::Type::generator) return sequence.items;
    if (sequence.consumed) return {};
    sequence.consumed = true;
    return sequence.items;
  }
  Values items;
  if (value.is_dict()) {
    for (const auto& entry : value.dict().entries) items.push_back(entry.first);
    return items;
  }
  if (value.is_string()) {
    const auto offsets = code_point_offsets(value.bytes());
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      items.emplace_back(value.text().slice(offsets[i], offsets[i + 1]));
    }
    return items;
  }
  fail(fmt::format("'{}' object is not iterable", type_name(value)));
}

bool has_length(const Value& value) { return is_iterable(value) && !is_generator(value); }

std::size_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return count_code_points(value.bytes());
  if (value.is_dict()) return value.dict().entries.size();
  if (has_length(value)) return value.sequence().items.size();
  fail(fmt::format("object of type '{}' has no length", type_name(value)));
}

}  // namespace tandem::jinja
