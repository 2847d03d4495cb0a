// A request body as JSON. Bodies are hostile: depth, size of the tree and time are bounded whatever they
// hold.
#pragma once

#include <string_view>

#include "serve/api/api_error.h"

namespace tandem::serve {

struct JsonBodyLimits {
  int max_depth = 128;
  size_t max_values = size_t{4} << 20;  // a tree takes many times the bytes of its text
};

// Of a repeated key the last value counts. Linear in the text. Errors (400), with the byte offset:
// missing_body; invalid_json for what is not JSON, not UTF-8, has half a surrogate pair or a number out of
// range; too_deep; too_large for too many values.
ApiResult<Json> parse_json(std::string_view text, JsonBodyLimits limits = {});

// The same, and it must be an object (else invalid_type).
ApiResult<Json> parse_body(std::string_view text, JsonBodyLimits limits = {});

}  // namespace tandem::serve
