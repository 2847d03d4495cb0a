#include "cli/serving.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "cli/version.h"

namespace tandem {
namespace {

// Every connection takes a file descriptor.
void allow_many_connections() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string served_name_of(const std::string& model) {
  const size_t end = model.find_last_not_of('/');
  const size_t begin = model.find_last_of('/', end);
  return model.substr(begin == std::string::npos ? 0 : begin + 1,
                      end - (begin == std::string::npos ? size_t(-1) : begin));
}

Result<ServingEngine> ServingEngine::create(LoadedModel& model, const SpeculationFlags& speculation,
                                            const ServingOptions& options) {
  EngineOptions engine_options{.max_sequences = options.max_running,
                               .max_positions = options.context * options.max_running,
                               .prefill_chunk = options.prefill_chunk,
                               .prefix_cache_bytes = size_t(options.cache_mib) << 20,
                               .n_text_tokens = model.n_text_tokens()};
  ServingEngine made;
  TD_ASSIGN_OR_RETURN(made.drafters,
                      speculation.load(model, {.max_sequences = options.max_running,
                                               .max_positions = engine_options.max_positions}));
  speculation.apply(made.drafters, engine_options);
  Result<std::unique_ptr<Engine>> engine = Engine::create(*model.decoder, engine_options);
  if (!engine.ok()) {
    return Error{fmt::format("{}: a smaller --context or --max-running needs less", engine.error().message)};
  }
  made.engine = *std::move(engine);
  return made;
}

Serving::Serving(const LoadedModel& model, ServingEngine engine, const ServingOptions& options)
    : engine_(std::move(engine)),
      service_(model, *engine_.engine,
               {.names = options.names,
                .api_keys = options.api_keys,
                .origin = {.origins = options.cors_origins, .loopback_names_only = is_loopback(options.host)},
                .limits = {.max_running = options.max_running, .max_queue = options.max_queue},
                .context = options.context,
                .strict_params = options.strict_params,
                .fingerprint = fmt::format("tandem-{}-{}", version(), model.backend->name()),
                .version = version()}) {}

Result<std::unique_ptr<Serving>> Serving::start(LoadedModel& model, const SpeculationFlags& speculation,
                                                const ServingOptions& options) {
  Result<ServingEngine> engine = ServingEngine::create(model, speculation, options);
  if (!engine.ok()) return engine.error();
  std::unique_ptr<Serving> serving(new Serving(model, *std::move(engine), options));
  allow_many_connections();
  http::ServerOptions server_options;
  server_options.host = options.host;
  server_options.port = options.port;
  server_options.limits.body = size_t(options.max_body_mib) << 20;
  TD_ASSIGN_OR_RETURN(
      serving->server_,
      http::Server::start(server_options, [&service = serving->service_](http::HttpRequest request,
                                                                         std::shared_ptr<http::Reply> reply) {
        service.handle(std::move(request), std::move(reply));
      }));
  serving->service_.attach(*serving->server_);
  return serving;
}

Serving::~Serving() {
  if (server_ != nullptr) server_->stop();
}

void Serving::drain(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  service_.drain(timeout);
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
  server_->drain(std::clamp(left, milliseconds(200), milliseconds(2000)));
}

}  // namespace tandem
