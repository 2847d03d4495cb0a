#include "serve/api/api_error.h"

#include <fmt/format.h>

namespace tandem::serve {
namespace {

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 504:
      return "timeout_error";
    case 529:
      return "overloaded_error";
    default:
      return status < 500 || status == 501 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::string_view ApiError::type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string ApiError::body() const {
  Json error{{"message", message},
             {"type", type.empty() ? std::string(type_of(status)) : type},
             {"param", param.empty() ? Json(nullptr) : Json(param)},
             {"code", code.empty() ? Json(nullptr) : Json(code)}};
  if (extra.is_object()) error.update(extra);
  return Json{{"error", std::move(error)}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

WrittenError write_error(const ApiError& error, ErrorForm form) {
  if (form == ErrorForm::openai) return {error.status, error.body()};
  const int status =
      error.status == 503 || (error.status == 429 && error.code == "queue_full") ? 529 : error.status;
  const Json json{{"type", "error"},
                  {"error", {{"type", anthropic_type(status)}, {"message", error.message}}}};
  return {status, json.dump(-1, ' ', true, Json::error_handler_t::replace)};
}

ApiError invalid_field(std::string param, std::string code, std::string message) {
  return {.status = 400,
          .type = {},
          .code = std::move(code),
          .param = std::move(param),
          .message = std::move(message)};
}

ApiError model_not_found(std::string_view model, const std::vector<std::string>& served) {
  return {.status = 404,
          .type = {},
          .code = "model_not_found",
          .param = "model",
          .message = fmt::format("model: {} is not served here; there is {}", shown(Json(model)),
                                 fmt::join(served, ", "))};
}

ApiError context_length_exceeded(size_t prompt_tokens, size_t max_context) {
  ApiError e =
      invalid_field("messages", "context_length_exceeded",
                    fmt::format("the prompt has {} tokens and the context {}; at least one token must "
                                "be free for the answer: shorten the prompt",
                                prompt_tokens, max_context));
  e.param.clear();
  e.extra = {{"prompt_tokens", prompt_tokens}, {"max_context", max_context}};
  return e;
}

ApiError cache_capacity_exceeded(size_t prompt_tokens, size_t pool_tokens) {
  ApiError e = invalid_field("", "cache_capacity_exceeded",
                             fmt::format("the prompt has {} tokens and the server has memory for {}; shorten "
                                         "the prompt, or give the server more memory",
                                         prompt_tokens, pool_tokens));
  e.extra = {{"prompt_tokens", prompt_tokens}, {"cache_tokens", pool_tokens}};
  return e;
}

ApiError empty_prompt() {
  return invalid_field("", "empty_prompt", "the prompt has no tokens; send at least one");
}

ApiError engine_failed(std::string_view why, std::string_view request_id) {
  return {.status = 500,
          .type = {},
          .code = "engine_failed",
          .param = {},
          .message = fmt::format("{} (request {})", why, request_id)};
}

ApiError unavailable(std::string code, std::string message) {
  return {.status = 503, .type = {}, .code = std::move(code), .param = {}, .message = std::move(message)};
}

ApiError queue_full(size_t waiting) {
  return {.status = 429,
          .type = {},
          .code = "queue_full",
          .param = {},
          .message = fmt::format("{} requests are waiting already; try again later", waiting)};
}

std::string shown(const Json& value) {
  constexpr size_t kLongest = 100;
  // Only the beginning is wanted, and a dump of all of it may be large.
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return "an object";
  std::string text;
  if (value.is_string() && value.get_ref<const std::string&>().size() > 4 * kLongest) {
    text = Json(value.get_ref<const std::string&>().substr(0, 4 * kLongest))
               .dump(-1, ' ', false, Json::error_handler_t::ignore);
  } else {
    text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  size_t end = 0, n = 0;
  for (; end < text.size(); ++end) {
    if ((text[end] & 0xC0) != 0x80 && n++ == kLongest) return text.substr(0, end) + "...";
  }
  return text;
}

}  // namespace tandem::serve
