// The interpreter's access to attributes and elements, and its calls.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_scope.h"

namespace tandem::jinja {

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) object.fail_undefined();
  if (const auto* ns = object.get_if<Namespace*>()) {
    if (const Value* found = (*ns)->attributes.find(name)) return *found;
  } else if (const auto* loop = object.get_if<std::shared_ptr<Loop>>()) {
    if (const auto found = loop_attribute(**loop, name)) return *found;
  }
  const MethodAccess access = find_method(object, name);
  if (access == MethodAccess::allowed) return Value(std::make_shared<const Method>(Method{object, name}));
  if (access == MethodAccess::forbidden) {
    return Value::undefined(
        fmt::format("access to attribute '{}' of a {} is unsafe in a template", name, type_name(object)));
  }
  if (object.is_dict()) {
    if (const Value* found = object.dict().find(name)) return *found;
  }
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", type_name(object), name));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) object.fail_undefined();
  budget_.charge_steps(object.is_string() ? object.text().size() / 16 : 1);
  if (auto found = element(object, key)) return *std::move(found);
  if (key.is_string()) {
    if (!object.is_dict()) return attribute(object, key.bytes());
    if (find_method(object, key.bytes()) == MethodAccess::allowed) return attribute(object, key.bytes());
  }
  return Value::undefined(
      key.is_string() || key.is_number()
          ? fmt::format("'{} object' has no element {}", type_name(object), repr(key, budget_))
          : fmt::format("'{} object' has no such element", type_name(object)));
}

Value Interpreter::call(const Value& callee, const Args& args) {
  if (callee.is_undefined()) callee.fail_undefined();
  if (const auto* macro = callee.get_if<std::shared_ptr<const Macro>>()) return call_macro(**macro, args);
  if (const auto* method = callee.get_if<std::shared_ptr<const Method>>())
    return call_method(*this, **method, args);
  if (const auto* global = callee.get_if<Global>()) return call_global(*global, args);
  fail(fmt::format("'{}' object is not callable", type_name(callee)));
}

std::shared_ptr<const Macro> Interpreter::make_macro(const Stmt& definition, std::string name, Scope& scope) {
  for (Scope* s = &scope; s != nullptr && !s->captured; s = s->parent) s->captured = true;
  return std::make_shared<const Macro>(Macro{&definition, &scope, std::move(name)});
}

Value Interpreter::call_macro(const Macro& macro, const Args& args) {
  const Budget::Level level(budget_);
  const Stmt& definition = *macro.definition;
  const Signature& signature = definition.signature;
  const std::size_t count = signature.names.size();
  const NewScope inner(*this, macro.scope);
  auto rest = args.keyword;
  const auto take = [&](const std::string& name) -> std::optional<Value> {
    for (std::size_t i = 0; i < rest.size(); ++i) {
      if (rest[i].first != name) continue;
      Value value = std::move(rest[i].second);
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      return value;
    }
    return std::nullopt;
  };

  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = signature.names[i];
    const std::size_t required = count - signature.defaults.size();
    std::optional<Value> value = i < args.positional.size() ? std::optional(args.positional[i]) : take(name);
    if (!value && i >= required) value = evaluate(*signature.defaults[i - required], *inner);
    inner->set(name, value ? *std::move(value)
                           : Value::undefined(fmt::format("parameter '{}' was not provided", name)));
  }
  if (definition.uses_caller && inner->variables.size() == count) {
    bool is_parameter = false;
    for (const std::string& name : signature.names) is_parameter |= name == "caller";
    if (!is_parameter) {
      std::optional<Value> caller = take("caller");
      inner->set("caller", caller ? *std::move(caller) : Value::undefined("no caller is defined"));
    }
  }
  if (definition.uses_kwargs) {
    Dict kwargs;
    for (auto& [name, value] : rest) kwargs.set(Value(Text(name, Origin::content)), std::move(value));
    inner->set("kwargs", make_dict(std::move(kwargs)));
  } else if (!rest.empty()) {
    fail(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, rest[0].first));
  }
  if (definition.uses_varargs) {
    const auto first =
        args.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, args.positional.size()));
    inner->set("varargs", make_tuple(Values(first, args.positional.end())));
  } else if (args.positional.size() > count) {
    fail(fmt::format("macro '{}' takes not more than {} arguments, {} given", macro.name, count,
                     args.positional.size()));
  }

  Text text;
  Text* const outer = std::exchange(out_, &text);
  execute(definition.bodies[0], *inner);
  out_ = outer;
  return Value(std::move(text));
}

Value Interpreter::call_global(Global global, const Args& args) {
  switch (global) {
    case Global::range:
      return make_range(args);
    case Global::dict:
      return make_dict(dict_from(args, "dict()"));
    case Global::namespace_:
      return make_namespace(args);
    case Global::raise_exception:
      fail(text_of(Bound("raise_exception()", args, {"message"}).required(0)).bytes());
    case Global::strftime_now:
      break;
  }
  const Text& format = Bound("strftime_now()", args, {"format"}).text(0);
  if (!now_) fail("strftime_now() was called, but the caller of the template gave no time");
  if (format.size() > 200) fail("strftime_now(): the format is longer than 200 bytes");
  char buffer[4096];
  const std::size_t size = std::strftime(buffer, sizeof buffer, format.bytes().c_str(), &*now_);
  return Value(Text(std::string(buffer, size), format.origin()));
}

Dict Interpreter::dict_from(const Args& args, std::string_view what) {
  Dict dict;
  if (args.positional.size() > 1) fail(fmt::format("{} takes at most 1 positional argument", what));
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    budget_.charge_steps(extent_of(source).weight);
    if (source.is_dict()) {
      dict = source.dict();
    } else {
      for (const Value& pair : iterate(source)) {
        const Values items = iterate(pair);
        if (items.size() != 2) fail(fmt::format("{} needs pairs, found {} elements", what, items.size()));
        budget_.charge_steps(items[0].is_string() ? 1 : dict.entries.size());
        dict.set(items[0], items[1]);
      }
    }
  }
  for (const auto& [name, value] : args.keyword) dict.set(Value(Text(name, Origin::templated)), value);
  return dict;
}

Value Interpreter::make_namespace(const Args& args) {
  namespaces_.push_back(std::make_unique<Namespace>(Namespace{dict_from(args, "namespace()")}));
  return Value(namespaces_.back().get());
}

Value Interpreter::make_range(const Args& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.keyword.empty()) {
    fail("range() takes 1 to 3 positional arguments");
  }
  const Bound bound("range()", args, {"start", "stop", "step"});
  const bool one = args.positional.size() == 1;
  const Int start = one ? 0 : bound.integer(0, 0), stop = one ? bound.integer(0, 0) : bound.integer(1, 0);
  const Int step = bound.integer(2, 1);
  if (step == 0) fail("range(): the step must not be zero");
  constexpr Int kMaxBound = Int{1} << 62;
  constexpr std::size_t kMaxRange = 100'000;  // as in Jinja's sandbox
  for (const Int value : {start, stop, step}) {
    if (value > kMaxBound || value < -kMaxBound) fail("range(): a bound is beyond 62 bits");
  }
  Values items;
  for (Int i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (items.size() == kMaxRange) fail(fmt::format("range() with more than {} items", kMaxRange));
    items.emplace_back(i);
  }
  budget_.charge_steps(items.size());
  return make_sequence(Sequence::Type::range, std::move(items));
}

}  // namespace tandem::jinja
