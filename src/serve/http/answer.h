// The head of an answer, and the error bodies that the server writes itself.
#pragma once

#include <string>
#include <string_view>

#include "serve/http/request.h"

namespace tandem::http {

enum class Framing {
  kLength,   // Content-Length
  kChunked,  // Transfer-Encoding: chunked
  kClose,    // until the connection closes (HTTP/1.0)
  kNone,     // 204, 304: no body
};

struct AnswerHead {
  int status = 200;
  Framing framing = Framing::kLength;
  size_t length = 0;
  bool keep_alive = true;
  bool http_1_0 = false;
  std::string_view date;
};

// The name of the first header that may not be sent, or that the server sets itself; empty if there is none.
std::string_view refused_header(const Headers& headers);

void append_head(std::string& out, const AnswerHead& head, const Headers& headers);

// {"error":{"message","type","param":null,"code"}}, the type that belongs to the status.
std::string error_body(int status, std::string_view code, std::string_view message);

// "Tue, 15 Nov 1994 08:12:31 GMT"
std::string http_date(long seconds_since_1970);

}  // namespace tandem::http
