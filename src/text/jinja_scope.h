// The interpreter's scope of one block; only for jinja_interpreter.cc and jinja_calls.cc.
#pragma once

#include <memory>

#include "text/jinja_interpreter.h"

namespace tandem::jinja {

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

}  // namespace tandem::jinja
