#include "text/jinja_expr_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace tandem::jinja {

namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::block_end:
      return "'%}'";
    case TokenKind::variable_end:
      return "'}}'";
    case TokenKind::string:
      return "a string";
    default:
      return "'" + token.text + "'";
  }
}

std::optional<Op> compare_op(const std::string& op) {
  if (op == "==") return Op::eq;
  if (op == "!=") return Op::ne;
  if (op == "<") return Op::lt;
  if (op == "<=") return Op::le;
  if (op == ">") return Op::gt;
  if (op == ">=") return Op::ge;
  return std::nullopt;
}

}  // namespace

// --- cursor

const Token& ExprParser::next() {
  const Token& token = tokens_[pos_];
  if (token.kind != TokenKind::end) ++pos_;
  return token;
}

const Token& ExprParser::expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind)
    fail_at(current().line, fmt::format("expected {}, found {}", what, describe(current())));
  return next();
}

bool ExprParser::skip_op(std::string_view op) {
  if (!at_op(op)) return false;
  next();
  return true;
}

void ExprParser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail_at(current().line, fmt::format("expected '{}', found {}", op, describe(current())));
}

bool ExprParser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}

void ExprParser::expect_name(std::string_view name) {
  if (!skip_name(name))
    fail_at(current().line, fmt::format("expected '{}', found {}", name, describe(current())));
}

void ExprParser::fail_at(int line, std::string message) const { throw Failure{std::move(message), line}; }

ExprParser::Level::Level(ExprParser& parser) : parser_(parser) {
  if (parser.depth_ >= kMaxTreeDepth) {
    parser.fail_at(parser.current().line,
                   fmt::format("the template nests deeper than {} levels", kMaxTreeDepth));
  }
  ++parser.depth_;
}

// --- nodes

ExprPtr ExprParser::make(ExprKind kind, int line) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  return node;
}

void ExprParser::raise_height(Expr& parent, const Expr* child) const {
  if (child == nullptr) return;
  parent.height = std::max(parent.height, child->height + 1);
  if (parent.height > kMaxTreeDepth) {
    fail_at(parent.line, fmt::format("an expression nests deeper than {} levels", kMaxTreeDepth));
  }
}

void ExprParser::adopt(Expr& parent, ExprPtr child) const {
  raise_height(parent, child.get());
  parent.args.push_back(std::move(child));
}

// --- expressions, loosest first

ExprPtr ExprParser::parse_expression() {
  const Level level(*this);
  const int line = current().line;
  ExprPtr value = parse_or();
  while (skip_name("if")) {
    ExprPtr node = make(ExprKind::condition, line);
    adopt(*node, parse_or());
    adopt(*node, std::move(value));
    adopt(*node, skip_name("else") ? parse_expression() : nullptr);
    value = std::move(node);
  }
  return value;
}

ExprPtr ExprParser::parse_tuple(TupleOptions options) {
  const Level level(*this);
  ExprPtr tuple = make(ExprKind::tuple, current().line);
  bool has_comma = false;
  while (true) {
    const TokenKind kind = current().kind;
    if (kind == TokenKind::variable_end || kind == TokenKind::block_end || at_op(")") ||
        (!options.end.empty() && at_name(options.end))) {
      break;
    }
    adopt(*tuple, options.conditions ? parse_expression() : parse_or());
    if (!skip_op(",")) break;
    has_comma = true;
  }
  if (has_comma) return tuple;
  if (!tuple->args.empty()) return std::move(tuple->args[0]);
  if (options.parenthesized) return tuple;
  fail_at(current().line, fmt::format("expected an expression, found {}", describe(current())));
}

ExprPtr ExprParser::parse_or() {
  ExprPtr left = parse_and();
  while (at_name("or")) {
    ExprPtr node = make(ExprKind::or_, next().line);
    adopt(*node, std::move(left));
    adopt(*node, parse_and());
    left = std::move(node);
  }
  return left;
}

ExprPtr ExprParser::parse_and() {
  ExprPtr left = parse_not();
  while (at_name("and")) {
    ExprPtr node = make(ExprKind::and_, next().line);
    adopt(*node, std::move(left));
    adopt(*node, parse_not());
    left = std::move(node);
  }
  return left;
}

ExprPtr ExprParser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Level level(*this);
  ExprPtr node = make(ExprKind::not_, next().line);
  adopt(*node, parse_not());
  return node;
}

