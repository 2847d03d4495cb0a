// A parsed template, and the edge of the interpreter: what goes wrong inside comes out of here as an error
// "name:line: what". Immutable; may be rendered from many threads at once.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/jinja_ast.h"
#include "text/jinja_budget.h"
#include "text/jinja_value.h"

namespace tandem::jinja {

class Template {
 public:
  // `name` stands for the template in errors. Errors: not UTF-8, larger than 4 MiB, or a syntax error.
  static Result<Template> parse(std::string name, std::string_view source);

  // `variables` has string keys. `now` is local time for strftime_now(). Errors: whatever the template
  // raises, a type error, or a limit hit.
  Result<Text> render(const Dict& variables, const Limits& limits, std::optional<std::tm> now) const;

  const std::string& name() const { return name_; }

 private:
  Template() = default;

  std::string name_;
  std::shared_ptr<const Body> body_;
};

}  // namespace tandem::jinja
