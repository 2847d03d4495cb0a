// The network of a DFlash block-diffusion drafter (arXiv 2602.06036): a few Qwen3-style layers that fill all
// mask slots of a block in one pass, reading hidden states of the target as extra keys and values of every
// layer.
//
//   context (committed positions):  c = norm(fc [features of target_layers]);  K, V of each layer from c,
//   kept in the cache block (anchor, masks):          x = embed(...); layers attend to context and block;
//   logits by the target's head
//
// The cache holds context only: a block's own keys lie beyond its end and are overwritten. DFlash 2 has other
// layers in a block (dflash_block.h; context is as in the first) and a selector (dflash_selector.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "format/drafter_config.h"
#include "model/decoder.h"
#include "model/dflash_block.h"
#include "model/dflash_selector.h"
#include "model/load.h"
#include "model/tensor_source.h"

namespace tandem {

class DflashNetwork {
 public:
  // `target` must outlive the network; its embedding and head are shared. Errors: a drafter that does not fit
  // the target (hidden size, vocabulary, layers; field and both values named); a block longer than a step;
  // what the source says; memory.
  static Result<std::unique_ptr<DflashNetwork>> load(TensorSource& source, const DrafterConfig& config,
                                                     Decoder& target, const DecoderLimits& limits);
  // Looks for every tensor that load() would take, with its shape and dtype. Errors: as load().
  static Status check(TensorSource& source, const DrafterConfig& config);

  const DrafterConfig& config() const { return config_; }
  StateShape state_shape() const { return trunk_->state_shape(); }
  int max_positions() const { return trunk_->shape().max_positions; }

  // Appends the context rows of `step` (path prefill) to the cache. features [rows, target_layers x d_model].
  void ingest(const Step& step, View features, const StatePool& pool);
  // Runs blocks: ids of each sequence are the anchor, then masks. The rows' keys are written past the
  // committed length.
  void forward_block(const Step& step, std::span<const TokenId> ids, const StatePool& pool) {
    trunk_->forward(step, ids, pool);
  }
  int max_rows() const { return trunk_->limits().max_rows; }
  int max_logit_rows() const { return trunk_->limits().max_logit_rows; }
  // Logits of rows of the last block, at most the limits' max_logit_rows.
  std::span<float> logits(std::span<const int32_t> rows) { return trunk_->logits(rows); }
  // The same rows through the head alone, and what is wanted of row i of them (Decoder::head).
  void head(std::span<const int32_t> rows, const RowChoice& choice) { trunk_->head(rows, choice); }
  std::span<float> row_logits(size_t i) { return trunk_->row_logits(int(i)); }
  TokenId row_choice(size_t i) { return trunk_->choice(int(i)); }
  BestLogits row_best(size_t i) { return trunk_->best(int(i)); }
  View hidden() const { return trunk_->hidden(); }
  // Null in the first DFlash.
  DflashSelector* selector() const { return selector_.get(); }

 private:
  DflashNetwork(Decoder& target, const DrafterConfig& config) : target_(&target), config_(config) {}
  Status load_context(TensorSource& source, const DecoderLimits& limits);

  Decoder* target_;
  DrafterConfig config_;
  std::unique_ptr<DflashBlock> block_;  // null: the trunk's own layers
  std::unique_ptr<Decoder> trunk_;
  std::unique_ptr<DflashSelector> selector_;
  std::unique_ptr<Weight> fc_;
  std::vector<std::unique_ptr<Weight>> kv_;  // [k | v] of each layer
  DeviceBuffer vectors_, scratch_;
  View context_gain_;
  MutView context_all_, kv_all_, angles_all_;
};

}  // namespace tandem
