// Template source -> tokens, with Jinja's whitespace rules as chat templates are run: trim_blocks and
// lstrip_blocks on, a final newline dropped, `-` and `+` marks honoured. Comments are gone; raw blocks arrive
// as data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace tandem::jinja {

enum class TokenKind : std::uint8_t {
  data,         // text between tags
  block_begin,  // {%
  block_end,
  variable_begin,  // {{
  variable_end,
  name,
  string,  // unescaped
  integer,
  real,
  op,  // text holds the operator: + - * / // % ** ~ ( ) [ ] { } == != < <= > >= = . : | , ;
  end,
};

struct Token {
  TokenKind kind;
  int line;  // 1-based
  std::string text;
  Int integer = 0;
  double real = 0;
};

// Ends with one `end` token. Failure (with line) for anything that Jinja's lexer refuses.
std::vector<Token> tokenize(std::string_view source);

}  // namespace tandem::jinja
