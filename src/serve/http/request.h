// A request as the handler gets it: the head parsed, the body whole.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // as sent: "GET"
  std::string path;    // "/v1/models" or "*"; not percent-decoded
  std::string query;   // what follows '?', without it; not decoded
  Headers headers;     // names in lower case, in the order sent; repeated ones stay apart
  std::string body;    // chunks joined
  std::string remote;  // "127.0.0.1:50312"

  // The first value of the header, which is named in lower case; empty if it was not sent.
  std::string_view header(std::string_view name) const {
    for (const auto& [n, value] : headers) {
      if (n == name) return value;
    }
    return {};
  }
};

}  // namespace tandem::http
