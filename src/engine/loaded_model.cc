#include "engine/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "base/mapped_file.h"
#include "format/checkpoint.h"
#include "format/printable.h"
#include "model/checkpoint_source.h"
#include "model/mtp_head.h"
#include "model/published_shapes.h"
#include "model/synthetic_source.h"

namespace tandem {
namespace {

Status check_folder(const std::string& folder) {
  std::error_code code;
  const std::filesystem::file_status status = std::filesystem::status(folder, code);
  const char* const wanted = "--model takes a checkpoint folder or synth:NAME";
  if (folder.empty()) return Error{fmt::format("the model has no name; {}", wanted)};
  if (status.type() == std::filesystem::file_type::not_found)
    return Error{fmt::format("{}: no such folder; {}", folder, wanted)};
  if (code) return Error{fmt::format("{}: cannot look at the folder: {}", folder, code.message())};
  if (status.type() != std::filesystem::file_type::directory)
    return Error{fmt::format("{}: not a folder; {}", folder, wanted)};
  return {};
}

Status load_text_files(const std::string& folder, LoadedModel& model) {
  TD_ASSIGN_OR_RETURN(model.generation, load_generation_config(folder));
  if (!is_absent(folder + "/tokenizer.json")) {
    TD_ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::load(folder));
    if (model.tokenizer->n_tokens() > model.config.vocab_size) {
      return Error{
          fmt::format("{}/tokenizer.json has {} ids, the model's vocabulary {} rows: the files do not belong "
                      "together",
                      folder, model.tokenizer->n_tokens(), model.config.vocab_size)};
    }
    // Many checkpoints have no template, or one that only chat would trip over: raw prompts still work.
    Result<ChatTemplate> chat_template = ChatTemplate::load(folder);
    if (chat_template.ok()) {
      model.chat_template = *std::move(chat_template);
    } else {
      model.chat_template_error = chat_template.error();
    }
  }
  return {};
}

// The tokens that end an answer. Of those that can never be generated `warn` hears.
std::vector<TokenId> stop_ids_of(const LoadedModel& model,
                                 const std::function<void(const std::string&)>& warn) {
  std::vector<TokenId> ids;
  const auto add = [&](std::span<const TokenId> found, const char* file) {
    for (const TokenId id : found) {
      if (id < model.config.vocab_size) {
        ids.push_back(id);
      } else if (warn) {
        warn(fmt::format("{}/{}: eos_token_id {} is beyond the vocabulary of {} tokens: it ends no answer",
                         model.name, file, id, model.config.vocab_size));
      }
    }
  };
  add(model.config.eos_ids, "config.json");
  add(model.generation.eos_ids, "generation_config.json");
  if (model.tokenizer && model.tokenizer->eos()) ids.push_back(*model.tokenizer->eos());
  if (model.tokenizer && !model.tokenizer->unknown_eos().empty() && warn) {
    warn(
        fmt::format("{}/tokenizer_config.json: eos_token '{}' is none of the {} tokens of tokenizer.json: it "
                    "ends no answer",
                    model.name, printable(model.tokenizer->unknown_eos()), model.tokenizer->n_tokens()));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

Result<LoadedModel> load_model(const ModelOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel model;
  model.name = options.model;
  TD_ASSIGN_OR_RETURN(model.backend, make_backend(options.backend));
  if (is_synthetic(options.model)) {
    TD_ASSIGN_OR_RETURN(model.config, parse_synthetic(options.model));
    SyntheticSource source(model.config, model.backend->threads(), model.backend->makes_random_weights());
    TD_RETURN_IF_ERROR(source.threads_started());
    TD_ASSIGN_OR_RETURN(model.decoder,
                        load_decoder(source, model.config, *model.backend, options.limits, options.progress));
  } else {
    TD_RETURN_IF_ERROR(check_folder(options.model));
    TD_ASSIGN_OR_RETURN(model.config, load_model_config(options.model));
    TD_RETURN_IF_ERROR(load_text_files(options.model, model));
    TD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.model));
    const CheckpointExtras extras = checkpoint_extras(checkpoint);
    model.n_mtp_tensors = extras.n_mtp;
    model.n_vision_tensors = extras.n_vision;
    TD_ASSIGN_OR_RETURN(CheckpointSource source,
                        CheckpointSource::create(checkpoint, model.config, options.warn));
    TD_ASSIGN_OR_RETURN(model.decoder,
                        load_decoder(source, model.config, *model.backend, options.limits, options.progress));
    model.stop_ids = stop_ids_of(model, options.warn);
  }
  model.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

Status check_model(const std::string& folder, const std::function<void(const std::string&)>& warn) {
  if (is_synthetic(folder)) {
    return Error{folder + ": has random weights and no files: give a checkpoint folder"};
  }
  TD_RETURN_IF_ERROR(check_folder(folder));
  LoadedModel model;
  TD_ASSIGN_OR_RETURN(model.config, load_model_config(folder));
  TD_RETURN_IF_ERROR(load_text_files(folder, model));
  TD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  TD_ASSIGN_OR_RETURN(CheckpointSource source, CheckpointSource::create(checkpoint, model.config, warn));
  TD_RETURN_IF_ERROR(check_tensors(source, model.config));
  if (checkpoint_extras(checkpoint).n_mtp > 0 && MtpHead::supports(model.config)) {
    TD_RETURN_IF_ERROR(MtpHead::check(source, model.config));
  }
  return {};
}

SamplingParams default_sampling(const GenerationConfig& g) {
  SamplingParams params;
  // Penalties change the logits before any choice, the greedy one as well.
  params.repetition_penalty = float(g.repetition_penalty.value_or(1.0));
  params.presence_penalty = float(g.presence_penalty.value_or(0.0));
  params.frequency_penalty = float(g.frequency_penalty.value_or(0.0));
  if (!g.do_sample.value_or(false)) return params;
  params.temperature = float(g.temperature.value_or(1.0));
  params.top_k = g.top_k.value_or(0);
  params.top_p = g.top_p.value_or(1.0);
  params.min_p = g.min_p.value_or(0.0);
  return params;
}

}  // namespace tandem
