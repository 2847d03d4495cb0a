#include "text/jinja_interpreter.h"

#include <fmt/format.h>

#include <utility>

#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_scope.h"

namespace tandem::jinja {

// --- scopes

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

// --- statements

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

}  // namespace tandem::jinja
