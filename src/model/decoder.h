// The network of every family tandem runs: layers of (Gated DeltaNet | attention) and (dense | mixture) with
// one residual stream, written once against Backend. Families differ in configuration and in how their
// tensors are named, not here.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "base/ids.h"
#include "base/result.h"
#include "state/state_pool.h"

namespace tandem {

struct DeltaMixer {
  std::unique_ptr<Weight> in_proj;   // [q k v | z | b | a]
  std::unique_ptr<Weight> out_proj;  // [H, value_dim]
  View conv_weight, a_log, dt_bias, gain;
};

struct AttentionMixer {
  std::unique_ptr<Weight> in_proj;   // [q | gate | k | v], gate only in gated families
  std::unique_ptr<Weight> out_proj;  // [H, q_dim]
  View q_norm, k_norm;               // empty in families without head norms
  bool bidirectional = false;        // block drafters: rows of a step see each other
  int window = 0;                    // > 0: sliding window of so many positions
};

struct DenseFfn {
  std::unique_ptr<Weight> gate_up, down;
};

struct MoeFfn {
  std::unique_ptr<Weight> router, gate_up, down;
  std::unique_ptr<Weight> shared_gate_up, shared_down, shared_gate;  // null without a shared expert
};

struct DecoderLayer {
  View input_gain, post_gain;
  std::variant<DeltaMixer, AttentionMixer> mixer;
  std::variant<DenseFfn, MoeFfn> ffn;
  int state_index = 0;  // among the layers of its kind
};

// What the arithmetic needs to know of a model; made by the loader from its ModelConfig.
struct DecoderShape {
  std::string model;  // for reports
  int n_vocab = 0, d_model = 0, n_layers = 0;
  int max_positions = 0;
  float norm_eps = 0;
  AttentionShape attention;
  bool gated_attention = false;
  DeltaShape delta;
  int n_experts = 0, moe_top_k = 0;
  bool moe_normalise = true;
  float rope_factor = 1;  // multiplies cos and sin
};

struct DecoderWeights {
  std::shared_ptr<const Weight> embedding;  // a drafter shares its target's
  std::shared_ptr<const Weight> head;       // the embedding itself where the two are tied
  View final_gain, rope_frequencies;
  std::vector<DecoderLayer> layers;
  DeviceBuffer vectors;  // memory behind every small View above
};

// The most a decoder is asked to do at once; sizes its activations.
struct DecoderLimits {
  int max_rows = 512;       // of one step, all sequences together
  int max_logit_rows = 32;  // through the head at a time
};

// What the backend shall choose of every row that goes through the head, among the first n_tokens.
enum class Choose : uint8_t { nothing, greedy, best };  // each more than the one before
struct RowChoice {
  Choose what = Choose::nothing;
  int n_tokens = 0;
};

// The best logits of a row, the highest first (Backend::choose_best).
struct BestLogits {
  std::span<const float> values;
  std::span<const TokenId> ids;
};

// What a layer is made of, for measurements. Layers with a mixer of one kind have no blocks of the other.
enum class LayerBlock : uint8_t {
  delta_inputs,
  delta_step,
  delta_output,
  attention_inputs,
  attention,
  attention_output,
  mlp,
  moe,
  head,  // of the whole model
};

// Layers put together otherwise than the decoder's own, from its weights.
class LayerPass {
 public:
  virtual ~LayerPass() = default;
  // All layers over the rows of `step`. residual [rows, d_model], updated in place; angles of the rows.
  virtual void run(const Step& step, MutView residual, View angles, const StatePool& pool) = 0;
};

class Decoder {
 public:
  // Errors: not enough memory for activations (bytes named).
  static Result<std::unique_ptr<Decoder>> create(Backend& backend, DecoderShape shape, DecoderWeights weights,
                                                 const DecoderLimits& limits);

  const DecoderShape& shape() const { return shape_; }
  StateShape state_shape() const;
  Backend& backend() const { return *backend_; }
  const DecoderLimits& limits() const { return limits_; }

  // Runs all layers over the rows of `step`: tokens ids[row], state in `pool`. ids must lie in the
  // vocabulary.
  void forward(const Step& step, std::span<const TokenId> ids, const StatePool& pool);