ExprPtr ExprParser::parse_compare() {
  ExprPtr first = parse_sum();
  ExprPtr node = make(ExprKind::compare, current().line);
  while (true) {
    std::optional<Op> op;
    if (current().kind == TokenKind::op) {
      op = compare_op(current().text);
      if (op) next();
    } else if (skip_name("in")) {
      op = Op::in;
    } else if (at_name("not") && tokens_[pos_ + 1].kind == TokenKind::name &&
               tokens_[pos_ + 1].text == "in") {
      next();
      next();
      op = Op::not_in;
    }
    if (!op) break;
    if (first) adopt(*node, std::move(first));
    node->ops.push_back(*op);
    adopt(*node, parse_sum());
  }
  return node->ops.empty() ? std::move(first) : std::move(node);
}

ExprPtr ExprParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_op("+") || at_op("-")) {
    const Token& op = next();
    ExprPtr node = make(ExprKind::binary, op.line);
    node->ops.push_back(op.text == "+" ? Op::add : Op::sub);
    adopt(*node, std::move(left));
    adopt(*node, parse_concat());
    left = std::move(node);
  }
  return left;
}

ExprPtr ExprParser::parse_concat() {
  ExprPtr first = parse_product();
  if (!at_op("~")) return first;
  ExprPtr node = make(ExprKind::concat, current().line);
  adopt(*node, std::move(first));
  while (skip_op("~")) adopt(*node, parse_product());
  return node;
}

ExprPtr ExprParser::parse_product() {
  ExprPtr left = parse_power();
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const Token& op = next();
    ExprPtr node = make(ExprKind::binary, op.line);
    node->ops.push_back(op.text == "*"    ? Op::mul
                        : op.text == "/"  ? Op::div
                        : op.text == "//" ? Op::floor_div
                                          : Op::mod);
    adopt(*node, std::move(left));
    adopt(*node, parse_power());
    left = std::move(node);
  }
  return left;
}

ExprPtr ExprParser::parse_power() {
  ExprPtr left = parse_unary(Filters::yes);
  while (at_op("**")) {
    ExprPtr node = make(ExprKind::binary, next().line);
    node->ops.push_back(Op::pow);
    adopt(*node, std::move(left));
    adopt(*node, parse_unary(Filters::yes));
    left = std::move(node);
  }
  return left;
}

