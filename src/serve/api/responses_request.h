// Bodies of OpenAI's Responses API as chat tasks.
#pragma once

#include "serve/api/tasks.h"

namespace tandem::serve {

struct ResponsesTask : ChatTask {
  Json echo;  // the fields of the request that an answer repeats
};

// Nothing is stored: what refers to earlier answers is refused, and `store` is ignored.
ApiResult<ResponsesTask> read_responses_request(const Json& body, const ApiContext& context);

}  // namespace tandem::serve
