// Server-sent events: what goes over the wire between the events' own JSON.
#pragma once

#include <string>
#include <string_view>

#include "serve/api/api_error.h"

namespace tandem::serve {

inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

// "data: {..}\n\n"; for what is not written often.
void append_event(const Json& json, std::string& out);
// ": name {..}\n\n". Readers of server-sent events drop comments.
void append_comment(std::string_view name, const Json& json, std::string& out);
// The error as an event, then [DONE]: the end of a stream that failed.
void append_stream_error(const ApiError& error, std::string& out);

// The payload of ": prefill_progress".
Json prefill_progress(size_t processed_tokens, size_t total_tokens, size_t cached_tokens, double elapsed_ms);

}  // namespace tandem::serve