  // The same for rows that are no embeddings: the caller fills input_rows(step.n_rows), then runs the layers.
  MutView input_rows(int n) const { return x_all_.row_range(0, n); }
  void forward_rows(const Step& step, const StatePool& pool);
  // forward_rows() of a decoder of one attention layer, only as far as its cache: for rows whose outcome
  // nobody wants.
  void cache_rows(const Step& step, const StatePool& pool);

  // How attention layer `layer` of a block drafter sees (backend.h: Attention).
  void set_attention_view(int layer, bool bidirectional, int window);

  // forward(), and then head() of the step's first rows, as many as it takes: in one, so that a backend that
  // records steps replays both.
  void forward_with_head(const Step& step, std::span<const TokenId> ids, const StatePool& pool,
                         const RowChoice& choice);

  // That block alone, of every layer that has it, over what the forward before left in the activations: a
  // step of the same rows, but for trees. For measurements: its results are of no use.
  void run_block(LayerBlock block, const Step& step, const StatePool& pool);
  // Layers that have it; bytes of weights that all of them read for n_rows rows, as weight_bytes.
  int n_layers_with(LayerBlock block) const;
  size_t block_weight_bytes(LayerBlock block, int n_rows) const;

  // From now on forward() runs `pass` in place of its own layers; taps and observers see none of them. The
  // pass must live as long as the decoder is used.
  void replace_layers(LayerPass* pass) {
    layer_pass_ = pass;
    renew_owners();
  }

  // From now on forward() keeps the outputs of these layers (zero-based, ascending or not) side by side: what
  // drafters read. Errors: a layer the model lacks; memory.
  Status tap_layers(std::span<const int> layers);
  // [rows of the last forward, layers x d_model], in the order of tap_layers.
  View features() const { return features_; }
  int features_all_cols() const { return features_all_.cols; }

  // Norm and head of rows [first, first + n) of the last forward, n <= max_logit_rows, which are then at hand
  // until the next forward, head() or logits(); and the choice of each.
  void head(int first, int n, const RowChoice& choice);
  // The same of any rows, at hand in the order given, as rows 0, 1, ..
  void head(std::span<const int32_t> rows, const RowChoice& choice);
  // The logits of the rows at hand where the backend has them.
  View logits_on_device() const { return logits_all_.row_range(0, n_at_hand_); }
  // Of a row of the last forward that is at hand: its logits [n_vocab], which the caller may edit;
  std::span<float> row_logits(int row);
  // its greedy choice, -1 where none was asked for or one of the logits is no finite number; its best logits,
  // kMostBest of them or all tokens, none likewise. The first call brings the choices of all rows.
  TokenId choice(int row);
  BestLogits best(int row);

  // head() of those rows, and their logits [n, n_vocab], which the caller may edit.
  std::span<float> logits(int first, int n);

  // The same for any rows of the last forward, [rows.size(), n_vocab].
  std::span<float> logits(std::span<const int32_t> rows);

  // The residual stream after the last layer, [rows of the last forward, d_model]; layer outputs and normed
  // hidden rows as well, for tests and tools: forward() calls `observer` (if set) after the embedding (0) and
  // after each layer (i + 1).
  View residual() const { return residual_; }
  View hidden() const { return hidden_; }  // after the final norm, of the rows at hand
  using Observer = void (*)(void* context, int layer, View residual);
  void observe(Observer observer, void* context) {
    observer_ = observer;
    observer_context_ = context;
  }

  const std::shared_ptr<const Weight>& embedding() const { return weights_.embedding; }
  const std::shared_ptr<const Weight>& head() const { return weights_.head; }
  View final_gain() const { return weights_.final_gain; }
  View rope_frequencies() const { return weights_.rope_frequencies; }
  const std::vector<DecoderLayer>& layers() const { return weights_.layers; }

  // Bytes of weights one decode step of n_rows rows must read (experts: the expected number touched by
  // n_rows).
  size_t weight_bytes(int n_rows) const;
  // Bytes of weights held.
  size_t weight_bytes_held() const;
  // Multiply-adds of one row through every matrix but the head.
  double macs_per_row() const;
  // The dense matrices one row passes through, for benchmarks: head last.
  std::vector<const Weight*> matrices() const;

