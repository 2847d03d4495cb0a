// The fields of one object of a request, read by name. The first thing that is wrong is kept; whoever reads
// goes on with absent values and asks for the error at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/api_error.h"

namespace tandem::serve {

class Fields {
 public:
  // Borrows both. `prefix`: what stands before a key in `param`, such as "stream_options.".
  Fields(const Json& object, std::string prefix, std::optional<ApiError>& error)
      : object_(&object), prefix_(std::move(prefix)), error_(&error) {}

  // Absent or null: nothing.
  const Json* any(std::string_view key);
  std::optional<double> number(std::string_view key, double low, double high, std::string_view want);
  // 3.0 is an integer, 3.5 and "3" are not.
  std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::string> string(std::string_view key);
  const Json* object(std::string_view key);
  const Json* array(std::string_view key);
  // Known, whatever it holds.
  void ignore(std::string_view key) { known_.insert(std::string(key)); }

  // "temperature: expected a number in [0, 2], found 3"
  void wrong(std::string_view key, std::string code, std::string_view want, const Json& found);
  void fail(std::string_view key, std::string code, std::string_view message);
  // Takes over an error that was found deeper.
  void adopt(ApiError error) {
    if (!*error_) *error_ = std::move(error);
  }
  bool ok() const { return !error_->has_value(); }

  // Keys that nobody asked for, in order.
  std::vector<std::string> unknown() const;

 private:
  const Json* object_;
  std::string prefix_;
  std::optional<ApiError>* error_;
  std::set<std::string, std::less<>> known_;
};

// An integer value, also when written as 3.0; nothing for anything else.
std::optional<int64_t> as_integer(const Json& value);

}  // namespace tandem::serve
