#include "cli/inspect_drafter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/mapped_file.h"
#include "engine/load_drafter.h"
#include "model/dflash_network.h"
#include "model/mtp_head.h"

namespace tandem {
namespace {

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

TargetShape shape_of(const std::string& name, const ModelConfig& c) {
  return {.name = name, .n_layers = c.n_layers, .d_model = c.d_model, .n_vocab = c.vocab_size};
}

// The model beside a drafter's folder; empty: none there.
std::string model_beside(const std::string& folder) {
  std::string path = without_slashes(folder);
  if (!path.ends_with(kDflashSuffix)) return {};
  path.resize(path.size() - kDflashSuffix.size());
  return path.empty() || is_absent(path + "/config.json") ? std::string() : path;
}

Status fits(const DrafterConfig& drafter, const std::string& model) {
  TD_ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(model));
  return check_target(drafter, shape_of(model, config));
}

}  // namespace

DrafterFacts drafter_facts(const std::string& folder, const DrafterConfig& drafter) {
  const ModelConfig& c = drafter.network;
  const char* const method = drafter.v2 ? "DFlash 2" : "DFlash";
  const std::string beside = model_beside(folder);
  const Status fit = beside.empty() ? Status{} : fits(drafter, beside);
  const bool found = !beside.empty() && fit.ok();
  DrafterFacts facts;
  facts.json = {
      {"method", method},
      {"block_size", drafter.block_size},
      {"n_drafts", drafter.n_drafts()},
      {"mask_token_id", drafter.mask_id},
      {"target_layers", drafter.target_layers},
      {"n_target_layers", drafter.n_target_layers > 0 ? Json(drafter.n_target_layers) : Json(nullptr)},
      {"target", found ? Json(beside) : Json(nullptr)}};
  facts.text =
      fmt::format("kind           {} drafter: it drafts for a model and writes nothing by itself\n", method);
  facts.text += fmt::format("block          {} rows, {} drafts; mask token {}\n", drafter.block_size,
                            drafter.n_drafts(), drafter.mask_id);
  facts.text += fmt::format("reads          outputs of the target's layers {} (counted from 0)\n",
                            fmt::join(drafter.target_layers, ", "));
  facts.text += fmt::format(
      "target         {}hidden size {}, vocabulary {}\n",
      drafter.n_target_layers > 0 ? fmt::format("{} layers, ", drafter.n_target_layers) : std::string(),
      c.d_model, c.vocab_size);
  if (found) {
    facts.text += fmt::format("               {} fits: tandem generate --model {} uses it\n", beside, beside);
  } else {
    if (!beside.empty()) {
      facts.json["misfit"] = fit.error().message;
      facts.text += fmt::format("               {} does not fit: {}\n", beside, fit.error().message);
    }
    facts.text += fmt::format("               run it with --model ITS_TARGET --draft {}\n", folder);
  }
  return facts;
}

DrafterFacts drafters_of_model(const std::string& folder, const ModelConfig& model,
                               const CheckpointExtras& extras) {
  DrafterFacts facts{.json = Json::array(), .text = {}};
  const auto add = [&](const char* name, const std::string& what, const Status& usable) {
    Json row{{"name", name}, {"usable", usable.ok()}};
    if (!usable.ok()) row["reason"] = usable.error().message;
    facts.json.push_back(row);
    facts.text += fmt::format(
        "{:<15}{}: {}\n", facts.text.empty() ? "drafters" : "", what,
        usable.ok() ? fmt::format("found; --drafter {}", name) : "cannot be used: " + usable.error().message);
  };
  if (extras.n_mtp > 0) {
    add("mtp", fmt::format("MTP head of {} tensors", extras.n_mtp),
        MtpHead::supports(model) ? Status{} : Error{"heads of several layers are not supported"});
  }
  const std::string beside = dflash_folder_of(folder);
  if (!is_absent(beside)) {
    const Result<DrafterConfig> drafter = load_drafter_config(beside);
    add("dflash", beside, drafter.ok() ? check_target(*drafter, shape_of(folder, model)) : drafter.error());
  }
  if (facts.text.empty()) {
    facts.text = fmt::format("drafters       no MTP head and no {}: --drafter ngram needs neither\n", beside);
  }
  return facts;
}

Status check_drafter(const ModelFlags& flags, const std::function<void(const std::string&)>& warn) {
  const std::string& folder = flags.model;
  TD_ASSIGN_OR_RETURN(const DrafterConfig drafter, load_drafter_config(folder));
  TD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  TD_ASSIGN_OR_RETURN(CheckpointSource source,
                      CheckpointSource::create_drafter(checkpoint, drafter.network, warn));
  TD_RETURN_IF_ERROR(DflashNetwork::check(source, drafter));
  const std::string beside = model_beside(folder);
  if (beside.empty() || !fits(drafter, beside).ok()) return {};
  TD_ASSIGN_OR_RETURN(LoadedModel model,
                      load_model({.model = beside,
                                  .backend = flags.backend,
                                  .limits = {.max_rows = kChunkTokens, .max_logit_rows = kMaxDecodeRows},
                                  .progress = {},
                                  .warn = {}}));
  const auto loaded =
      load_drafter(model, {.name = "dflash", .folder = folder, .limits = {.max_positions = kChunkTokens}});
  return loaded.ok() ? Status{} : loaded.error();
}

}  // namespace tandem
