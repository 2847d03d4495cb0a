// Readers that chat and completion requests share.
#pragma once

#include "serve/api/fields.h"
#include "serve/api/tasks.h"

namespace tandem::serve {

// All fields of GenerationTask but logprobs, whose meaning differs.
void read_generation(Fields& fields, const ApiContext& context, GenerationTask& task);
// Unknown keys: kept, or an error.
void read_unknown(Fields& fields, const ApiContext& context, GenerationTask& task);
// Messages in the form that templates expect.
void read_messages(const Json& messages, std::optional<ApiError>& error, Json& out);

}  // namespace tandem::serve
