#include "text/jinja_interpreter.h"

#include <fmt/format.h>

#include <utility>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace tandem::jinja {

// --- scopes
// -------------------------------------------------------------------------------------------------------

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

// A scope for one block. It is freed with the block, unless a macro captured it or one that was opened later.
class Interpreter::NewScope {
 public:
  NewScope(Interpreter& interpreter, Scope* parent) : interpreter_(interpreter) {
    interpreter.scopes_.push_back(std::make_unique<Scope>());
    scope_ = interpreter.scopes_.back().get();
    scope_->parent = parent;
  }
  ~NewScope() {
    if (!scope_->captured && interpreter_.scopes_.back().get() == scope_) interpreter_.scopes_.pop_back();
  }
  NewScope(const NewScope&) = delete;
  NewScope& operator=(const NewScope&) = delete;

  Scope& operator*() const { return *scope_; }
  Scope* operator->() const { return scope_; }

 private:
  Interpreter& interpreter_;
  Scope* scope_;
};

// --- statements
// ---------------------------------------------------------------------------------------------------

Text Interpreter::run(const Body& body, const Dict& variables) {
  const NewScope root(*this, nullptr);
  for (const auto& [name, value] : variables.entries) root->set(name.bytes(), value);
  Text text;
  out_ = &text;
  execute(body, *root);
  out_ = nullptr;
  return text;
}

void Interpreter::print(const Text& text) {
  budget_.charge_bytes(text.size());
  out_->append(text);
  budget_.check_output(out_->size());
}

Text Interpreter::text_of(const Value& value) {
  Text text = to_text(value, budget_);
  budget_.charge_bytes(text.size());
  return text;
}

