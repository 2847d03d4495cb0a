// tandem bench: how near the engine is to what the machine can do. Every comparison is made inside one run,
// with the rival or limit measured in turns with the engine, because hosts drift.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/options.h"
#include "engine/loaded_model.h"
#include "state/state_pool.h"

namespace tandem::bench {

int run_decode(Arguments args);
int run_verify(Arguments args);
int run_prefill(Arguments args);
int run_speculate(Arguments args);
int run_kernels(Arguments args);
int run_bandwidth(Arguments args);
int run_serve(Arguments args);

// Options that all of them share, and the rows they make.
struct BenchFlags {
  std::vector<std::string> models{"synth:qwen3.5-0.8b@8"};
  BackendOptions backend;    // but its threads
  std::vector<int> threads;  // empty: one per core
  int rounds = 0;
  bool json = false;
  std::optional<std::string> ledger;
  std::vector<std::string> columns = {};  // of the table; empty: all that rows have

  void add_model(Options& options);  // --model, --backend, --isa, --delta
  void add_to(Options& options, int default_rounds, const std::string& rounds_name = "--rounds");
  // {0} when none were given: the backend's own choice.
  std::vector<int> thread_counts() const { return threads.empty() ? std::vector<int>{0} : threads; }
};

// Loads `model` on the backend the flags name, with progress on standard error.
Result<LoadedModel> load(const BenchFlags& flags, const std::string& command, const std::string& model,
                         int threads, const DecoderLimits& limits);

// The fields every row begins with. Of a backend on a card they name the card and its highest clocks.
Json row_of(const std::string& bench, const std::string& model, const std::string& backend, int threads);
Json row_of(const std::string& bench, const std::string& model, const Backend& backend);

// How a bench ends: prints its rows as a JSON array or as a table, and appends them to the ledger with time
// and machine; or says its error.
int report(const BenchFlags& flags, const std::string& command, const Result<std::vector<Json>>& result);

// A sequence that stands at `position` as if it had a prompt behind it: its memory is written, its contents
// are zero. Errors: no room in the pool.
Result<SequenceState> sequence_at(StatePool& pool, Backend& backend, int position);

// Errors: a context that does not hold `positions`.
Status check_context(const LoadedModel& model, int positions);

double median(std::vector<double> values);
double percentile(std::vector<double> values, double p);
// Seconds that body() takes.
double time_of(const std::function<void()>& body);

}  // namespace tandem::bench
