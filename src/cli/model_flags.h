// Groups of options that several subcommands share: which model runs on what, how tokens are chosen, and what
// the prompt is.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"
#include "engine/engine.h"
#include "engine/load_drafter.h"
#include "engine/loaded_model.h"
#include "sample/params.h"

namespace tandem {

// --backend, --isa and --delta.
void add_backend_choice(Options& options, BackendOptions& backend);

struct ModelFlags {
  std::string model;
  BackendOptions backend;
  std::optional<int> context;  // positions to make room for at most; the model's own otherwise
  int prefill_chunk = 512;

  void add_model(Options& options);    // --model
  void add_backend(Options& options);  // --backend, --threads, --isa, --delta
  void add_limits(Options& options);   // --context, --prefill-chunk

  // Errors: wrong usage that depends on more than one flag or on a rule options cannot say.
  Status check() const;
  // Errors: a model without a tokenizer, which is known before it is loaded.
  Status check_reads_text() const;
  // Loads with progress and warnings on standard error; at most max_logit_rows rows of logits per call.
  Result<LoadedModel> load(std::string_view command, int max_logit_rows) const;
  // --context held against the model. Errors: more than the model has.
  Result<int> context_of(const LoadedModel& model) const;
};

struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int> top_k;
  uint64_t seed = 0;
  int max_tokens = 256;
  std::vector<std::string> stop;
  bool ignore_eos = false;

  void add_to(Options& options);
  Status check() const;
  // The checkpoint's defaults, and what was given over them.
  SamplingParams params(const LoadedModel& model) const;
};

struct SpeculationFlags {
  std::string drafter = "auto", folder, draft_vocab, length = "auto", accept = "coupled";
  int tree_nodes = 0, draft_bits = 8;

  // names: where several drafters may be given; null: `drafter` takes one.
  void add_to(Options& options, std::vector<std::string>* names = nullptr);
  Status check() const;
  using Drafters = std::vector<std::unique_ptr<Drafter>>;
  // The drafters for a loaded model, with room for `limits`; for_one: a single answer is to come.
  Result<Drafters> load(LoadedModel& model, const DraftLimits& limits, bool for_one = false) const;
  // Puts them and the rest of the flags into an engine's options.
  void apply(const Drafters& loaded, EngineOptions& options) const;
};

// Bytes of a file, or of standard input for "-". Errors: the path with the system's reason.
Result<std::string> read_text(const std::string& path);

}  // namespace tandem
