// One request and its reply, on their way through the service's threads.
#pragma once

#include <memory>
#include <string>

#include "serve/api/api_error.h"
#include "serve/http/reply.h"
#include "serve/http/request.h"

namespace tandem::serve {

struct Exchange {
  http::HttpRequest request;
  std::shared_ptr<http::Reply> reply;
  std::string id;         // x-request-id of the answer
  std::string origin;     // of the web page that asks, which may read the answer; empty for programs
  std::string_view rest;  // of the path, behind a route that ends in '/'
  ErrorForm errors = ErrorForm::openai;
};

// An error that concerns no field.
ApiError request_error(int status, std::string code, std::string message);

// The id a client gave, if it may be sent back as a header, or else `own`.
std::string request_id(std::string_view given, std::string own);

// Headers that every answer has; `ignored`: x-tandem-ignored, unless empty.
http::Headers answer_headers(const Exchange& exchange, std::string_view content_type,
                             const std::string& ignored = {});

}  // namespace tandem::serve
