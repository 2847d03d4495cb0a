// Readers that chat and completion requests share.
#pragma once

#include <set>

#include "serve/api/fields.h"
#include "serve/api/tasks.h"

namespace tandem::serve {

// All fields of GenerationTask but max_tokens and logprobs, whose meaning differs.
void read_generation(Fields& fields, const ApiContext& context, GenerationTask& task);
// Unknown keys: kept, or an error.
void read_unknown(Fields& fields, const ApiContext& context, GenerationTask& task);
// Messages in the form that templates expect.
void read_messages(const Json& messages, std::optional<ApiError>& error, Json& out);
// A string, a text part or an array of them, joined; `fields` have the prefix `prefix`. Nothing when it is
// absent.
std::optional<std::string> read_text(Fields& fields, const std::string& prefix, std::string_view key,
                                     std::optional<ApiError>& error);
// The arguments of a call as templates iterate over them: an object where the text is one.
Json call_arguments(const Json& written);
// Stop strings under the name that an API has for them.
void read_stop_strings(Fields& fields, std::string_view key, GenerationTask& task);
// A tool's "name", which no other in `names` has; nothing after an error.
std::optional<std::string> read_tool_name(Fields& fields, std::set<std::string>& names);
// Checked tools, {"type": "function", "function": {..}} each; may be empty.
void set_tools(Json tools, ChatTask& task);
inline constexpr size_t kMostTools = 256;

}  // namespace tandem::serve
