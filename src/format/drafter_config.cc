#include "format/drafter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/mapped_file.h"
#include "format/json.h"
#include "format/printable.h"

namespace tandem {
namespace {

constexpr int64_t kMaxBlock = 256, kMaxLayers = 1024, kMaxId = int64_t{1} << 30;
constexpr int64_t kMaxTaps = 16, kMaxRank = 65536, kMaxCandidates = 256;
constexpr double kMaxScale = 1e6;

// The two places where a field of DFlash may stand.
struct Places {
  JsonFields root, dflash;

  // Where `key` is to be read: in dflash_config unless only the root has it.
  const JsonFields& of(std::string_view key) const {
    return dflash.has(key) || !root.has(key) ? dflash : root;
  }
};

// Options of related drafters that change the mathematics and are not implemented here.
Status refuse_unknown_mathematics(const Places& places) {
  for (const char* key :
       {"input_embedding_scale", "attention_value_scale", "context_input_norm", "n_anchor_layers",
        "backbone_rotary_base", "swa_window_size", "sliding_window_non_causal"}) {
    const JsonFields& fields = places.of(key);
    if (fields.has(key)) return fields.error(key, "this option of a DFlash drafter is not supported");
  }
  return {};
}

// Which layers are bidirectional inside a block: dflash_config.causal, else is_causal, decides for all;
// without both, full layers are and sliding ones are not.
Status read_bidirectional(const Places& places, DrafterConfig& config) {
  TD_ASSIGN_OR_RETURN(std::optional<bool> causal, places.dflash.boolean("causal"));
  if (!causal) {
    TD_ASSIGN_OR_RETURN(causal, places.of("is_causal").boolean("is_causal"));
  }
  for (const int window : config.network.windows) {
    config.bidirectional.push_back(causal ? !*causal : window == 0);
  }
  return {};
}

Status read_block(const Places& places, DrafterConfig& config) {
  const int n_vocab = config.network.vocab_size;
  TD_ASSIGN_OR_RETURN(const int64_t block,
                      places.of("block_size").require_integer("block_size", 2, kMaxBlock));
  const JsonFields& of_mask = places.of("mask_token_id");
  TD_ASSIGN_OR_RETURN(const int64_t mask, of_mask.require_integer("mask_token_id", 0, kMaxId));
  if (mask >= n_vocab) {
    return of_mask.error("mask_token_id",
                         fmt::format("{} is outside the vocabulary of {} tokens", mask, n_vocab));
  }
  const JsonFields& of_layers = places.of("target_layer_ids");
  TD_ASSIGN_OR_RETURN(const std::vector<int64_t> layers,
                      of_layers.integers("target_layer_ids", 0, kMaxLayers - 1));
  if (layers.empty())
    return of_layers.error("target_layer_ids", "expected a list of target layers, found none");
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> n_target,
                      places.root.integer("num_target_layers", 1, kMaxLayers));
  TD_ASSIGN_OR_RETURN(const std::optional<bool> anchor,
                      places.of("sample_from_anchor").boolean("sample_from_anchor"));
  config.block_size = int(block);
  config.mask_id = TokenId(mask);
  config.target_layers.assign(layers.begin(), layers.end());
  config.n_target_layers = int(n_target.value_or(0));
  config.sample_from_anchor = anchor.value_or(false);
  return {};
}

Status read_output(const Places& places, DrafterConfig& config) {
  TD_ASSIGN_OR_RETURN(const std::optional<double> multiplier,
                      places.of("output_multiplier").number("output_multiplier", 1 / kMaxScale, kMaxScale));
  TD_ASSIGN_OR_RETURN(const std::optional<double> cap,
                      places.of("final_logit_softcapping").number("final_logit_softcapping", 0, kMaxScale));
  config.output_multiplier = float(multiplier.value_or(1));
  config.logit_cap = float(cap.value_or(0));
  return {};
}

Status read_v2(const Places& places, DrafterConfig& config) {
  const auto require = [&](const char* key, int64_t low, int64_t high) {
    return places.of(key).require_integer(key, low, high);
  };
  const int d_model = config.network.d_model;
  TD_ASSIGN_OR_RETURN(const int64_t taps, require("conv_kernel_size", 1, kMaxTaps));
  TD_ASSIGN_OR_RETURN(const int64_t group, require("conv_group_size", 1, d_model));
  if (d_model % group != 0) {
    return places.of("conv_group_size")
        .error("conv_group_size", fmt::format("{} does not divide hidden_size = {}", group, d_model));
  }
  TD_ASSIGN_OR_RETURN(const int64_t rank, require("selector_rank", 1, kMaxRank));
  TD_ASSIGN_OR_RETURN(
      const int64_t top_k,
      require("selector_top_k", 1, std::min<int64_t>(kMaxCandidates, config.network.vocab_size)));
  config.v2 = {.conv_taps = int(taps),
               .conv_group = int(group),
               .selector_rank = int(rank),
               .selector_top_k = int(top_k)};
  return {};
}

// DFlash 2's fields in a drafter that is not one: its tensors would be left unread.
Status refuse_v2(const Places& places) {
  for (const char* key : {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"}) {
    const JsonFields& fields = places.of(key);
    if (fields.has(key)) {
      return fields.error(key, "a field of DFlash 2, but architectures does not say DFlash2DraftModel");
    }
  }
  return {};
}

}  // namespace

float DrafterConfig::output(float logit) const {
  const float scaled = logit * output_multiplier;
  return logit_cap > 0 ? std::tanh(scaled / logit_cap) * logit_cap : scaled;
}

Result<DrafterConfig> parse_drafter_config(std::span<const std::byte> text, const std::string& path) {
  DrafterConfig config;
  TD_ASSIGN_OR_RETURN(config.network, parse_model_config(text, path, ConfigUse::drafter));
  if (config.network.architecture != Architecture::qwen3 || config.network.moe()) {
    return Error{fmt::format("{}: model_type: '{}' is no backbone of a DFlash drafter, expected qwen3", path,
                             printable(config.network.model_type))};
  }
  const std::string& kind = config.network.architecture_class;
  const bool second = kind == "DFlash2DraftModel";
  if (!kind.empty() && kind != "DFlashDraftModel" && !second) {
    return Error{fmt::format(
        "{}: architectures: '{}' is not supported, expected DFlashDraftModel or DFlash2DraftModel", path,
        printable(kind))};
  }
  TD_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, path));
  TD_ASSIGN_OR_RETURN(const JsonFields root, JsonFields::of_root(document, path));
  TD_ASSIGN_OR_RETURN(const std::optional<JsonFields> dflash, root.object("dflash_config"));
  if (!dflash) return root.error("dflash_config", "expected an object, found nothing: not a DFlash drafter");
  const Places places{.root = root, .dflash = *dflash};
  TD_RETURN_IF_ERROR(refuse_unknown_mathematics(places));
  TD_RETURN_IF_ERROR(read_block(places, config));
  TD_RETURN_IF_ERROR(read_output(places, config));
  TD_RETURN_IF_ERROR(second ? read_v2(places, config) : refuse_v2(places));
  TD_RETURN_IF_ERROR(read_bidirectional(places, config));
  return config;
}

