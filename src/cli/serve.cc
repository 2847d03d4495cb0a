// tandem serve: the OpenAI API over HTTP, until it is told to end.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/serving.h"

namespace tandem {
namespace {

constexpr const char* kCommand = "serve";

constexpr const char* kExamples =
    "tandem serve --model models/tandem-demo\n"
    "tandem serve --model DIR --port 9000 --max-running 16 --context 32768 --api-key KEY\n"
    "curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' -d '{\"messages\": "
    "[{\"role\": \"user\", \"content\": "
    "\"Hi\"}]}'";

// Every answer may grow to the whole context, so there is room for as many contexts as answers at once:
// without
// --context each gets this much, or the model's own if that is smaller.
constexpr int kDefaultContext = 32768;

struct Flags {
  ModelFlags model;
  SpeculationFlags speculation;
  ServingOptions serving;
  int drain_timeout_s = 30;
};

// An empty key, from a variable that is not set, would let everyone in; and line ends have no place in a
// header.
Status all_printable(std::string_view flag, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    const bool printable = std::all_of(value.begin(), value.end(), [](char c) {
      return static_cast<unsigned char>(c) >= ' ' && c != '\x7f';
    });
    if (value.empty() || !printable)
      return Error{fmt::format("{}: {}", flag, value.empty() ? "is empty" : "has control characters")};
  }
  return {};
}

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(
      kCommand,
      "Answers over HTTP as the OpenAI API does, and Anthropic's Messages: chats, completions and responses, "
      "streamed or whole. Every answer is the one that the model gives alone. docs/serving.md says more.",
      kExamples);
  flags.model.add_model(options);
  options.section("Server");
  options.add("--host", &flags.serving.host, "ADDRESS", "Where to listen [127.0.0.1]");
  options.add("--port", &flags.serving.port, "N", "0: any that is free, which is printed [8080]",
              {.min = 0, .max = 65535});
  options.add("--served-model-name", &flags.serving.names, "NAME",
              "The model's name for clients; may be repeated [the folder's]");
  options.add("--api-key", &flags.serving.api_keys, "KEY", "Clients must send one of these; may be repeated");
  options.add(
      "--cors-origin", &flags.serving.cors_origins, "ORIGIN",
      "Web pages that may use the server, as https://chat.example; may be repeated [those it serves]");
  options.add("--max-running", &flags.serving.max_running, "N", "Answers made at once [8]",
              {.min = 1, .max = 64});
  options.add("--max-queue", &flags.serving.max_queue, "N", "Requests that may wait; more get 429 [256]",
              {.min = 0, .max = 100000});
  options.add("--max-body", &flags.serving.max_body_mib, "MIB", "Largest body of a request [32]",
              {.min = 1, .max = 1024});
  options.add("--cache-memory", &flags.serving.cache_mib, "MIB",
              "Memory for prompts that others may go on from; 0: none [1024]", {.min = 0, .max = 1 << 20});
  options.add("--drain-timeout", &flags.drain_timeout_s, "S",
              "Told to end, finish running answers for so long [30]", {.min = 0, .max = 86400});
  options.flag("--strict-params", flags.serving.strict_params, "Refuse fields that nobody knows");
  flags.speculation.add_to(options);
  flags.model.add_backend(options);
  flags.model.add_limits(options);
  if (const auto code = options.parse(args)) return code;
  for (const Status& status : {flags.model.check(), flags.speculation.check(),
                               all_printable("--served-model-name", flags.serving.names),
                               all_printable("--api-key", flags.serving.api_keys),
                               all_printable("--cors-origin", flags.serving.cors_origins)}) {
    if (!status.ok()) return misuse(kCommand, status.error().message);
  }
  return std::nullopt;
}

}  // namespace

int run_serve(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  if (const Status status = flags.model.check_reads_text(); !status.ok())
    return fail(kCommand, status.error().message);
  Result<LoadedModel> model = flags.model.load(kCommand, kMaxDecodeRows);
  if (!model.ok()) return fail(kCommand, model.error().message);
  if (!model->tokenizer)
    return fail(kCommand, model->name + ": no tokenizer.json, so there is no text to serve");
  if (!model->chat_template) warn(kCommand, model->chat_template_error.message + "; chats will be refused");
  Result<int> context = flags.model.context_of(*model);
  if (!context.ok()) return fail(kCommand, context.error().message);
  if (!flags.model.context) *context = std::min(*context, kDefaultContext);

  flags.serving.context = *context;
  flags.serving.prefill_chunk = flags.model.prefill_chunk;
  if (flags.serving.names.empty()) flags.serving.names.push_back(served_name_of(flags.model.model));
  if (!is_loopback(flags.serving.host) && flags.serving.api_keys.empty()) {
    warn(kCommand, fmt::format("anyone who reaches {} may use this server: --api-key KEY asks for a key",
                               flags.serving.host));
  }
  watch_interrupt();  // before anyone can know that we serve
  const Result<std::unique_ptr<Serving>> serving = Serving::start(*model, flags.speculation, flags.serving);
  if (!serving.ok()) return fail(kCommand, serving.error().message);
  say(fmt::format("serving {} at http://{}:{}/v1 ({}, {} at once, {} tokens each)\n",
                  flags.serving.names.front(),
                  flags.serving.host.find(':') == std::string::npos ? flags.serving.host
                                                                    : fmt::format("[{}]", flags.serving.host),
                  (*serving)->port(), model->backend->description(), flags.serving.max_running, *context));

  while (!interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  say("finishing what runs\n");
  (*serving)->drain(std::chrono::seconds(flags.drain_timeout_s));
  return kDone;
}

}  // namespace tandem
