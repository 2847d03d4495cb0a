#include "serve/api/sse.h"

namespace tandem::serve {
namespace {

// One line whatever the text: everything beyond ASCII is escaped.
std::string one_line(const Json& json) { return json.dump(-1, ' ', true, Json::error_handler_t::replace); }

}  // namespace

void append_event(const Json& json, std::string& out) {
  out += "data: ";
  out += one_line(json);
  out += "\n\n";
}

void append_comment(std::string_view name, const Json& json, std::string& out) {
  out += ": ";
  out += name;
  out += ' ';
  out += one_line(json);
  out += "\n\n";
}

void append_stream_error(const ApiError& error, std::string& out) {
  out += "data: ";
  out += one_line(Json::parse(error.body(), nullptr, false));
  out += "\n\n";
  out += kSseDone;
}

Json prefill_progress(size_t processed_tokens, size_t total_tokens, size_t cached_tokens, double elapsed_ms) {
  return {{"processed_tokens", processed_tokens},
          {"total_tokens", total_tokens},
          {"cached_tokens", cached_tokens},
          {"elapsed_ms", elapsed_ms}};
}

}  // namespace tandem::serve
