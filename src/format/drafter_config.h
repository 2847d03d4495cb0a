// config.json of a DFlash drafter folder -> DrafterConfig.
//
// A DFlash drafter ("DFlash: Block Diffusion for Flash Speculative Decoding", arXiv 2602.06036; the published
// DFlashDraftModel checkpoints) is a small Qwen3-style network that fills all mask slots of a block in one
// pass. It reads hidden states of its target and uses the target's embedding and head. DFlash 2
// (DFlash2DraftModel) adds convolutions over the rows of a block and a selector that chooses each token by
// the one before it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "format/config.h"

namespace tandem {

// What DFlash 2 adds.
struct Dflash2Config {
  int conv_taps = 0;   // rows that a convolution reads: a row and conv_taps - 1 before it
  int conv_group = 0;  // channels that share a dynamic coefficient; divides d_model
  int selector_rank = 0;
  int selector_top_k = 0;  // candidates of a slot, <= vocab_size
};

struct DrafterConfig {
  ModelConfig network;              // the backbone; its windows are per layer
  std::vector<bool> bidirectional;  // n_layers: rows of a block see each other both ways
  int block_size = 0;               // rows of a block: the anchor and block_size - 1 masks
  TokenId mask_id = 0;
  std::vector<int> target_layers;  // zero-based target layers whose outputs are read, in this order
  int n_target_layers = 0;         // layers of the target it was trained for; 0: not said
  bool sample_from_anchor =
      false;  // the anchor's row proposes too: block_size drafts instead of block_size - 1
  std::optional<Dflash2Config> v2;  // nothing: the first DFlash
  float output_multiplier = 1;      // of the head's logits, before the cap
  float logit_cap = 0;              // > 0: logits become cap tanh(logit / cap)

  bool changes_logits() const { return output_multiplier != 1 || logit_cap > 0; }
  // A logit of the target's head as this drafter means it. Never falls where `logit` rises.
  float output(float logit) const;
  int n_drafts() const { return sample_from_anchor ? block_size : block_size - 1; }
};

// Fields of DFlash may stand in dflash_config, which wins, or beside it. Errors: what parse_model_config says
// of the backbone; fields of DFlash that are missing or out of range; an architecture or an option that is
// not implemented, by name.
Result<DrafterConfig> parse_drafter_config(std::span<const std::byte> text, const std::string& path);
Result<DrafterConfig> load_drafter_config(const std::string& folder);

// Whether the config.json of a folder has a dflash_config, whatever else may be wrong with it.
bool is_drafter_folder(const std::string& folder);

// What a drafter must have in common with its target.
struct TargetShape {
  std::string name;  // in errors
  int n_layers = 0, d_model = 0, n_vocab = 0;
};
// Errors: the first field of the drafter that does not fit, and both values.
Status check_target(const DrafterConfig& drafter, const TargetShape& target);

}  // namespace tandem
