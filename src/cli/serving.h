// A loaded model behind the OpenAI API: engine, service and HTTP server as `tandem serve` puts them together.
// bench serve measures the same.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cli/model_flags.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "serve/http/server.h"
#include "serve/service/service.h"

namespace tandem {

struct ServingOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                 // 0: any that is free
  std::vector<std::string> names;  // the model's for clients; at least one
  std::vector<std::string> api_keys, cors_origins;
  int max_running = 8, max_queue = 256;
  int max_body_mib = 32;
  int cache_mib = 1024;
  int context = 0;  // positions of one request
  int prefill_chunk = 512;
  bool strict_params = false;
};

bool is_loopback(const std::string& host);
// The last part of a folder's path; synth:NAME as it is.
std::string served_name_of(const std::string& model);

// An engine and what drafts for it.
struct ServingEngine {
  SpeculationFlags::Drafters drafters;
  std::unique_ptr<Engine> engine;

  // Uses the engine's part of the options. Errors: a drafter that cannot be read; not enough memory.
  static Result<ServingEngine> create(LoadedModel& model, const SpeculationFlags& speculation,
                                      const ServingOptions& options);
};

// Answers from the moment it exists, in threads of its own, until it is drained or destroyed. `model` must
// have a tokenizer and outlive it.
class Serving {
 public:
  static Result<std::unique_ptr<Serving>> start(LoadedModel& model, const SpeculationFlags& speculation,
                                                const ServingOptions& options);
  ~Serving();

  int port() const { return server_->port(); }
  // Takes nothing new; what runs may go on for so long.
  void drain(std::chrono::milliseconds timeout);

 private:
  Serving(const LoadedModel& model, ServingEngine engine, const ServingOptions& options);

  ServingEngine engine_;
  // Calls the service until it is stopped, and must outlive it: the engine's thread writes to it.
  std::unique_ptr<http::Server> server_;
  serve::Service service_;
};

}  // namespace tandem
