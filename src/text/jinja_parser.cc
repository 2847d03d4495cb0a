#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "text/jinja_expr_parser.h"
#include "text/jinja_lexer.h"

namespace tandem::jinja {

namespace {

using Ends = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), expr_(tokens_) {}

  Body run() { return parse_body({}, 0); }

 private:
  // Until a block whose tag is one of `ends` (left unread, standing at the tag name), or the end of the
  // template.
  Body parse_body(Ends ends, int opened_at) {
    const ExprParser::Level level(expr_);
    Body body;
    while (true) {
      const Token& token = expr_.current();
      switch (token.kind) {
        case TokenKind::end:
          if (ends.size() != 0) {
            expr_.fail_at(opened_at, fmt::format("the block opened here is never closed by {{% {} %}}",
                                                 *(ends.end() - 1)));
          }
          return body;
        case TokenKind::data: {
          auto stmt = make(StmtKind::text, token.line);
          stmt->text = Value(Text(token.text, Origin::templated));
          body.push_back(std::move(stmt));
          expr_.next();
          break;
        }
        case TokenKind::variable_begin: {
          auto stmt = make(StmtKind::print, token.line);
          expr_.next();
          stmt->exprs.push_back(expr_.parse_tuple({}));
          expr_.expect(TokenKind::variable_end, "'}}'");
          body.push_back(std::move(stmt));
          break;
        }
        case TokenKind::block_begin: {
          expr_.next();
          const Token& tag = expr_.current();
          if (tag.kind != TokenKind::name) expr_.fail_at(tag.line, "a tag name is missing after '{%'");
          if (std::find(ends.begin(), ends.end(), tag.text) != ends.end()) return body;
          body.push_back(parse_statement());
          expr_.expect(TokenKind::block_end, "'%}'");
          break;
        }
        default:
          expr_.fail_at(token.line, "unexpected end of a tag");
      }
    }
  }

  StmtPtr make(StmtKind kind, int line) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  // `: %} body {% end`: reads up to the tag name of the end.
  Body parse_block(Ends ends, int opened_at) {
    expr_.skip_op(":");
    expr_.expect(TokenKind::block_end, "'%}'");
    return parse_body(ends, opened_at);
  }

  // A block with one possible end, read whole.
  Body parse_whole_block(std::string_view end, int opened_at) {
    Body body = parse_block({end}, opened_at);
    expr_.next();
    return body;
  }

