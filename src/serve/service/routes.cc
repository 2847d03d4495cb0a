// Where requests go, and the answers that need no engine.
#include <fmt/format.h>

#include <algorithm>

#include "serve/api/json_body.h"
#include "serve/service/service.h"

namespace tandem::serve {
namespace {

// Bodies above kLargeBody take seconds each: they wait apart, and few of them may, since what waits is
// memory.
constexpr size_t kMaxWaitingBodies = 1024, kMaxWaitingLargeBodies = 16, kLargeBody = 256 << 10;

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Without telling by its time how much of it was right.
bool same(std::string_view known, std::string_view given) {
  unsigned difference = known.size() == given.size() ? 0u : 1u;
  for (size_t i = 0; i < known.size(); ++i) {
    const auto other = i < given.size() ? static_cast<unsigned char>(given[i]) : 0u;
    difference |= static_cast<unsigned char>(known[i]) ^ other;
  }
  return difference == 0;
}

}  // namespace

const std::vector<Service::Route>& Service::routes() {
  static const std::vector<Route> kRoutes = {
      {"GET", "/health", &Service::health, true},
      {"GET", "/ready", &Service::ready, true},
      {"GET", "/v1/models", &Service::models},
      {"GET", "/v1/models/", &Service::one_model},
      {"GET", "/metrics", &Service::metrics},
      {"GET", "/v1/stats", &Service::stats},
      {"POST", "/v1/cancel/", &Service::cancel},
      {"POST", "/tokenize", &Service::tokenize, false, true},
      {"POST", "/detokenize", &Service::detokenize, false, true},
      {"POST", "/v1/chat/completions", &Service::chat_completions, false, true},
      {"POST", "/chat/completions", &Service::chat_completions, false, true},
      {"POST", "/v1/completions", &Service::completions, false, true},
      {"POST", "/v1/responses", &Service::responses, false, true},
      {"POST", "/v1/messages", &Service::messages, false, true},
      {"POST", "/v1/messages/count_tokens", &Service::count_tokens, false, true},
      {"POST", "/v1/embeddings", &Service::not_yet},
  };
  return kRoutes;
}

Service::Service(const LoadedModel& model, Engine& engine, ServiceOptions options)
    : model_(model),
      options_(std::move(options)),
      context_{.models = options_.names,
               .n_vocab = model.config.vocab_size,
               .defaults = api_defaults(model.generation),
               .strict_params = options_.strict_params},
      markers_(Markers::of(*model.tokenizer)),
      started_s_(unix_seconds()),
      loop_(engine, options_.limits,
            [this](const std::function<void()>& flushes) {
              http::Server* const server = server_;
              if (server == nullptr) return flushes();
              const http::WriteBatch batch(*server);
              flushes();
            }),
      worker_(kMaxWaitingBodies),
      large_worker_(kMaxWaitingLargeBodies) {}

Service::~Service() { loop_.stop(); }

void Service::drain(std::chrono::milliseconds timeout) {
  draining_ = true;
  loop_.drain(timeout);
}

bool Service::may_enter(const http::HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  std::string_view key = request.header("x-api-key");
  constexpr std::string_view kBearer = "Bearer ";
  if (const std::string_view given = request.header("authorization"); given.starts_with(kBearer)) {
    key = given.substr(kBearer.size());
  }
  bool right = false;
  for (const std::string& known : options_.api_keys) right |= same(known, key);
  return right;
}

void Service::handle(http::HttpRequest request, std::shared_ptr<http::Reply> reply) {
  ++n_requests_;
  auto exchange = std::make_shared<Exchange>();
  exchange->id = request_id(request.header("x-request-id"), fmt::format("req-{:08x}", next_id()));
  exchange->reply = std::move(reply);
  exchange->request = std::move(request);
  const std::string& path = exchange->request.path;
  if (path.starts_with("/v1/messages")) exchange->errors = ErrorForm::anthropic;
  const std::string_view host = exchange->request.header("host"), origin = exchange->request.header("origin");
  if (!options_.origin.host_allowed(host)) {
    return answer(*exchange,
                  request_error(403, "host_not_allowed",
                                fmt::format("this server is not known as {}: it listens on loopback",
                                            host.substr(0, 100))));
  }
  if (!options_.origin.origin_allowed(origin, host)) {
    return answer(*exchange,
                  request_error(403, "origin_not_allowed",
                                fmt::format("pages of {} may not use this server: --cors-origin allows them",
                                            origin.substr(0, 100))));
  }
  exchange->origin = origin;
  if (exchange->request.method == "OPTIONS") return preflight(*exchange);
  const std::string_view method = exchange->request.method == "HEAD" ? "GET" : exchange->request.method;
  std::string allowed;
  for (const Route& route : routes()) {
    const bool prefix = route.path.back() == '/';
    if (prefix ? !(path.starts_with(route.path) && path.size() > route.path.size()) : path != route.path)
      continue;
    if (route.method == method) {
      if (prefix) exchange->rest = std::string_view(path).substr(route.path.size());
      return run(route, exchange);
    }
    allowed += allowed.empty() ? route.method : fmt::format(", {}", route.method);
  }
  if (allowed.empty()) {
    return answer(*exchange,
                  request_error(404, "not_found", fmt::format("no such path: {}", path.substr(0, 100))));
  }
  http::Headers headers = answer_headers(*exchange, "application/json");
  headers.emplace_back("allow", allowed);
  ++n_errors_;
  exchange->reply->send(405, std::move(headers),
                        write_error(request_error(405, "method_not_allowed",
                                                  fmt::format("{} takes {}", path.substr(0, 100), allowed)),
                                    exchange->errors)
                            .body);
}

// What a browser asks before it sends a page's request.
void Service::preflight(Exchange& exchange) {
  http::Headers headers = answer_headers(exchange, "text/plain");
  headers.emplace_back("access-control-allow-methods", "GET, POST");
  headers.emplace_back(
      "access-control-allow-headers",
      "authorization, content-type, x-api-key, x-request-id, openai-organization, openai-project, "
      "anthropic-version, anthropic-beta, anthropic-dangerous-direct-browser-access, "
      "x-stainless-arch, x-stainless-lang, x-stainless-os, x-stainless-package-version, "
      "x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout");
  headers.emplace_back("access-control-max-age", "600");
  exchange.reply->send(204, std::move(headers), "");
}

void Service::run(const Route& route, const std::shared_ptr<Exchange>& exchange) {
  if (!route.open && !may_enter(exchange->request)) {
    http::Headers headers = answer_headers(*exchange, "application/json");
    headers.emplace_back("www-authenticate", "Bearer");
    ++n_errors_;
    return exchange->reply->send(
        401, std::move(headers),
        write_error(request_error(401, "invalid_api_key",
                                  "the API key is missing or wrong: send Authorization: Bearer KEY"),
                    exchange->errors)
            .body);
  }
  if (!route.in_turn) return (this->*route.handle)(*exchange);
  if (draining_) return answer(*exchange, unavailable("draining", "the server is shutting down"));
  const bool large = exchange->request.body.size() > kLargeBody;
  const bool taken = (large ? large_worker_ : worker_).push([this, handle = route.handle, exchange] {
    try {
      (this->*handle)(*exchange);
    } catch (const std::exception& e) {
      answer(*exchange, engine_failed(e.what(), exchange->id));
    }
  });
  if (!taken) answer(*exchange, queue_full(large ? kMaxWaitingLargeBodies : kMaxWaitingBodies));
}

void Service::answer(Exchange& exchange, int status, const Json& body) {
  exchange.reply->send(status, answer_headers(exchange, "application/json"),
                       body.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Service::answer(Exchange& exchange, const ApiError& error) {
  ++n_errors_;
  http::Headers headers = answer_headers(exchange, "application/json");
  if (error.status == 429 || error.status == 503) headers.emplace_back("retry-after", "1");
  WrittenError written = write_error(error, exchange.errors);
  exchange.reply->send(written.status, std::move(headers), std::move(written.body));
}

void Service::health(Exchange& exchange) { answer(exchange, 200, {{"status", "ok"}}); }

void Service::ready(Exchange& exchange) {
  if (draining_) return answer(exchange, unavailable("draining", "the server is shutting down"));
  answer(exchange, 200, {{"status", "ready"}, {"model", options_.names.front()}});
}

namespace {
Json model_card(const std::string& name, int64_t created, int context) {
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "tandem"},
          {"max_model_len", context}};
}
}  // namespace

void Service::models(Exchange& exchange) {
  Json list = Json::array();
  for (const std::string& name : options_.names)
    list.push_back(model_card(name, started_s_, options_.context));
  answer(exchange, 200, {{"object", "list"}, {"data", list}});
}

void Service::one_model(Exchange& exchange) {
  const auto it = std::find(options_.names.begin(), options_.names.end(), exchange.rest);
  if (it == options_.names.end()) return answer(exchange, model_not_found(exchange.rest, options_.names));
  answer(exchange, 200, model_card(*it, started_s_, options_.context));
}

void Service::stats(Exchange& exchange) {
  const EngineLoop::Counters& c = loop_.counters();
  answer(exchange, 200,
         {{"model", options_.names.front()},
          {"version", options_.version},
          {"context", options_.context},
          {"draining", draining_.load()},
          {"uptime_s", unix_seconds() - started_s_},
          {"connections", server_.load() == nullptr ? 0 : int64_t(server_.load()->connections())},
          {"requests", n_requests_.load()},
          {"errors", n_errors_.load()},
          {"cancelled", n_cancelled_.load()},
          {"running", c.running.load()},
          {"queued", c.queued.load()},
          {"prompt_tokens", c.prompt_tokens.load()},
          {"generated_tokens", c.generated_tokens.load()},
          {"rounds", c.rounds.load()},
          {"drafted_tokens", c.drafted_tokens.load()},
          {"accepted_tokens", c.accepted_tokens.load()},
          {"since_last_step_ms", loop_.since_last_step().count()}});
}

void Service::metrics(Exchange& exchange) {
  const EngineLoop::Counters& c = loop_.counters();
  std::string model;
  for (const char ch : options_.names.front()) {
    if (ch == '\\' || ch == '"') model += '\\';
    model += ch == '\n' ? ' ' : ch;
  }
  std::string text;
  const auto put = [&](std::string_view name, std::string_view type, std::string_view help, int64_t value) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0}{{model=\"{3}\"}} {4}\n", name, help, type, model,
                        value);
  };
  put("tandem_http_requests_total", "counter", "Requests received.", n_requests_);
  put("tandem_http_errors_total", "counter", "Requests answered with an error.", n_errors_);
  put("tandem_cancelled_total", "counter", "Generations ended because the client went away or asked for it.",
      n_cancelled_);
  put("tandem_prompt_tokens_total", "counter", "Prompt tokens of ended choices.", c.prompt_tokens);
  put("tandem_generated_tokens_total", "counter", "Tokens generated by ended choices.", c.generated_tokens);
  put("tandem_rounds_total", "counter", "Decode rounds of ended choices.", c.rounds);
  put("tandem_draft_tokens_total", "counter", "Drafted tokens that were verified.", c.drafted_tokens);
  put("tandem_accepted_tokens_total", "counter", "Drafted tokens that were accepted.", c.accepted_tokens);
  put("tandem_requests_running", "gauge", "Generations that the engine works on.", c.running);
  put("tandem_requests_queued", "gauge", "Generations on their way to the engine.", c.queued);
  exchange.reply->send(200, answer_headers(exchange, "text/plain; version=0.0.4; charset=utf-8"),
                       std::move(text));
}

void Service::not_yet(Exchange& exchange) {
  answer(exchange,
         request_error(501, "not_supported",
                       fmt::format("{} is not supported: use /v1/chat/completions or /v1/completions",
                                   exchange.request.path)));
}

}  // namespace tandem::serve