Interpreter::Flow Interpreter::execute(const Body& body, Scope& scope) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = execute(*stmt, scope);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt, Scope& scope) {
  const Budget::Level level(budget_);
  budget_.charge_steps(1);
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::text:
      print(stmt.text.text());
      return Flow::normal;
    case StmtKind::print:
      for (const ExprPtr& expr : stmt.exprs) {
        const Value value = evaluate(*expr, scope);
        value.is_string() ? print(value.text()) : print(to_text(value, budget_));
      }
      return Flow::normal;
    case StmtKind::if_:
      return execute_if(stmt, scope);
    case StmtKind::for_:
      return execute_for(stmt, scope);
    case StmtKind::set:
    case StmtKind::set_block:
      execute_set(stmt, scope);
      return Flow::normal;
    case StmtKind::macro:
      scope.set(stmt.name, Value(make_macro(stmt, stmt.name, scope)));
      return Flow::normal;
    case StmtKind::call_block:
      execute_call_block(stmt, scope);
      return Flow::normal;
    case StmtKind::filter: {
      auto [text, flow] = capture(stmt.bodies[0], scope);
      if (flow != Flow::normal) return flow;
      const Value block_text(std::move(text));
      print(text_of(evaluate_filter(*stmt.exprs[0], scope, &block_text)));
      return Flow::normal;
    }
    case StmtKind::with:
      return execute_with(stmt, scope);
    case StmtKind::scope: {
      const NewScope inner(*this, &scope);
      return execute(stmt.bodies[0], *inner);
    }
    case StmtKind::break_:
      return Flow::break_;
    case StmtKind::continue_:
      return Flow::continue_;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute_if(const Stmt& stmt, Scope& scope) {
  for (std::size_t i = 0; i < stmt.exprs.size(); ++i) {
    if (truthy(evaluate(*stmt.exprs[i], scope))) return execute(stmt.bodies[i], scope);
  }
  return stmt.bodies.size() > stmt.exprs.size() ? execute(stmt.bodies.back(), scope) : Flow::normal;
}

Values Interpreter::loop_items(const Stmt& stmt, Scope& scope) {
  const Value iterable = evaluate(*stmt.exprs[0], scope);
  Values items = iterate(iterable);
  budget_.charge_steps(items.size());
  if (stmt.exprs[1] == nullptr) return items;
  Values kept;
  for (Value& item : items) {
    const NewScope inner(*this, &scope);
    assign(stmt.target, item, *inner);
    if (truthy(evaluate(*stmt.exprs[1], *inner))) kept.push_back(std::move(item));
  }
  return kept;
}

Interpreter::Flow Interpreter::execute_for(const Stmt& stmt, Scope& scope) {
  const auto loop = std::make_shared<Loop>();
  loop->items = loop_items(stmt, scope);
  if (loop->items.empty()) {
    const NewScope inner(*this, &scope);
    return execute(stmt.bodies[1], *inner);
  }
  for (std::size_t i = 0; i < loop->items.size(); ++i) {
    const NewScope inner(*this, &scope);
    loop->index0 = i;
    inner->set("loop", Value(loop));
    assign(stmt.target, loop->items[i], *inner);
    if (execute(stmt.bodies[0], *inner) == Flow::break_) break;
  }
  return Flow::normal;
}

std::pair<Text, Interpreter::Flow> Interpreter::capture(const Body& body, Scope& scope) {
  const NewScope inner(*this, &scope);
  Text text;
  Text* const outer = std::exchange(out_, &text);
  const Flow flow = execute(body, *inner);
  out_ = outer;
  return {std::move(text), flow};
}

void Interpreter::execute_set(const Stmt& stmt, Scope& scope) {
  if (stmt.kind == StmtKind::set) {
    assign(stmt.target, evaluate(*stmt.exprs[0], scope), scope);
    return;
  }
  Value value(capture(stmt.bodies[0], scope).first);
  if (stmt.exprs[0] != nullptr) value = evaluate_filter(*stmt.exprs[0], scope, &value);
  assign(stmt.target, value, scope);
}

void Interpreter::assign(const Target& target, const Value& value, Scope& scope) {
  if (target.is_tuple) {
    const Values items = iterate(value);
    budget_.charge_steps(items.size());
    if (items.size() != target.elements.size()) {
      fail(fmt::format("{} values cannot be unpacked into {} names", items.size(), target.elements.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.elements[i], items[i], scope);
  } else if (target.attribute.empty()) {
    scope.set(target.name, value);
  } else {
    const Value* object = scope.find(target.name);
    const auto* ns = object == nullptr ? nullptr : object->get_if<Namespace*>();
    if (ns == nullptr)
      fail(fmt::format("'{}' is not a namespace, its attributes cannot be set", target.name));
    (*ns)->attributes.set(Value(Text(target.attribute, Origin::templated)), value);
  }
}

void Interpreter::execute_call_block(const Stmt& stmt, Scope& scope) {
  const Expr& call_expr = *stmt.exprs[0];
  const Value callee = evaluate(*call_expr.args[0], scope);
  Args args = evaluate_args(*call_expr.call, scope);
  args.keyword.emplace_back("caller", Value(make_macro(stmt, "caller", scope)));
  print(text_of(call(callee, args)));
}

Interpreter::Flow Interpreter::execute_with(const Stmt& stmt, Scope& scope) {
  const NewScope inner(*this, &scope);
  const Values values = evaluate_all(stmt.exprs, scope);
  for (std::size_t i = 0; i < values.size(); ++i) assign(stmt.targets[i], values[i], *inner);
  return execute(stmt.bodies[0], *inner);
}

// --- expressions
// --------------------------------------------------------------------------------------------------

Value Interpreter::evaluate(const Expr& expr, Scope& scope) {
  const Budget::Level level(budget_);
  budget_.charge_steps(1);
  line_ = expr.line;
  const auto arg = [&](std::size_t i) { return evaluate(*expr.args[i], scope); };
  switch (expr.kind) {
    case ExprKind::constant:
      return expr.constant;
    case ExprKind::name:
      return evaluate_name(expr, scope);
    case ExprKind::list:
      return make_list(evaluate_all(expr.args, scope));
    case ExprKind::tuple:
      return make_tuple(evaluate_all(expr.args, scope));
    case ExprKind::dict:
      return evaluate_dict(expr, scope);
    case ExprKind::attribute:
      return attribute(arg(0), expr.name);
    case ExprKind::item:
    case ExprKind::slice:
      return evaluate_item(expr, scope);
    case ExprKind::call:
      return evaluate_call(expr, scope);
    case ExprKind::filter:
      return evaluate_filter(expr, scope, nullptr);
    case ExprKind::test: {
      const Value subject = arg(0);
      return Value(apply_test(expr.name, subject, evaluate_args(*expr.call, scope)));
    }
    case ExprKind::negate:
      return negate(arg(0));
    case ExprKind::plus:
      return plus(arg(0));
    case ExprKind::not_:
      return Value(!truthy(arg(0)));
    case ExprKind::and_: {
      Value left = arg(0);
      return truthy(left) ? arg(1) : left;
    }
    case ExprKind::or_: {
      Value left = arg(0);
      return truthy(left) ? left : arg(1);
    }
    case ExprKind::condition:
      return evaluate_condition(expr, scope);
    case ExprKind::compare:
      return evaluate_compare(expr, scope);
    case ExprKind::concat:
      return evaluate_concat(expr, scope);
    case ExprKind::binary: {
      const Value left = arg(0), right = arg(1);
      line_ = expr.line;
      return binary(expr.ops[0], left, right, budget_);
    }
  }
  return Value();
}

Values Interpreter::evaluate_all(const std::vector<ExprPtr>& exprs, Scope& scope) {
  Values values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) values.push_back(evaluate(*expr, scope));
  return values;
}

Value Interpreter::evaluate_name(const Expr& expr, Scope& scope) {
  if (const Value* found = scope.find(expr.name)) return *found;
  static constexpr std::pair<std::string_view, Global> kGlobals[] = {
      {"range", Global::range},
      {"dict", Global::dict},
      {"namespace", Global::namespace_},
      {"raise_exception", Global::raise_exception},
      {"strftime_now", Global::strftime_now},
  };
  for (const auto& [name, global] : kGlobals) {
    if (name == expr.name) return Value(global);
  }
  return Value::undefined(fmt::format("'{}' is undefined", expr.name));
}

Value Interpreter::evaluate_dict(const Expr& expr, Scope& scope) {
  Dict dict;
  for (std::size_t i = 0; i < expr.args.size(); i += 2) {
    const Value key = evaluate(*expr.args[i], scope);
    dict.set(key, evaluate(*expr.args[i + 1], scope));
  }
  return make_dict(std::move(dict));
}

Value Interpreter::evaluate_item(const Expr& expr, Scope& scope) {
  const Value object = evaluate(*expr.args[0], scope);
  const Expr& key = *expr.args[1];
  if (key.kind != ExprKind::slice) return item(object, evaluate(key, scope));
  const auto bound = [&](std::size_t i) {
    return key.args[i] == nullptr ? Value() : evaluate(*key.args[i], scope);
  };
  const Value start = bound(0), stop = bound(1), step = bound(2);
  return slice(object, start, stop, step, budget_);
}

Value Interpreter::evaluate_call(const Expr& expr, Scope& scope) {
  const Value callee = evaluate(*expr.args[0], scope);
  const Args args = evaluate_args(*expr.call, scope);
  line_ = expr.line;
  return call(callee, args);
}

Value Interpreter::evaluate_compare(const Expr& expr, Scope& scope) {
  Value left = evaluate(*expr.args[0], scope);
  for (std::size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = evaluate(*expr.args[i + 1], scope);
    line_ = expr.line;
    if (!compare(expr.ops[i], left, right, budget_)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate_concat(const Expr& expr, Scope& scope) {
  Text text;
  for (const ExprPtr& part : expr.args) text.append(text_of(evaluate(*part, scope)));
  return Value(std::move(text));
}

Value Interpreter::evaluate_condition(const Expr& expr, Scope& scope) {
  if (truthy(evaluate(*expr.args[0], scope))) return evaluate(*expr.args[1], scope);
  if (expr.args[2] != nullptr) return evaluate(*expr.args[2], scope);
  return Value::undefined("an inline if without else was false");
}

Value Interpreter::evaluate_filter(const Expr& expr, Scope& scope, const Value* block_text) {
  const Budget::Level level(budget_);
  Value subject;
  if (expr.args[0] == nullptr) {
    subject = *block_text;
  } else if (expr.args[0]->kind == ExprKind::filter) {
    subject = evaluate_filter(*expr.args[0], scope, block_text);
  } else {
    subject = evaluate(*expr.args[0], scope);
  }
  const Args args = evaluate_args(*expr.call, scope);
  budget_.charge_steps(1);
  line_ = expr.line;
  return apply_filter(expr.name, subject, args);
}

Args Interpreter::evaluate_args(const CallArgs& call, Scope& scope) {
  Args args;
  args.positional = evaluate_all(call.positional, scope);
  for (const auto& [name, value] : call.keyword) args.keyword.emplace_back(name, evaluate(*value, scope));
  if (call.star) {
    for (Value& value : iterate(evaluate(*call.star, scope))) args.positional.push_back(std::move(value));
    budget_.charge_steps(args.positional.size());
  }
  if (call.double_star) {
    const Value extra = evaluate(*call.double_star, scope);
    if (!extra.is_dict()) fail(fmt::format("argument after ** must be a mapping, not {}", type_name(extra)));
    for (const auto& [key, value] : extra.dict().entries) {
      if (!key.is_string()) fail("keywords must be strings");
      args.keyword.emplace_back(key.bytes(), value);
    }
    budget_.charge_steps(args.keyword.size());
  }
  return args;
}

// --- access and calls
// ---------------------------------------------------------------------------------------------

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
