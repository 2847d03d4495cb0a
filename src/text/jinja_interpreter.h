// Runs a parsed template. One Interpreter is one render: it owns the scopes and namespaces, spends the
// budget, and is thrown away. Scoping is Jinja's: for, macro, call, filter, with and block-set bodies are
// scopes of their own (what they set is gone after them), if is not; a macro sees the variables of the place
// where it was defined, as they are when it runs.
//
// Differences from Jinja that a template could see: map, select, items and the like are computed at once
// (errors come earlier); a loop filter is evaluated for all items before the body runs; `safe` does not
// change how + works later.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_budget.h"
#include "text/jinja_value.h"

namespace tandem::jinja {

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> variables;
  bool captured = false;  // a macro refers to it, so it lives until the render ends

  const Value* find(const std::string& name) const;  // here or outwards
  void set(const std::string& name, Value value);    // here
};

struct Macro {
  const Stmt* definition;  // a macro or a call block
  Scope* scope;
  std::string name;
};

// Evaluated arguments of a call.
struct Args {
  Values positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

class Interpreter {
 public:
  // `now` is local time for strftime_now(); without it the function fails.
  Interpreter(const Limits& limits, std::optional<std::tm> now) : budget_(limits), now_(now) {}

  Text run(const Body& body, const Dict& variables);
  // Line of the template that is running, or that failed.
  int line() const { return line_; }

  // For filters, tests and methods.
  Budget& budget() { return budget_; }
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  Value call(const Value& callee, const Args& args);
  Value apply_filter(const std::string& name, const Value& subject, const Args& args);
  bool apply_test(const std::string& name, const Value& subject, const Args& args);
  // str(value), charged.
  Text text_of(const Value& value);

 private:
  enum class Flow { normal, break_, continue_ };
  class NewScope;

  Flow execute(const Body& body, Scope& scope);
  Flow execute(const Stmt& stmt, Scope& scope);
  Flow execute_if(const Stmt& stmt, Scope& scope);
  Flow execute_for(const Stmt& stmt, Scope& scope);
  Values loop_items(const Stmt& stmt, Scope& scope);
  void execute_set(const Stmt& stmt, Scope& scope);
  void execute_call_block(const Stmt& stmt, Scope& scope);
  Flow execute_with(const Stmt& stmt, Scope& scope);
  // What the body prints.
  std::pair<Text, Flow> capture(const Body& body, Scope& scope);
  void assign(const Target& target, const Value& value, Scope& scope);
  void print(const Text& text);

  Value evaluate(const Expr& expr, Scope& scope);
  Values evaluate_all(const std::vector<ExprPtr>& exprs, Scope& scope);
  Value evaluate_name(const Expr& expr, Scope& scope);
  Value evaluate_dict(const Expr& expr, Scope& scope);
  Value evaluate_item(const Expr& expr, Scope& scope);
  Value evaluate_call(const Expr& expr, Scope& scope);
  Value evaluate_compare(const Expr& expr, Scope& scope);
  Value evaluate_concat(const Expr& expr, Scope& scope);
  Value evaluate_condition(const Expr& expr, Scope& scope);
  // `block_text`: what stands for the missing subject at the start of a filter chain.
  Value evaluate_filter(const Expr& expr, Scope& scope, const Value* block_text);
  Args evaluate_args(const CallArgs& call, Scope& scope);

  std::shared_ptr<const Macro> make_macro(const Stmt& definition, std::string name, Scope& scope);
  Value call_macro(const Macro& macro, const Args& args);
  Value call_global(Global global, const Args& args);
  Value make_namespace(const Args& args);
  Value make_range(const Args& args);
  Dict dict_from(const Args& args, std::string_view what);

  Budget budget_;
  std::optional<std::tm> now_;
  int line_ = 0;
  Text* out_ = nullptr;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

}  // namespace tandem::jinja
