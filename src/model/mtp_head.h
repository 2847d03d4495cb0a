// The multi-token-prediction head that Qwen3-Next and Qwen3.5 checkpoints carry: one more decoder layer of
// the full-attention kind that guesses the token after the next one.
//
//   row t:  z = fc [norm_e(embed(x_{t+1})) ; norm_h(h_t)]  ->  layer (own KV cache, rotary position t)  ->
//   norm  ->  target's head
//
// h_t is the target's hidden state at position t, x_{t+1} the token after it; the row predicts x_{t+2}. Later
// rows of a chain take the head's own output for h. MtpOptions (format/config.h) says which side of a norm
// both are taken from.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "model/checkpoint_source.h"
#include "model/decoder.h"
#include "model/load.h"

namespace tandem {

class MtpHead {
 public:
  // source: the head's tensors (CheckpointSource::mtp_head). `target` must outlive the head; its embedding
  // and output head are shared; draft_head, if given, takes the latter's place, [tokens of a draft
  // vocabulary, d_model]. Errors: what the source says; a head of more than one layer; memory.
  static Result<std::unique_ptr<MtpHead>> load(TensorSource& source, const ModelConfig& target_config,
                                               Decoder& target, const DecoderLimits& limits,
                                               const MtpOptions& options,
                                               std::shared_ptr<const Weight> draft_head = nullptr);

  StateShape state_shape() const { return trunk_->state_shape(); }
  int max_positions() const { return trunk_->shape().max_positions; }
  int d_model() const { return trunk_->shape().d_model; }
  const MtpOptions& options() const { return options_; }

  int n_logits() const { return trunk_->shape().n_vocab; }
  int max_rows() const { return trunk_->limits().max_rows; }
  int max_logit_rows() const { return trunk_->limits().max_logit_rows; }

  // Rows of the target's last forward -> h as the head wants it. y [rows, d_model].
  void hidden_of_target(std::span<const int32_t> rows, MutView y);
  // Runs rows of `step`: ids[r] = x_{t+1}, hidden row r = h_t.
  void forward(const Step& step, std::span<const TokenId> ids, View hidden, const StatePool& pool);
  // The same only as far as the layer's cache: for rows that later ones shall see, and that predict nothing.
  void ingest(const Step& step, std::span<const TokenId> ids, View hidden, const StatePool& pool);
  // Logits of rows of the last forward, at most max_logit_rows: of the whole vocabulary, or of draft_head's.
  std::span<float> logits(std::span<const int32_t> rows) { return trunk_->logits(rows); }
  // The same rows through the head alone, and what is wanted of row i of them (Decoder::head).
  void head(std::span<const int32_t> rows, const RowChoice& choice) { trunk_->head(rows, choice); }
  std::span<float> row_logits(size_t i) { return trunk_->row_logits(int(i)); }
  BestLogits row_best(size_t i) { return trunk_->best(int(i)); }
  // h for the next rows of the chains: of the rows that `which` names among `rows`, those last through the
  // head.
  void chain_hidden(std::span<const int32_t> rows, std::span<const int32_t> which, MutView y);

  // Greedy chains without the host, which sees the tokens at the end. All chains begin with the token after
  // `rows` of the last forward, at most max_logit_rows, chosen among the first n_choices logits; logit i is
  // that of token names[i], or of token i where names is empty.
  void begin_chains(std::span<const int32_t> rows, int n_choices, View names);
  // Feeds the last tokens of the first chains, a row for each, and chooses the next ones: once for each of
  // `steps`, which a backend may record and replay together.
  void extend_chains(std::span<const Step> steps, const StatePool& pool);
  // Token t of chain i, where it has so many: -1 from where a logit was no finite number. Waits.
  void fetch_chains();
  TokenId chain_token(int i, int t) const {
    return chains_[size_t(t) * size_t(max_logit_rows()) + size_t(i)];
  }

  // Bytes of weights that one row reads, the head included.
  size_t weight_bytes() const { return trunk_->weight_bytes(1) + fc_->bytes(); }

  // False for heads of more than one layer, which load() refuses.
  static bool supports(const ModelConfig& target) { return target.n_mtp_layers <= 1; }
  // Looks for every tensor that load() would take, with its shape and dtype. Errors: as load().
  static Status check(const CheckpointSource& target_source, const ModelConfig& target_config);

 private:
  MtpHead(Decoder& target, const MtpOptions& options) : target_(&target), options_(options) {}
  Status allocate();
  // z of the rows, where the layer finds it.
  void project(const Step& step, std::span<const TokenId> ids, View hidden);
  void project_embedded(const Step& step, View hidden);
  void extend(const Step& step, int t, const StatePool& pool);
  // Token t of n chains, where the backend has it.
  MutView chain_tokens(int t, int n) const;

  Decoder* target_;
  MtpOptions options_;
  std::unique_ptr<Decoder> trunk_;
  std::unique_ptr<Weight> fc_;
  DeviceBuffer vectors_;
  View embedding_gain_, hidden_gain_;
  DeviceBuffer scratch_;
  std::vector<int32_t> picked_;
  MutView both_all_, embedded_all_;  // [max_rows, 2 d_model], [max_rows, d_model]

  DeviceBuffer chain_memory_;
  MutView chain_hidden_;         // [max_logit_rows, d_model], what the second tokens are made from
  MutView chain_tokens_;         // [kMaxDecodeRows, max_logit_rows] i32
  std::vector<TokenId> chains_;  // the same on the host
  int chain_length_ = 0;         // tokens chosen
  int n_choices_ = 0;            // among which
  View names_;
  // Of the steps that extend chains, by their length before; new ones when the choice changes.
  std::array<uint64_t, kMaxDecodeRows> chain_owners_ = {};
};

}  // namespace tandem