ExprPtr ExprParser::parse_unary(Filters filters) {
  const Level level(*this);
  ExprPtr node;
  if (at_op("-") || at_op("+")) {
    const Token& op = next();
    node = make(op.text == "-" ? ExprKind::negate : ExprKind::plus, op.line);
    adopt(*node, parse_unary(Filters::no));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  if (filters == Filters::no) return node;
  while (true) {
    if (at_op("|")) {
      node = parse_filters(std::move(node));
    } else if (at_name("is")) {
      node = parse_test(std::move(node));
    } else if (at_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExprParser::parse_primary() {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::name: {
      next();
      ExprPtr node = make(ExprKind::constant, token.line);
      if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
        node->constant = Value(token.text == "true" || token.text == "True");
      } else if (token.text != "none" && token.text != "None") {
        node->kind = ExprKind::name;
        node->name = token.text;
        special_.caller |= token.text == "caller";
        special_.varargs |= token.text == "varargs";
        special_.kwargs |= token.text == "kwargs";
      }
      return node;
    }
    case TokenKind::string: {
      ExprPtr node = make(ExprKind::constant, token.line);
      std::string text;
      while (current().kind == TokenKind::string) text += next().text;
      node->constant = Value(Text(std::move(text), Origin::templated));
      return node;
    }
    case TokenKind::integer:
    case TokenKind::real: {
      next();
      ExprPtr node = make(ExprKind::constant, token.line);
      node->constant = token.kind == TokenKind::integer ? Value(token.integer) : Value(token.real);
      return node;
    }
    default:
      break;
  }
  if (skip_op("(")) {
    ExprPtr node = parse_tuple({.parenthesized = true});
    expect_op(")");
    return node;
  }
  if (at_op("[")) return parse_list();
  if (at_op("{")) return parse_dict();
  fail_at(token.line, fmt::format("expected an expression, found {}", describe(token)));
}

ExprPtr ExprParser::parse_list() {
  ExprPtr node = make(ExprKind::list, next().line);
  while (!at_op("]")) {
    adopt(*node, parse_expression());
    if (!skip_op(",")) break;
  }
  expect_op("]");
  return node;
}

ExprPtr ExprParser::parse_dict() {
  ExprPtr node = make(ExprKind::dict, next().line);
  while (!at_op("}")) {
    adopt(*node, parse_expression());
    expect_op(":");
    adopt(*node, parse_expression());
    if (!skip_op(",")) break;
  }
  expect_op("}");
  return node;
}

// --- what may follow a primary

ExprPtr ExprParser::parse_postfix(ExprPtr node) {
  while (true) {
    if (at_op(".") || at_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (at_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExprParser::parse_subscript(ExprPtr object) {
  const Token& token = next();
  if (token.text == ".") {
    const Token& attribute = next();
    ExprPtr node =
        make(attribute.kind == TokenKind::integer ? ExprKind::item : ExprKind::attribute, token.line);
    adopt(*node, std::move(object));
    if (attribute.kind == TokenKind::integer) {
      ExprPtr index = make(ExprKind::constant, attribute.line);
      index->constant = Value(attribute.integer);
      adopt(*node, std::move(index));
    } else if (attribute.kind == TokenKind::name) {
      node->name = attribute.text;
    } else {
      fail_at(attribute.line, fmt::format("expected a name after '.', found {}", describe(attribute)));
    }
    return node;
  }
  ExprPtr node = make(ExprKind::item, token.line);
  adopt(*node, std::move(object));
  adopt(*node, parse_subscribed());
  if (at_op(",")) fail_at(token.line, "a subscript takes one index");
  expect_op("]");
  return node;
}

ExprPtr ExprParser::parse_subscribed() {
  const int line = current().line;
  ExprPtr start = at_op(":") ? nullptr : parse_expression();
  if (!skip_op(":")) return start;
  ExprPtr node = make(ExprKind::slice, line);
  adopt(*node, std::move(start));
  adopt(*node, at_op(":") || at_op("]") ? nullptr : parse_expression());
  adopt(*node, skip_op(":") && !at_op("]") ? parse_expression() : nullptr);
  return node;
}

ExprPtr ExprParser::parse_call(ExprPtr callee) {
  ExprPtr node = make(ExprKind::call, current().line);
  adopt(*node, std::move(callee));
  parse_call_args(*node);
  return node;
}

void ExprParser::parse_call_args(Expr& node) {
  node.call = std::make_unique<CallArgs>();
  if (!at_op("(")) return;
  const int line = next().line;
  CallArgs& call = *node.call;
  const auto read = [&] {
    ExprPtr value = parse_expression();
    raise_height(node, value.get());
    return value;
  };
  const auto refuse_if = [&](bool wrong) {
    if (wrong) fail_at(line, "arguments in a call must come as positional, keyword, *list, **dict");
  };
  while (!at_op(")")) {
    if (skip_op("*")) {
      refuse_if(call.star || call.double_star);
      call.star = read();
    } else if (skip_op("**")) {
      refuse_if(call.double_star != nullptr);
      call.double_star = read();
    } else if (current().kind == TokenKind::name && tokens_[pos_ + 1].kind == TokenKind::op &&
               tokens_[pos_ + 1].text == "=") {
      refuse_if(call.double_star != nullptr);
      std::string name = next().text;
      next();
      call.keyword.emplace_back(std::move(name), read());
    } else {
      refuse_if(call.star || call.double_star || !call.keyword.empty());
      call.positional.push_back(read());
    }
    if (!skip_op(",")) break;
  }
  expect_op(")");
}

ExprPtr ExprParser::parse_filters(ExprPtr subject) {
  while (skip_op("|")) subject = parse_filter(std::move(subject));
  return subject;
}

ExprPtr ExprParser::parse_filter_named_here() { return parse_filters(parse_filter(nullptr)); }

ExprPtr ExprParser::parse_filter(ExprPtr subject) {
  const Token& name = expect(TokenKind::name, "a filter's name");
  ExprPtr node = make(ExprKind::filter, name.line);
  node->name = name.text;
  adopt(*node, std::move(subject));
  parse_call_args(*node);
  return node;
}

ExprPtr ExprParser::parse_test(ExprPtr subject) {
  next();
  const bool negated = skip_name("not");
  const Token& name = expect(TokenKind::name, "a test's name");
  ExprPtr node = make(ExprKind::test, name.line);
  node->name = name.text;
  adopt(*node, std::move(subject));
  const Token& token = current();
  const bool starts_value = token.kind == TokenKind::name || token.kind == TokenKind::string ||
                            token.kind == TokenKind::integer || token.kind == TokenKind::real || at_op("[") ||
                            at_op("{");
  if (!at_op("(") && starts_value && !at_name("else") && !at_name("or") && !at_name("and")) {
    if (at_name("is")) fail_at(token.line, "tests with 'is' cannot be chained");
    node->call = std::make_unique<CallArgs>();
    const Level level(*this);
    ExprPtr argument = parse_postfix(parse_primary());
    raise_height(*node, argument.get());
    node->call->positional.push_back(std::move(argument));
  } else {
    parse_call_args(*node);
  }
  if (!negated) return node;
  ExprPtr inverse = make(ExprKind::not_, name.line);
  adopt(*inverse, std::move(node));
  return inverse;
}

}  // namespace tandem::jinja
