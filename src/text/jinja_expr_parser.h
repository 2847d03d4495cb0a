// The expression half of the parser; also the token cursor that the statement half shares.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace tandem::jinja {

class ExprParser {
 public:
  // `tokens` must outlive the parser and end with an `end` token.
  explicit ExprParser(const std::vector<Token>& tokens) : tokens_(tokens) {}

  // --- cursor
  const Token& current() const { return tokens_[pos_]; }
  const Token& next();  // returns the token read
  const Token& expect(TokenKind kind, std::string_view what);
  bool at_op(std::string_view op) const { return current().kind == TokenKind::op && current().text == op; }
  bool skip_op(std::string_view op);
  void expect_op(std::string_view op);
  bool at_name(std::string_view name) const {
    return current().kind == TokenKind::name && current().text == name;
  }
  bool skip_name(std::string_view name);
  void expect_name(std::string_view name);
  [[noreturn]] void fail_at(int line, std::string message) const;

  // One level of brackets or blocks deeper while it lives; Failure beyond kMaxTreeDepth.
  class Level {
   public:
    explicit Level(ExprParser& parser);
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    ExprParser& parser_;
  };

  // --- grammar
  struct TupleOptions {
    bool conditions = true;      // `a if b else c` may appear outside of brackets
    std::string_view end = {};   // keyword that may follow a trailing comma
    bool parenthesized = false;  // may be empty
  };
  ExprPtr parse_expression();
  // Expressions separated by commas: a tuple if there is a comma, else the expression itself.
  ExprPtr parse_tuple(TupleOptions options);
  // `| filter ...` as often as there is one, applied to `subject`; returns `subject` if there is none.
  ExprPtr parse_filters(ExprPtr subject);
  // `name(args) | more` with no subject.
  ExprPtr parse_filter_named_here();

  // Which of a macro's special names have been read since last cleared.
  struct SpecialNames {
    bool caller = false, varargs = false, kwargs = false;
  };
  SpecialNames& special_names() { return special_; }

 private:
  ExprPtr make(ExprKind kind, int line) const;
  // Adds a child and keeps the height; Failure beyond kMaxTreeDepth.
  void adopt(Expr& parent, ExprPtr child) const;
  void raise_height(Expr& parent, const Expr* child) const;

  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  enum class Filters { no, yes };
  ExprPtr parse_unary(Filters filters);
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filter(ExprPtr subject);
  ExprPtr parse_test(ExprPtr subject);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_subscribed();
  ExprPtr parse_call(ExprPtr callee);
  void parse_call_args(Expr& node);

  const std::vector<Token>& tokens_;
  std::size_t pos_ = 0;
  int depth_ = 0;
  SpecialNames special_;
};

}  // namespace tandem::jinja