 private:
  Decoder(Backend& backend, DecoderShape shape, DecoderWeights weights, const DecoderLimits& limits)
      : backend_(&backend), shape_(std::move(shape)), weights_(std::move(weights)), limits_(limits) {
    renew_owners();
  }
  Status allocate();
  void set_at_hand(int first, int n, const RowChoice& choice);
  // Norm and head of rows x, those at hand, into hidden_ (which may be x) and the logits, and their choices.
  void run_head(View x);
  int place_at_hand(int row) const;  // among the rows at hand
  // Logits of rows at hand where the host can read and edit them.
  std::span<float> logits_on_host(int first, int n);
  // Tokens that are chosen of a row at hand.
  int n_chosen() const;
  // Their ids and values of the rows at hand, on the device; brings them to the host.
  MutView chosen_ids() const;
  MutView chosen_values() const;
  void fetch_choices();
  // How far a step goes; one of another extent, or of another choice, is of another kind.
  enum class Extent : uint8_t { caches, layers, head };
  static constexpr size_t kKinds = 5;
  void run(const Step& step, std::span<const TokenId> ids, const StatePool& pool, Extent extent,
           const RowChoice& choice = {});
  void renew_owners() {
    for (uint64_t& owner : step_owners_) owner = new_step_owner();
  }
  void check_ids(const Step& step, std::span<const TokenId> ids) const;
  void run_layers(const Step& step, const StatePool& pool, Extent extent);
  void mix(const Step& step, const DecoderLayer& layer, const DeltaMixer& mixer, const StatePool& pool);
  void prepare(const Step& step, const DecoderLayer& layer, const DeltaMixer& mixer, const StatePool& pool);
  void recur(const Step& step, const DecoderLayer& layer, const StatePool& pool);
  void project(const Step& step, const DeltaMixer& mixer);
  void mix(const Step& step, const DecoderLayer& layer, const AttentionMixer& mixer, const StatePool& pool);
  // Up to the queries, and the keys and values in the cache.
  void prepare(const Step& step, const DecoderLayer& layer, const AttentionMixer& mixer,
               const StatePool& pool);
  Attention attention_of(const Step& step, const DecoderLayer& layer, const AttentionMixer& mixer,
                         const StatePool& pool) const;
  void project(const Step& step, const AttentionMixer& mixer);  // for measurements: mix() does both at once
  void feed_forward(const Step& step, const DecoderLayer& layer, const DenseFfn& ffn);
  void feed_forward(const Step& step, const DecoderLayer& layer, const MoeFfn& ffn);
  double bytes_read(const Weight& w, int n_rows) const;
  template <class Visit>
  void each_weight(Visit&& visit) const;

  Backend* backend_;
  DecoderShape shape_;
  DecoderWeights weights_;
  DecoderLimits limits_;
  DeviceBuffer activations_;
  Scratch scratch_;
  std::vector<float>
      logits_copy_;  // [max_logit_rows, n_vocab] where the host cannot read the backend's memory
  std::unique_ptr<std::byte[]> choices_copy_;                           // of the choices, likewise
  MutView x_all_, hidden_all_, logits_all_, choices_all_, angles_all_;  // at their largest
  MutView residual_, hidden_, angles_;                                  // of the last step
  int at_hand_ = 0, n_at_hand_ = 0;   // first and number of the rows that the head has seen
  RowChoice choice_;                  // theirs
  const TokenId* choices_ = nullptr;  // once they have been asked for: ids, then values
  std::vector<int> taps_;
  DeviceBuffer features_memory_;
  MutView features_all_, features_;
  LayerPass* layer_pass_ = nullptr;
  // Of the steps that backends may record, by kind; new ones when what a step does changes.
  std::array<uint64_t, kKinds> step_owners_ = {};
  int n_tokens_in_steps_ = 0;  // that those recorded choose among
  Observer observer_ = nullptr;
  void* observer_context_ = nullptr;
};

}  // namespace tandem
