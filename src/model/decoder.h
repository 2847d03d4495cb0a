// The network of every family tandem runs: layers of (Gated DeltaNet | attention) and (dense | mixture) with
// one residual stream, written once against Backend. Families differ in configuration and in how their
// tensors are named, not here.
#pragma once

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
  int max_logit_rows = 32;  // of one call of logits()
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

  // From now on forward() runs `pass` in place of its own layers; taps and observers see none of them. The
  // pass must live as long as the decoder is used.
  void replace_layers(LayerPass* pass) {
    layer_pass_ = pass;
    step_owner_ = new_step_owner();
  }

  // From now on forward() keeps the outputs of these layers (zero-based, ascending or not) side by side: what
  // drafters read. Errors: a layer the model lacks; memory.
  Status tap_layers(std::span<const int> layers);
  // [rows of the last forward, layers x d_model], in the order of tap_layers.
  View features() const { return features_; }
  int features_all_cols() const { return features_all_.cols; }

  // Logits of rows [first, first + n) of the last forward, [n, n_vocab], n <= max_logit_rows. The caller may
  // edit them; they last until the next forward() or logits().
  std::span<float> logits(int first, int n);

  // The same for any rows of the last forward, [rows.size(), n_vocab].
  std::span<float> logits(std::span<const int32_t> rows);

  // The residual stream after the last layer, [rows of the last forward, d_model]; layer outputs and normed
  // hidden rows as well, for tests and tools: forward() calls `observer` (if set) after the embedding (0) and
  // after each layer (i + 1).
  View residual() const { return residual_; }
  View hidden() const { return hidden_; }  // after the final norm, of the rows of the last logits() call
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
      : backend_(&backend), shape_(std::move(shape)), weights_(std::move(weights)), limits_(limits) {}
  Status allocate();
  // Norm and head of rows x into hidden_ (which may be x) and the logits.
  std::span<float> run_head(View x);
  enum class Extent : uint8_t { all, caches };
  void run(const Step& step, std::span<const TokenId> ids, const StatePool& pool,
           Extent extent = Extent::all);
  void run_layers(const Step& step, const StatePool& pool, Extent extent);
  void mix(const Step& step, const DecoderLayer& layer, const DeltaMixer& mixer, const StatePool& pool);
  void mix(const Step& step, const DecoderLayer& layer, const AttentionMixer& mixer, const StatePool& pool);
  // Up to the queries, and the keys and values in the cache.
  void prepare(const Step& step, const DecoderLayer& layer, const AttentionMixer& mixer,
               const StatePool& pool);
  void feed_forward(const Step& step, const DecoderLayer& layer, const DenseFfn& ffn);
  void feed_forward(const Step& step, const DecoderLayer& layer, const MoeFfn& ffn);
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
  MutView x_all_, hidden_all_, logits_all_, angles_all_;  // at their largest
  MutView residual_, hidden_, angles_;                    // of the last step
  std::vector<int> taps_;
  DeviceBuffer features_memory_;
  MutView features_all_, features_;
  LayerPass* layer_pass_ = nullptr;
  // Of the steps that backends may record; new ones when what a step does changes.
  uint64_t step_owner_ = new_step_owner(), cache_step_owner_ = new_step_owner();
  Observer observer_ = nullptr;
  void* observer_context_ = nullptr;
};

}  // namespace tandem
