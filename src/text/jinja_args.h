// Arguments bound to the parameters of a built-in function, filter, test or method, as Python binds them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_interpreter.h"

namespace tandem::jinja {

class Bound {
 public:
  // Failure if there are more positional arguments than names, an unknown keyword, or one given twice. `what`
  // names the function in messages.
  Bound(std::string_view what, const Args& args, std::initializer_list<std::string_view> names);

  bool has(std::size_t i) const { return values_[i] != nullptr; }
  // Failure if it was not given.
  const Value& required(std::size_t i) const;
  // Failures if it has another type; the default if it was not given.
  bool flag(std::size_t i, bool otherwise) const;
  Int integer(std::size_t i, Int otherwise) const;
  const Text& text(std::size_t i) const;
  // nullptr if it was not given or is None.
  const Value* get(std::size_t i) const;

 private:
  std::string what_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

}  // namespace tandem::jinja