Result<DrafterConfig> load_drafter_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  TD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return parse_drafter_config(file.bytes(), path);
}

bool is_drafter_folder(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  const Result<JsonDocument> document = JsonDocument::load(path);
  if (!document.ok()) return false;
  const Result<JsonFields> root = JsonFields::of_root(*document, path);
  return root.ok() && root->has("dflash_config");
}

Status check_target(const DrafterConfig& drafter, const TargetShape& target) {
  const ModelConfig& d = drafter.network;
  const auto mismatch = [&](const char* field, int found, int want) {
    return Error{fmt::format("{}: {}: {} in the drafter, {} in the target {}: they do not belong together",
                             d.file, field, found, want, target.name)};
  };
  if (d.d_model != target.d_model) return mismatch("hidden_size", d.d_model, target.d_model);
  if (d.vocab_size != target.n_vocab) return mismatch("vocab_size", d.vocab_size, target.n_vocab);
  if (drafter.n_target_layers != 0 && drafter.n_target_layers != target.n_layers) {
    return mismatch("num_target_layers", drafter.n_target_layers, target.n_layers);
  }
  for (const int layer : drafter.target_layers) {
    if (layer >= target.n_layers) {
      return Error{fmt::format("{}: dflash_config.target_layer_ids: layer {} is read, the target {} has {}",
                               d.file, layer, target.name, target.n_layers)};
    }
  }
  return {};
}

}  // namespace tandem