  StmtPtr parse_statement() {
    const std::string tag = expr_.current().text;
    const int line = expr_.current().line;
    expr_.next();
    if (tag == "if") return parse_if(line);
    if (tag == "for") return parse_for(line);
    if (tag == "set") return parse_set(line);
    if (tag == "macro") return parse_macro(line);
    if (tag == "call") return parse_call_block(line);
    if (tag == "filter") return parse_filter_block(line);
    if (tag == "with") return parse_with(line);
    if (tag == "print") return parse_print(line);
    if (tag == "generation") {
      auto stmt = make(StmtKind::scope, line);
      const Nested function(*this);
      stmt->bodies.push_back(parse_whole_block("endgeneration", line));
      return stmt;
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) expr_.fail_at(line, fmt::format("{{% {} %}} outside of a loop", tag));
      return make(tag == "break" ? StmtKind::break_ : StmtKind::continue_, line);
    }
    static constexpr std::string_view kOthers[] = {"include", "import",     "from", "extends",
                                                   "block",   "autoescape", "do"};
    if (std::find(std::begin(kOthers), std::end(kOthers), tag) != std::end(kOthers)) {
      expr_.fail_at(line, fmt::format("{{% {} %}} is not available to chat templates", tag));
    }
    expr_.fail_at(line, fmt::format("unexpected tag {{% {} %}}", tag));
  }

  StmtPtr parse_if(int line) {
    auto stmt = make(StmtKind::if_, line);
    while (true) {
      stmt->exprs.push_back(expr_.parse_tuple({.conditions = false}));
      stmt->bodies.push_back(parse_block({"elif", "else", "endif"}, line));
      const std::string tag = expr_.next().text;
      if (tag == "elif") continue;
      if (tag == "else") stmt->bodies.push_back(parse_whole_block("endif", line));
      return stmt;
    }
  }

  StmtPtr parse_for(int line) {
    auto stmt = make(StmtKind::for_, line);
    stmt->target = parse_target(Names::plain, "in");
    expr_.expect_name("in");
    stmt->exprs.push_back(expr_.parse_tuple({.conditions = false, .end = "recursive"}));
    stmt->exprs.push_back(expr_.skip_name("if") ? expr_.parse_expression() : nullptr);
    if (expr_.current().kind == TokenKind::name && expr_.current().text == "recursive") {
      expr_.fail_at(line, "recursive loops are not supported; write a macro that calls itself");
    }
    ++loops_;
    stmt->bodies.push_back(parse_block({"else", "endfor"}, line));
    --loops_;
    stmt->bodies.push_back(expr_.next().text == "else" ? parse_whole_block("endfor", line) : Body());
    return stmt;
  }

  StmtPtr parse_set(int line) {
    auto stmt = make(StmtKind::set, line);
    stmt->target = parse_target(Names::or_attribute, "");
    if (expr_.skip_op("=")) {
      stmt->exprs.push_back(expr_.parse_tuple({}));
      return stmt;
    }
    stmt->kind = StmtKind::set_block;
    stmt->exprs.push_back(expr_.parse_filters(nullptr));
    stmt->bodies.push_back(parse_whole_block("endset", line));
    return stmt;
  }

  StmtPtr parse_macro(int line) {
    auto stmt = make(StmtKind::macro, line);
    stmt->name = expr_.expect(TokenKind::name, "the macro's name").text;
    parse_signature(*stmt);
    parse_function_body(*stmt, "endmacro");
    return stmt;
  }

  StmtPtr parse_call_block(int line) {
    auto stmt = make(StmtKind::call_block, line);
    if (expr_.at_op("(")) parse_signature(*stmt);
    stmt->exprs.push_back(expr_.parse_expression());
    if (stmt->exprs[0]->kind != ExprKind::call) expr_.fail_at(line, "{% call %} needs a call such as m(...)");
    parse_function_body(*stmt, "endcall");
    return stmt;
  }

  // The body of a macro or call block, and which of the special names it mentions.
  void parse_function_body(Stmt& stmt, std::string_view end) {
    const Nested function(*this);
    const auto outer = std::exchange(expr_.special_names(), {});
    stmt.bodies.push_back(parse_whole_block(end, stmt.line));
    const auto used = expr_.special_names();
    stmt.uses_caller = used.caller;
    stmt.uses_varargs = used.varargs;
    stmt.uses_kwargs = used.kwargs;
    expr_.special_names() = {.caller = outer.caller || used.caller,
                             .varargs = outer.varargs || used.varargs,
                             .kwargs = outer.kwargs || used.kwargs};
  }

  void parse_signature(Stmt& stmt) {
    Signature& signature = stmt.signature;
    expr_.expect_op("(");
    while (!expr_.at_op(")")) {
      if (!signature.names.empty()) expr_.expect_op(",");
      signature.names.push_back(expr_.expect(TokenKind::name, "a parameter's name").text);
      if (expr_.skip_op("=")) {
        signature.defaults.push_back(expr_.parse_expression());
      } else if (!signature.defaults.empty()) {
        expr_.fail_at(stmt.line, fmt::format("parameter '{}' without a default follows one with a default",
                                             signature.names.back()));
      }
    }
    expr_.next();
  }

  StmtPtr parse_filter_block(int line) {
    auto stmt = make(StmtKind::filter, line);
    stmt->exprs.push_back(expr_.parse_filter_named_here());
    stmt->bodies.push_back(parse_whole_block("endfilter", line));
    return stmt;
  }

  StmtPtr parse_with(int line) {
    auto stmt = make(StmtKind::with, line);
    while (expr_.current().kind != TokenKind::block_end) {
      if (!stmt->targets.empty()) expr_.expect_op(",");
      stmt->targets.push_back(parse_target(Names::plain, ""));
      expr_.expect_op("=");
      stmt->exprs.push_back(expr_.parse_expression());
    }
    stmt->bodies.push_back(parse_whole_block("endwith", line));
    return stmt;
  }

  StmtPtr parse_print(int line) {
    auto stmt = make(StmtKind::print, line);
    while (expr_.current().kind != TokenKind::block_end) {
      if (!stmt->exprs.empty()) expr_.expect_op(",");
      stmt->exprs.push_back(expr_.parse_expression());
    }
    return stmt;
  }

  enum class Names { plain, or_attribute };

  // name, name.attribute (if allowed), or several separated by commas; parentheses group. `end` is the
  // keyword that may follow a trailing comma.
  Target parse_target(Names names, std::string_view end) {
    Target first = parse_one_target(names);
    if (!expr_.at_op(",") || !first.attribute.empty()) return first;
    Target tuple;
    tuple.is_tuple = true;
    tuple.elements.push_back(std::move(first));
    while (expr_.skip_op(",")) {
      const Token& token = expr_.current();
      if (expr_.at_op(")") || token.kind == TokenKind::block_end ||
          (token.kind == TokenKind::name && token.text == end)) {
        break;
      }
      tuple.elements.push_back(parse_one_target(Names::plain));
    }
    return tuple;
  }

  Target parse_one_target(Names names) {
    const ExprParser::Level level(expr_);
    if (expr_.skip_op("(")) {
      Target inner = parse_target(Names::plain, "");
      expr_.expect_op(")");
      return inner;
    }
    Target target;
    const Token& token = expr_.expect(TokenKind::name, "a name to assign to");
    static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
    if (std::find(std::begin(kConstants), std::end(kConstants), token.text) != std::end(kConstants)) {
      expr_.fail_at(token.line, fmt::format("'{}' cannot be assigned to", token.text));
    }
    target.name = token.text;
    if (names == Names::or_attribute && expr_.skip_op(".")) {
      target.attribute = expr_.expect(TokenKind::name, "an attribute's name").text;
    }
    return target;
  }

  // Inside a macro-like body the loops outside do not count for break and continue.
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser), loops_(std::exchange(parser.loops_, 0)) {}
    ~Nested() { parser_.loops_ = loops_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& parser_;
    int loops_;
  };

  std::vector<Token> tokens_;
  ExprParser expr_;
  int loops_ = 0;
};

}  // namespace

Body parse(std::string_view source) { return Parser(source).run(); }

}  // namespace tandem::jinja
