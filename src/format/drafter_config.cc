#include "format/drafter_config.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/mapped_file.h"
#include "format/json.h"
#include "format/printable.h"

namespace tandem {
namespace {

constexpr int64_t kMaxBlock = 256, kMaxLayers = 1024, kMaxId = int64_t{1} << 30;

// Options of related drafters that change the mathematics and are not implemented here.
Status refuse_unknown_mathematics(const JsonFields& fields) {
  for (const char* key : {"input_embedding_scale", "output_multiplier", "final_logit_softcapping",
                          "attention_value_scale", "context_input_norm", "n_anchor_layers"}) {
    if (fields.has(key)) return fields.error(key, "this option of a DFlash drafter is not supported");
  }
  return {};
}

// Which layers are bidirectional inside a block: dflash_config.causal, else is_causal, decides for all;
// without both, full layers are and sliding ones are not.
Status read_bidirectional(const JsonFields& root, const JsonFields& dflash, DrafterConfig& config) {
  TD_ASSIGN_OR_RETURN(std::optional<bool> causal, dflash.boolean("causal"));
  if (!causal) {
    TD_ASSIGN_OR_RETURN(causal, root.boolean("is_causal"));
  }
  for (const int window : config.network.windows) {
    config.bidirectional.push_back(causal ? !*causal : window == 0);
  }
  return {};
}

}  // namespace

Result<DrafterConfig> parse_drafter_config(std::span<const std::byte> text, const std::string& path) {
  DrafterConfig config;
  TD_ASSIGN_OR_RETURN(config.network, parse_model_config(text, path, ConfigUse::drafter));
  if (config.network.architecture != Architecture::qwen3 || config.network.moe()) {
    return Error{fmt::format("{}: model_type: '{}' is no backbone of a DFlash drafter, expected qwen3", path,
                             printable(config.network.model_type))};
  }
  const std::string& kind = config.network.architecture_class;
  if (!kind.empty() && kind != "DFlashDraftModel") {
    return Error{fmt::format("{}: architectures: '{}' is not supported, expected DFlashDraftModel", path,
                             printable(kind))};
  }
  TD_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, path));
  TD_ASSIGN_OR_RETURN(const JsonFields root, JsonFields::of_root(document, path));
  TD_ASSIGN_OR_RETURN(const std::optional<JsonFields> dflash, root.object("dflash_config"));
  if (!dflash) return root.error("dflash_config", "expected an object, found nothing: not a DFlash drafter");
  TD_RETURN_IF_ERROR(refuse_unknown_mathematics(root));
  TD_RETURN_IF_ERROR(refuse_unknown_mathematics(*dflash));

  const JsonFields& of_block = dflash->has("block_size") ? *dflash : root;
  TD_ASSIGN_OR_RETURN(const int64_t block, of_block.require_integer("block_size", 2, kMaxBlock));
  TD_ASSIGN_OR_RETURN(const int64_t mask, dflash->require_integer("mask_token_id", 0, kMaxId));
  if (mask >= config.network.vocab_size) {
    return dflash->error("mask_token_id", fmt::format("{} is outside the vocabulary of {} tokens", mask,
                                                      config.network.vocab_size));
  }
  TD_ASSIGN_OR_RETURN(const std::vector<int64_t> layers,
                      dflash->integers("target_layer_ids", 0, kMaxLayers - 1));
  if (layers.empty())
    return dflash->error("target_layer_ids", "expected a list of target layers, found none");
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> n_target,
                      root.integer("num_target_layers", 1, kMaxLayers));
  TD_ASSIGN_OR_RETURN(const std::optional<bool> anchor, root.boolean("sample_from_anchor"));
  config.block_size = int(block);
  config.mask_id = TokenId(mask);
  config.target_layers.assign(layers.begin(), layers.end());
  config.n_target_layers = int(n_target.value_or(0));
  config.sample_from_anchor = anchor.value_or(false);
  TD_RETURN_IF_ERROR(read_bidirectional(root, *dflash, config));
  return config;
}

Result<DrafterConfig> load_drafter_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  TD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return parse_drafter_config(file.bytes(), path);
}

}  // namespace tandem
