#include "engine/load_drafter.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "format/checkpoint.h"
#include "format/draft_vocab.h"
#include "model/checkpoint_source.h"
#include "model/published_shapes.h"
#include "model/quantizing_source.h"
#include "speculate/lookup_first.h"
#include "speculate/mtp_drafter.h"
#include "speculate/ngram_drafter.h"
#include "speculate/simulated_drafter.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr size_t kCachedBytes = size_t{64} << 20;  // about a last-level cache

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Room for the longest step of the target, and for what waits from the steps before.
DecoderLimits limits_of(const LoadedModel& model) {
  DecoderLimits limits = model.decoder->limits();
  limits.max_rows += 2 * kMaxDecodeRows;
  return limits;
}

Result<std::unique_ptr<Drafter>> load_dflash(LoadedModel& model, const DrafterOptions& options) {
  const std::string folder = options.folder.empty() ? dflash_folder_of(model.name) : options.folder;
  if (!is_folder(folder)) {
    return Error{fmt::format(
        "{}: no such folder: a DFlash drafter is wanted there; name another with --draft DIR", folder)};
  }
  TD_ASSIGN_OR_RETURN(const DrafterConfig config, load_drafter_config(folder));
  TD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  TD_ASSIGN_OR_RETURN(CheckpointSource source,
                      CheckpointSource::create_drafter(checkpoint, config.network, nullptr));
  QuantizingSource quantized(source, std::max(2, options.bits), model.backend->threads());
  TD_RETURN_IF_ERROR(quantized.threads_started());
  TensorSource& weights = options.bits == 0 ? static_cast<TensorSource&>(source) : quantized;
  TD_ASSIGN_OR_RETURN(auto network, DflashNetwork::load(weights, config, *model.decoder, limits_of(model)));
  TD_ASSIGN_OR_RETURN(std::unique_ptr<Drafter> drafter,
                      DflashDrafter::create(std::move(network), *model.decoder, options.limits));
  return drafter;
}

// The rows of the model's head that a draft vocabulary names, as the checkpoint holds them.
Result<std::shared_ptr<const Weight>> load_draft_head(CheckpointSource& source, const LoadedModel& model,
                                                      const std::string& path, const DraftVocab& vocab) {
  const ModelConfig& c = model.config;
  if (vocab.vocab_size != c.vocab_size) {
    return Error{
        fmt::format("{}: vocab_size: expected {}, as {} has, found {}: it was made for another model", path,
                    c.vocab_size, model.name, vocab.vocab_size)};
  }
  TD_ASSIGN_OR_RETURN(const SourceMatrix whole,
                      source.matrix(c.tied_embeddings ? "embed_tokens" : "lm_head", c.vocab_size, c.d_model));
  std::vector<RowRun> runs;
  for (const TokenId id : vocab.ids) {
    if (!runs.empty() && runs.back().first_row + runs.back().n_rows == id) {
      ++runs.back().n_rows;
    } else {
      runs.push_back({&whole.matrix, id, 1});
    }
  }
  TD_ASSIGN_OR_RETURN(std::unique_ptr<Weight> head,
                      model.backend->pack({.name = "draft head", .rows = runs}));
  return std::shared_ptr<const Weight>(std::move(head));
}

Result<std::unique_ptr<Drafter>> load_mtp(LoadedModel& model, const DrafterOptions& options) {
  if (is_synthetic(model.name)) {
    return Error{model.name +
                 ": a synthetic model has no multi-token-prediction head: use --drafter simulated:P"};
  }
  TD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(model.name));
  TD_ASSIGN_OR_RETURN(CheckpointSource of_model, CheckpointSource::create(checkpoint, model.config, nullptr));
  TD_ASSIGN_OR_RETURN(CheckpointSource source, of_model.mtp_head());
  QuantizingSource quantized(source, std::max(2, options.bits), model.backend->threads());
  TD_RETURN_IF_ERROR(quantized.threads_started());
  TensorSource& weights = options.bits == 0 ? static_cast<TensorSource&>(source) : quantized;
  DraftVocab vocab;
  std::shared_ptr<const Weight> draft_head;
  if (!options.draft_vocab.empty()) {
    TD_ASSIGN_OR_RETURN(vocab, load_draft_vocab(options.draft_vocab));
    TD_ASSIGN_OR_RETURN(draft_head, load_draft_head(of_model, model, options.draft_vocab, vocab));
  }
  TD_ASSIGN_OR_RETURN(auto head,
                      MtpHead::load(weights, model.config, *model.decoder, limits_of(model),
                                    options.mtp.value_or(model.config.mtp), std::move(draft_head)));
  TD_ASSIGN_OR_RETURN(
      std::unique_ptr<Drafter> drafter,
      MtpDrafter::create(std::move(head), *model.decoder, options.limits, std::move(vocab.ids)));
  return drafter;
}

