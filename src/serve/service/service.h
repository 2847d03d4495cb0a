// The HTTP API of one loaded model: routes, keys, queue, answers.
//
// Three threads besides the server's: that one only parses heads and moves bytes; the worker reads bodies,
// renders templates and tokenises; the engine's (EngineLoop) makes tokens and, since a token's text costs
// some microseconds, turns them into what is sent.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/loaded_model.h"
#include "serve/api/chat_prompt.h"
#include "serve/api/tasks.h"
#include "serve/http/server.h"
#include "serve/service/completion.h"
#include "serve/service/engine_loop.h"
#include "serve/service/exchange.h"
#include "serve/service/origin.h"
#include "serve/service/worker.h"
#include "serve/text/pipeline.h"

namespace tandem::serve {

struct ServiceOptions {
  std::vector<std::string> names;     // the model's id, then aliases
  std::vector<std::string> api_keys;  // none: open to whoever reaches the port
  OriginPolicy origin;
  EngineLoop::Limits limits;
  int context = 0;  // positions of one request
  bool strict_params = false;
  std::string fingerprint;  // system_fingerprint of answers
  std::string version;
};

class Service {
 public:
  // Model and engine must outlive the service.
  Service(const LoadedModel& model, Engine& engine, ServiceOptions options);
  ~Service();

  // The server's handler. The server must be attached before the first request comes and outlive the service.
  void handle(http::HttpRequest request, std::shared_ptr<http::Reply> reply);
  void attach(http::Server& server) { server_ = &server; }

  // No new work from now on: 503, /ready too. Waits for what runs, for at most `timeout`.
  void drain(std::chrono::milliseconds timeout);

 private:
  using Handle = void (Service::*)(Exchange&);
  struct Route {
    std::string_view method, path;
    Handle handle;
    bool open = false;     // needs no key
    bool in_turn = false;  // reads a body: the worker's
  };
  static const std::vector<Route>& routes();

  void run(const Route& route, const std::shared_ptr<Exchange>& exchange);
  void preflight(Exchange& exchange);
  bool may_enter(const http::HttpRequest& request) const;
  void answer(Exchange& exchange, int status, const Json& body);
  void answer(Exchange& exchange, const ApiError& error);
  uint64_t next_id() { return ++last_id_; }

  void health(Exchange& exchange);
  void ready(Exchange& exchange);
  void models(Exchange& exchange);
  void one_model(Exchange& exchange);
  void metrics(Exchange& exchange);
  void stats(Exchange& exchange);
  void tokenize(Exchange& exchange);
  void detokenize(Exchange& exchange);
  void cancel(Exchange& exchange);
  void chat_completions(Exchange& exchange);
  void completions(Exchange& exchange);
  void messages(Exchange& exchange);
  void count_tokens(Exchange& exchange);
  void responses(Exchange& exchange);
  ApiResult<Json> body_of(const Exchange& exchange) const;
  Request request_for(const GenerationTask& task, const std::vector<TokenId>& prompt, uint64_t seed) const;
  CompletionPlan plan_for(const GenerationTask& task) const;
  WriterOptions writer_for(const GenerationTask& task, std::string_view prefix, int n_choices) const;
  // Hands a plan to the engine's thread, which answers.
  void generate(Exchange& exchange, const std::string& id, CompletionPlan plan, bool nothing_to_generate);
  // The prompt of a chat that the server can answer.
  ApiResult<ChatPrompt> prompt_of(const ChatTask& task, std::string_view format_field) const;
  using MakeWriter = std::function<std::unique_ptr<AnswerWriter>(const WriterOptions&)>;
  void answer_chat(Exchange& exchange, const ChatTask& task, std::string_view id_prefix,
                   const MakeWriter& make_writer, std::string_view format_field = "response_format");
  void not_yet(Exchange& exchange);

  const LoadedModel& model_;
  const ServiceOptions options_;
  const ApiContext context_;
  const Markers markers_;
  const int64_t started_s_;
  std::atomic<http::Server*> server_{nullptr};
  std::atomic<uint64_t> last_id_{0};
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> n_requests_{0}, n_errors_{0}, n_cancelled_{0};
  std::mutex live_mutex_;
  std::map<std::string, uint64_t> live_;  // answers' ids, for cancel
  EngineLoop loop_;
  Worker worker_;
  Worker large_worker_;  // for bodies so large that others should not wait for them
};

}  // namespace tandem::serve
