// Result<T>: a value or an Error that says what was wrong, where, and what to do about it.
// For what the outside can get wrong (files, flags, requests, memory). Our own mistakes are TD_CHECKs.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace tandem {

// One sentence for a person: the thing (file, tensor, field, flag), what was expected, what was found, the
// cure.
struct Error {
  std::string message;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Only when ok(); std::get throws otherwise, which is a bug of the caller.
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace tandem

// Leaves the enclosing function with the error, if there is one.
#define TD_RETURN_IF_ERROR(expr)                    \
  do {                                              \
    if (auto td_status = (expr); !td_status.ok()) { \
      return td_status.error();                     \
    }                                               \
  } while (0)

// TD_ASSIGN_OR_RETURN(auto x, f()): x is the value of f(), or the enclosing function returns f()'s error.
#define TD_ASSIGN_OR_RETURN(decl, expr) TD_ASSIGN_OR_RETURN_IMPL(TD_CONCAT(td_result_, __LINE__), decl, expr)
#define TD_ASSIGN_OR_RETURN_IMPL(tmp, decl, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.error();              \
  decl = *std::move(tmp)
#define TD_CONCAT(a, b) TD_CONCAT_IMPL(a, b)
#define TD_CONCAT_IMPL(a, b) a##b
