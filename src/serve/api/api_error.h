// What a client is told when a request cannot be answered.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tandem::serve {

using Json = nlohmann::ordered_json;

struct ApiError {
  int status = 400;
  std::string type = {};   // of status, unless it was set: type_of(status)
  std::string code = {};   // empty: null
  std::string param = {};  // the field, as "messages[3].role"; empty: null
  std::string message = {};
  Json extra = {};  // further fields of the error object, or null

  // "invalid_request_error" for 400, "server_error" for 500 ...
  static std::string_view type_of(int status);
  // {"error":{"message","type","param","code", ...}}
  std::string body() const;
};

// Whose shape an error has on the wire.
enum class ErrorForm : uint8_t { openai, anthropic };
struct WrittenError {
  int status;
  std::string body;
};
// For anthropic {"type":"error","error":{"type","message"}}, and 529 for a server that has too much to do.
WrittenError write_error(const ApiError& error, ErrorForm form);

// A value or an ApiError.
template <class T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  ApiResult(ApiError error) : state_(std::in_place_index<1>, std::move(error)) {}
  bool ok() const { return state_.index() == 0; }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const ApiError& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, ApiError> state_;
};

// Errors that are made in more than one place.
ApiError invalid_field(std::string param, std::string code, std::string message);
ApiError model_not_found(std::string_view model, const std::vector<std::string>& served);
ApiError context_length_exceeded(size_t prompt_tokens, size_t max_context);
ApiError cache_capacity_exceeded(size_t prompt_tokens, size_t pool_tokens);
ApiError empty_prompt();
ApiError engine_failed(std::string_view why, std::string_view request_id);
ApiError unavailable(std::string code, std::string message);  // 503: loading, draining, queue_timeout
ApiError queue_full(size_t waiting);

// A value as it stands in an error message: its JSON, cut at 100 characters.
std::string shown(const Json& value);

}  // namespace tandem::serve
