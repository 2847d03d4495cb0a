#include "text/jinja_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "text/jinja_print.h"

namespace tandem::jinja {

namespace {

const char* symbol(Op op) {
  switch (op) {
    case Op::add:
      return "+";
    case Op::sub:
      return "-";
    case Op::mul:
      return "*";
    case Op::div:
      return "/";
    case Op::floor_div:
      return "//";
    case Op::mod:
      return "%";
    default:
      return "**";
  }
}

[[noreturn]] void fail_types(Op op, const Value& a, const Value& b) {
  fail(
      fmt::format("unsupported operand types for {}: '{}' and '{}'", symbol(op), type_name(a), type_name(b)));
}

[[noreturn]] void fail_overflow() { fail("an integer grew beyond 127 bits"); }

Int power(Int base, Int exponent) {
  Int result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return result;
}

Int floor_div(Int a, Int b) {
  const Int q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

Value int_binary(Op op, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow();
      return Value(result);
    case Op::sub:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
      return Value(result);
    case Op::mul:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
      return Value(result);
    case Op::pow:
      if (b < 0) {
        if (a == 0) fail("0 cannot be raised to a negative power");
        return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      return Value(power(a, b));
    default:
      break;
  }
  if (b == 0) fail("division by zero");
  if (op == Op::div) return Value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return int_binary(op == Op::mod ? Op::mul : Op::sub, 0, a);  // the one quotient that overflows
  const Int q = floor_div(a, b);
  return Value(op == Op::floor_div ? q : a - q * b);
}

Value float_binary(Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return Value(a + b);
    case Op::sub:
      return Value(a - b);
    case Op::mul:
      return Value(a * b);
    case Op::pow:
      if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
      if (a < 0 && std::floor(b) != b) fail("a negative number raised to a fraction is not real");
      return Value(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) fail("float division by zero");
  if (op == Op::div) return Value(a / b);
  double mod = std::fmod(a, b);
  double quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) {
    mod += b;
    quotient -= 1;
  }
  if (op == Op::mod) return Value(mod == 0 ? std::copysign(0.0, b) : mod);
  const double floored = std::floor(quotient);
  return Value(quotient == 0 ? std::copysign(0.0, a / b) : quotient - floored > 0.5 ? floored + 1 : floored);
}

Value repeat(const Value& what, Int times, Budget& budget) {
  const std::size_t n = times <= 0 ? 0 : static_cast<std::size_t>(std::min<Int>(times, Int{1} << 60));
  if (what.is_string()) {
    const Text& text = what.text();
    budget.charge_bytes(n, std::max<std::size_t>(text.size(), text.empty() ? 0 : 1));
    Text out;
    if (!text.empty()) {
      for (std::size_t i = 0; i < n; ++i) out.append(text);
    }
    return Value(std::move(out));
  }
  const Sequence& sequence = what.sequence();
  const std::size_t size = sequence.items.size();
  budget.charge_steps(size != 0 && n > SIZE_MAX / size ? SIZE_MAX : n * size);
  Values items;
  if (size != 0) {
    items.reserve(n * size);
    for (std::size_t i = 0; i < n; ++i)
      items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return make_sequence(sequence.type, std::move(items));
}

bool is_list_or_tuple(const Value& value) {
  return value.is_sequence() &&
         (value.sequence().type == Sequence::Type::list || value.sequence().type == Sequence::Type::tuple);
}

Value concatenate(const Value& a, const Value& b, Budget& budget) {
  if (a.is_string() && b.is_string()) {
    budget.charge_bytes(a.text().size() + b.text().size());
    Text out = a.text();
    out.append(b.text());
    return Value(std::move(out));
  }
  if (is_list_or_tuple(a) && is_list_or_tuple(b) && a.sequence().type == b.sequence().type) {
    budget.charge_steps(a.sequence().items.size() + b.sequence().items.size());
    Values items = a.sequence().items;
    items.insert(items.end(), b.sequence().items.begin(), b.sequence().items.end());
    return make_sequence(a.sequence().type, std::move(items));
  }
  fail_types(Op::add, a, b);
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  budget.charge_steps(extent_of(container).weight);
  if (container.is_string()) {
    if (!item.is_string()) {
      fail(fmt::format("'in <string>' requires a string on the left, not {}", type_name(item)));
    }
    return find_bytes(container.bytes(), item.bytes(), 0) != std::string_view::npos;
  }
  if (container.is_dict()) {
    require_hashable(item);
    return container.dict().find(item) != nullptr;
  }
  const Values items = iterate(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& other) { return equal(item, other); });
}

// A slice bound as Python resolves it: None takes the default, negatives count from the end, the rest is
// clamped.
Int bound(const Value& value, Int size, Int lowest, Int highest, Int otherwise) {
  if (value.is_none()) return otherwise;
  if (value.is_undefined()) value.fail_undefined();
  if (!value.is_integral()) fail(fmt::format("a slice bound must be an integer, not {}", type_name(value)));
  const Int index = value.integral() < 0 ? value.integral() + size : value.integral();
  return std::clamp(index, lowest, highest);
}

}  // namespace

std::size_t find_bytes(std::string_view text, std::string_view needle, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

Value binary(Op op, const Value& a, const Value& b, Budget& budget) {
  if (a.is_undefined()) a.fail_undefined();
  if (op == Op::mod && a.is_string()) return Value(format_percent(a.text(), b, budget));
  if (b.is_undefined()) b.fail_undefined();
  if (a.is_integral() && b.is_integral()) return int_binary(op, a.integral(), b.integral());
  if (a.is_number() && b.is_number()) return float_binary(op, a.number(), b.number());
  if (op == Op::add) return concatenate(a, b, budget);
  if (op == Op::mul) {
    const bool left = a.is_string() || is_list_or_tuple(a), right = b.is_string() || is_list_or_tuple(b);
    if (left && b.is_integral()) return repeat(a, b.integral(), budget);
    if (right && a.is_integral()) return repeat(b, a.integral(), budget);
  }
  fail_types(op, a, b);
}

bool compare(Op op, const Value& a, const Value& b, Budget& budget) {
  if (op == Op::in) return contains(b, a, budget);
  if (op == Op::not_in) return !contains(b, a, budget);
  budget.charge_steps(std::min(extent_of(a).weight, extent_of(b).weight));
  switch (op) {
    case Op::eq:
      return equal(a, b);
    case Op::ne:
      return !equal(a, b);
    case Op::lt:
      return less(a, b);
    case Op::gt:
      return less(b, a);
    case Op::le:
      return less(a, b) || equal(a, b);
    default:
      return less(b, a) || equal(a, b);
  }
}

Value negate(const Value& value) {
  if (value.is_undefined()) value.fail_undefined();
  if (value.is_integral()) return int_binary(Op::sub, 0, value.integral());
  if (value.is_float()) return Value(-value.number());
  fail(fmt::format("bad operand type for unary -: '{}'", type_name(value)));
}

Value plus(const Value& value) {
  if (value.is_undefined()) value.fail_undefined();
  if (value.is_integral()) return Value(value.integral());
  if (value.is_float()) return value;
  fail(fmt::format("bad operand type for unary +: '{}'", type_name(value)));
}

std::optional<Value> element(const Value& object, const Value& key) {
  if (object.is_dict()) {
    const Value* found = object.dict().find(key);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  if (!key.is_integral()) return std::nullopt;
  const Int index = key.integral();
  if (object.is_string()) {
    const Text& text = object.text();
    const auto offsets = code_point_offsets(text.bytes());
    const auto size = static_cast<Int>(offsets.size() - 1);
    const Int at = index < 0 ? index + size : index;
    if (at < 0 || at >= size) return std::nullopt;
    return Value(
        text.slice(offsets[static_cast<std::size_t>(at)], offsets[static_cast<std::size_t>(at) + 1]));
  }
  if (!is_list_or_tuple(object) &&
      !(object.is_sequence() && object.sequence().type == Sequence::Type::range)) {
    return std::nullopt;
  }
  const Values& items = object.sequence().items;
  const Int at = index < 0 ? index + static_cast<Int>(items.size()) : index;
  if (at < 0 || at >= static_cast<Int>(items.size())) return std::nullopt;
  return items[static_cast<std::size_t>(at)];
}

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step, Budget& budget) {
  if (object.is_undefined()) object.fail_undefined();
  if (!step.is_none() && !step.is_integral()) {
    fail(fmt::format("a slice step must be an integer, not {}", type_name(step)));
  }
  const Int stride = step.is_none() ? Int{1} : step.integral();
  if (stride == 0) fail("a slice step must not be zero");
  const bool is_range = object.is_sequence() && object.sequence().type == Sequence::Type::range;
  if (!object.is_string() && !is_list_or_tuple(object) && !is_range) {
    fail(fmt::format("'{}' object cannot be sliced", type_name(object)));
  }

  std::vector<std::size_t> offsets;
  if (object.is_string()) offsets = code_point_offsets(object.bytes());
  const std::size_t count = object.is_string() ? offsets.size() - 1 : object.sequence().items.size();
  budget.charge_steps(count);
  const auto size = static_cast<Int>(count);
  const Int lowest = stride > 0 ? 0 : -1, highest = stride > 0 ? size : size - 1;
  const Int first = bound(start, size, lowest, highest, stride > 0 ? lowest : highest);
  const Int last = bound(stop, size, lowest, highest, stride > 0 ? highest : lowest);
  const auto for_each = [&](auto visit) {
    for (Int i = first; stride > 0 ? i < last : i > last;) {
      visit(static_cast<std::size_t>(i));
      if (stride > size || stride < -size) break;  // the next step leaves, and might overflow
      i += stride;
    }
  };

  if (object.is_string()) {
    const Text& text = object.text();
    budget.charge_bytes(text.size());
    if (stride == 1) {
      return first >= last ? Value(Text())
                           : Value(text.slice(offsets[static_cast<std::size_t>(first)],
                                              offsets[static_cast<std::size_t>(last)]));
    }
    Text out;
    for_each([&](std::size_t i) { out.append(text.slice(offsets[i], offsets[i + 1])); });
    return Value(std::move(out));
  }
  Values items;
  for_each([&](std::size_t i) { items.push_back(object.sequence().items[i]); });
  return make_sequence(object.sequence().type, std::move(items));
}

}  // namespace tandem::jinja
