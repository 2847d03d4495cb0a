// tandem serve: the OpenAI API over HTTP, until it is told to end.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/version.h"
#include "serve/http/server.h"
#include "serve/service/service.h"

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
  std::string host = "127.0.0.1";
  int port = 8080;
  std::vector<std::string> names, api_keys, cors_origins;
  int max_running = 8, max_queue = 256;
  int max_body_mib = 32;
  int cache_mib = 1024;
  int drain_timeout_s = 30;
  bool strict_params = false;
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
  options.add("--host", &flags.host, "ADDRESS", "Where to listen [127.0.0.1]");
  options.add("--port", &flags.port, "N", "0: any that is free, which is printed [8080]",
              {.min = 0, .max = 65535});
  options.add("--served-model-name", &flags.names, "NAME",
              "The model's name for clients; may be repeated [the folder's]");
  options.add("--api-key", &flags.api_keys, "KEY", "Clients must send one of these; may be repeated");
  options.add(
      "--cors-origin", &flags.cors_origins, "ORIGIN",
      "Web pages that may use the server, as https://chat.example; may be repeated [those it serves]");
  options.add("--max-running", &flags.max_running, "N", "Answers made at once [8]", {.min = 1, .max = 64});
  options.add("--max-queue", &flags.max_queue, "N", "Requests that may wait; more get 429 [256]",
              {.min = 0, .max = 100000});
  options.add("--max-body", &flags.max_body_mib, "MIB", "Largest body of a request [32]",
              {.min = 1, .max = 1024});
  options.add("--cache-memory", &flags.cache_mib, "MIB",
              "Memory for prompts that others may go on from; 0: none [1024]", {.min = 0, .max = 1 << 20});
  options.add("--drain-timeout", &flags.drain_timeout_s, "S",
              "Told to end, finish running answers for so long [30]", {.min = 0, .max = 86400});
  options.flag("--strict-params", flags.strict_params, "Refuse fields that nobody knows");
  flags.speculation.add_to(options);
  flags.model.add_backend(options);
  flags.model.add_limits(options);
  if (const auto code = options.parse(args)) return code;
  for (const Status& status :
       {flags.model.check(), flags.speculation.check(), all_printable("--served-model-name", flags.names),
        all_printable("--api-key", flags.api_keys), all_printable("--cors-origin", flags.cors_origins)}) {
    if (!status.ok()) return misuse(kCommand, status.error().message);
  }
  return std::nullopt;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// The last part of a folder's path; synth:NAME as it is.
std::string name_of(const std::string& model) {
  const size_t end = model.find_last_not_of('/');
  const size_t begin = model.find_last_of('/', end);
  return model.substr(begin == std::string::npos ? 0 : begin + 1,
                      end - (begin == std::string::npos ? size_t(-1) : begin));
}

// Every connection takes a file descriptor.
void allow_many_connections() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
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

  EngineOptions engine_options{.max_sequences = flags.max_running,
                               .max_positions = *context * flags.max_running,
                               .prefill_chunk = flags.model.prefill_chunk,
                               .prefix_cache_bytes = size_t(flags.cache_mib) << 20,
                               .n_text_tokens = model->n_text_tokens()};
  const Result<SpeculationFlags::Drafters> drafters = flags.speculation.load(
      *model, {.max_sequences = flags.max_running, .max_positions = engine_options.max_positions});
  if (!drafters.ok()) return fail(kCommand, drafters.error().message);
  flags.speculation.apply(*drafters, engine_options);
  const Result<std::unique_ptr<Engine>> engine = Engine::create(*model->decoder, engine_options);
  if (!engine.ok()) {
    return fail(kCommand,
                fmt::format("{}: a smaller --context or --max-running needs less", engine.error().message));
  }

  if (flags.names.empty()) flags.names.push_back(name_of(flags.model.model));
  if (!is_loopback(flags.host) && flags.api_keys.empty()) {
    warn(kCommand,
         fmt::format("anyone who reaches {} may use this server: --api-key KEY asks for a key", flags.host));
  }
  serve::Service service(
      *model, **engine,
      {.names = flags.names,
       .api_keys = flags.api_keys,
       .origin = {.origins = flags.cors_origins, .loopback_names_only = is_loopback(flags.host)},
       .limits = {.max_running = flags.max_running, .max_queue = flags.max_queue},
       .context = *context,
       .strict_params = flags.strict_params,
       .fingerprint = fmt::format("tandem-{}-{}", version(), model->backend->name()),
       .version = version()});
  watch_interrupt();  // before anyone can know that we serve
  allow_many_connections();
  http::ServerOptions server_options;
  server_options.host = flags.host;
  server_options.port = flags.port;
  server_options.limits.body = size_t(flags.max_body_mib) << 20;
  const auto handler = [&service](http::HttpRequest request, std::shared_ptr<http::Reply> reply) {
    service.handle(std::move(request), std::move(reply));
  };
  const Result<std::unique_ptr<http::Server>> server = http::Server::start(server_options, handler);
  if (!server.ok()) return fail(kCommand, server.error().message);
  service.attach(**server);
  say(fmt::format("serving {} at http://{}:{}/v1 ({}, {} at once, {} tokens each)\n", flags.names.front(),
                  flags.host.find(':') == std::string::npos ? flags.host : fmt::format("[{}]", flags.host),
                  (*server)->port(), model->backend->description(), flags.max_running, *context));

  while (!interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  say("finishing what runs\n");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(flags.drain_timeout_s);
  service.drain(std::chrono::seconds(flags.drain_timeout_s));
  const auto left = std::max(
      std::chrono::milliseconds(200),
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()));
  (*server)->drain(std::min(left, std::chrono::milliseconds(2000)));
  return kDone;
}

}  // namespace tandem
