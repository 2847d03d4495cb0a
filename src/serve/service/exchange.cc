#include "serve/service/exchange.h"

#include <algorithm>
#include <cctype>

namespace tandem::serve {

ApiError request_error(int status, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

std::string request_id(std::string_view given, std::string own) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == ':' || c == '-';
  };
  if (given.empty() || given.size() > 128 || !std::all_of(given.begin(), given.end(), allowed)) return own;
  return std::string(given);
}

http::Headers answer_headers(const Exchange& exchange, std::string_view content_type,
                             const std::string& ignored) {
  http::Headers headers{{"content-type", std::string(content_type)}, {"x-request-id", exchange.id}};
  if (!exchange.origin.empty()) {
    headers.emplace_back("access-control-allow-origin", exchange.origin);
    headers.emplace_back("access-control-expose-headers", "x-request-id, x-tandem-ignored");
    headers.emplace_back("vary", "origin");
  }
  if (!ignored.empty()) headers.emplace_back("x-tandem-ignored", ignored);
  return headers;
}

}  // namespace tandem::serve