constexpr std::string_view kWithLookup = "+ngram";
constexpr std::string_view kSimulated = "simulated:";

Result<double> simulated_acceptance(std::string_view name) {
  const std::string_view text = name.substr(kSimulated.size());
  double p = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), p);
  if (error != std::errc() || end != text.data() + text.size() || !(p > 0 && p <= 1)) {
    return Error{fmt::format("simulated:P wants a probability in (0, 1], found '{}'", text)};
  }
  return p;
}

}  // namespace

std::string dflash_folder_of(const std::string& model) {
  std::string path = model;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path + std::string(kDflashSuffix);
}

Status check_drafter_name(const std::string& name) {
  if (name.starts_with(kSimulated)) {
    if (const auto acceptance = simulated_acceptance(name); !acceptance.ok()) return acceptance.error();
    return {};
  }
  for (const char* known : {"auto", "dflash", "mtp", "ngram", "dflash+ngram", "mtp+ngram", "none"}) {
    if (name == known) return {};
  }
  return Error{fmt::format(
      "'{}' is no drafter: use auto, dflash, mtp, ngram, dflash+ngram, mtp+ngram, simulated:P or none",
      name)};
}

namespace {

Result<std::unique_ptr<Drafter>> load_one(LoadedModel& model, const DrafterOptions& options,
                                          const std::string& name) {
  if (name.ends_with(kWithLookup)) {
    TD_ASSIGN_OR_RETURN(std::unique_ptr<Drafter> inner,
                        load_one(model, options, name.substr(0, name.size() - kWithLookup.size())));
    return std::unique_ptr<Drafter>(
        std::make_unique<LookupFirst>(std::move(inner), options.limits.max_sequences));
  }
  if (!options.folder.empty() && name != "dflash") {
    return Error{
        fmt::format("--draft {} names a DFlash drafter, --drafter {} is another: leave one of them out",
                    options.folder, name)};
  }
  if (!options.draft_vocab.empty() && name != "mtp") {
    return Error{fmt::format("--draft-vocab {} is for an MTP head, the drafter is {}: use --drafter mtp",
                             options.draft_vocab, name)};
  }
  if (name == "dflash") return load_dflash(model, options);
  if (name == "mtp") return load_mtp(model, options);
  if (name == "ngram") {
    return std::unique_ptr<Drafter>(std::make_unique<NgramDrafter>(options.limits.max_sequences));
  }
  TD_ASSIGN_OR_RETURN(const double acceptance, simulated_acceptance(name));
  return std::unique_ptr<Drafter>(std::make_unique<SimulatedDrafter>(acceptance, model.config.vocab_size));
}

// What there is for a model, the most promising first.
std::vector<std::string> found_drafters(const LoadedModel& model, const DrafterOptions& options) {
  if (!options.folder.empty()) return {"dflash"};
  if (!options.draft_vocab.empty()) return {"mtp"};
  std::vector<std::string> names;
  if (is_folder(dflash_folder_of(model.name))) names.push_back("dflash");
  if (model.n_mtp_tensors > 0 && MtpHead::supports(model.config)) {
    const bool cached = model.decoder->weight_bytes(1) < kCachedBytes;
    names.insert(cached ? names.begin() : names.end(), "mtp");
  }
  for (std::string& name : names) name += kWithLookup;
  names.push_back("ngram");
  return names;
}

}  // namespace

Result<std::vector<std::unique_ptr<Drafter>>> load_drafters(LoadedModel& model, const DrafterOptions& options,
                                                            bool first_only) {
  TD_RETURN_IF_ERROR(check_drafter_name(options.name));
  std::vector<std::string> names{options.name};
  if (options.name == "auto") names = found_drafters(model, options);
  if (options.name == "none") names.clear();
  if (first_only && names.size() > 1) names.resize(1);
  std::vector<std::unique_ptr<Drafter>> drafters;
  for (const std::string& name : names) {
    TD_ASSIGN_OR_RETURN(std::unique_ptr<Drafter> drafter, load_one(model, options, name));
    drafters.push_back(std::move(drafter));
  }
  return drafters;
}

Result<std::unique_ptr<Drafter>> load_drafter(LoadedModel& model, const DrafterOptions& options) {
  TD_ASSIGN_OR_RETURN(auto drafters, load_drafters(model, options, true));
  return drafters.empty() ? nullptr : std::move(drafters[0]);
}

}  // namespace tandem
