// The parsed template. One node type for expressions and one for statements; which fields a kind uses is said
// beside it. Trees are at most kMaxTreeDepth high (the parser checks), so that walking and destroying them is
// safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja_value.h"

namespace tandem::jinja {

inline constexpr int kMaxTreeDepth = 200;

enum class ExprKind : std::uint8_t {
  constant,   // constant
  name,       // name
  list,       // args
  tuple,      // args
  dict,       // args: key, value, key, value, ...
  attribute,  // args[0] . name
  item,       // args[0] [ args[1] ]
  slice,      // args: start, stop, step, each may be null; only as args[1] of item
  call,       // args[0] ( call )
  filter,     // args[0] | name ( call ); args[0] is null in a filter block, where the block's text stands in
  test,       // args[0] is name ( call )
  negate,     // - args[0]
  plus,       // + args[0]
  not_,       // not args[0]
  and_,       // args[0], args[1]
  or_,        // args[0], args[1]
  condition,  // args[1] if args[0] else args[2]; args[2] may be null
  compare,    // args[0] ops[0] args[1] ops[1] args[2] ...
  concat,     // args joined by ~
  binary,     // args[0] ops[0] args[1]
};

enum class Op : std::uint8_t {
  add,
  sub,
  mul,
  div,
  floor_div,
  mod,
  pow,  // binary
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  in,
  not_in,  // compare
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

// Arguments of a call, filter or test.
struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star;         // *expr
  ExprPtr double_star;  // **expr
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int height = 1;
  std::string name;
  Value constant;
  std::vector<ExprPtr> args;
  std::vector<Op> ops;
  std::unique_ptr<CallArgs> call;
};

// Where a value is stored: a name, ns.attribute, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;  // of the namespace `name`, if not empty
  std::vector<Target> elements;
  bool is_tuple = false;
};

// Parameters of a macro or a call block.
struct Signature {
  std::vector<std::string> names;
  std::vector<ExprPtr> defaults;  // of the last names
};

enum class StmtKind : std::uint8_t {
  text,        // text
  print,       // exprs, each printed
  if_,         // exprs[i] -> bodies[i]; one more body than exprs: else
  for_,        // target in exprs[0], kept if exprs[1] (may be null); bodies[0], bodies[1] if it never ran
  set,         // target = exprs[0]
  set_block,   // target = bodies[0] through exprs[0] (a filter chain or null)
  macro,       // name, signature, bodies[0]
  call_block,  // exprs[0] (a call) with bodies[0] as its caller
  filter,      // bodies[0] through exprs[0]
  with,        // targets = exprs, inside bodies[0]
  scope,       // bodies[0] in a scope of its own (generation blocks)
  break_,
  continue_,
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct Stmt {
  StmtKind kind;
  int line = 0;
  std::string name;
  Value text;
  Target target;
  std::vector<Target> targets;
  std::vector<ExprPtr> exprs;
  std::vector<Body> bodies;
  Signature signature;
  // macro and call_block: the body speaks of these.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

}  // namespace tandem::jinja
