// A --model argument turned into everything that answers: configuration, tokenizer, template, backend,
// network.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "format/config.h"
#include "format/generation_config.h"
#include "model/decoder.h"
#include "model/load.h"
#include "sample/params.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem {

struct ModelOptions {
  std::string model;  // a checkpoint folder, or synth:NAME[@bits][,layers=N]
  BackendOptions backend;
  DecoderLimits limits = {};
  LoadProgress progress = {};                         // may be empty
  std::function<void(const std::string&)> warn = {};  // may be empty
};

struct LoadedModel {
  std::string name;
  ModelConfig config;
  GenerationConfig generation;
  std::optional<Tokenizer> tokenizer;         // absent when the folder has none (token ids still work)
  std::optional<ChatTemplate> chat_template;  // absent: chat_template_error says why
  Error chat_template_error;
  std::vector<TokenId> stop_ids;  // of generation_config.json, config.json and the tokenizer together
  int n_mtp_tensors = 0, n_vision_tensors = 0;
  std::unique_ptr<Backend> backend;  // outlives the decoder
  std::unique_ptr<Decoder> decoder;
  double load_s = 0;

  // Ids from here on have no text; 0 without a tokenizer.
  int n_text_tokens() const { return tokenizer ? tokenizer->n_tokens() : 0; }
};

// Errors: what any of the files says; a tokenizer with more ids than the model has rows.
Result<LoadedModel> load_model(const ModelOptions& options);

// Reads all that load_model would read of a folder (configuration, text files, tensors with their shapes and
// dtypes) and the MTP head where there is one, without packing anything. Tells `warn`, where given, of every
// tensor that holds values that are not finite, which reads all weights. Errors: as load_model, but for
// memory; an incomplete MTP head.
Status check_model(const std::string& folder, const std::function<void(const std::string&)>& warn);

// Sampling defaults of the checkpoint: generation_config.json decides; do_sample false or no file means
// greedy; its penalties count either way.
SamplingParams default_sampling(const GenerationConfig& generation);

}  // namespace tandem
