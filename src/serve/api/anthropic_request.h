// Bodies of Anthropic's Messages API as chat tasks.
#pragma once

#include "serve/api/tasks.h"

namespace tandem::serve {

// `count_only`: the prompt's tokens are to be counted, and max_tokens may be absent. Thinking is off unless
// the request turns it on; an assistant message that stands last goes on.
ApiResult<ChatTask> read_anthropic_request(const Json& body, const ApiContext& context, bool count_only);

}  // namespace tandem::serve
