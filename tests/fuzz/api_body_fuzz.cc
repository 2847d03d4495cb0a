// Any bytes as the body of a chat and of a completions request: a task, or an error that is an answer.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "serve/api/json_body.h"
#include "serve/api/tasks.h"
#include "text/unicode.h"

namespace {

void check_error(const tandem::serve::ApiError& error) {
  TD_CHECK(error.status >= 400 && error.status < 600, "status %d\n", error.status);
  TD_CHECK(!error.message.empty(), "an error without a message\n");
  TD_CHECK(tandem::serve::Json::accept(error.body()), "an error's body is no JSON\n");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::serve;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto body = parse_body(text);
  if (!body.ok()) {
    check_error(body.error());
    return 0;
  }
  TD_CHECK(Json::accept(text), "read as JSON, and is none\n");
  ApiContext context;
  context.models = {"m"};
  context.n_vocab = 1000;
  const auto chat = read_chat_request(*body, context);
  if (chat.ok()) {
    TD_CHECK(!chat->messages.empty() && chat->n >= 1, "an empty task\n");
    if (const auto refused = unsupported(*chat)) check_error(*refused);
    TD_CHECK(ignored_header(chat->ignored).size() <= 512, "a long header\n");
  } else {
    check_error(chat.error());
  }
  const auto completion = read_completion_request(*body, context);
  if (!completion.ok()) check_error(completion.error());
  return 0;
}
