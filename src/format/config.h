// config.json of a checkpoint folder -> ModelConfig: everything an architecture needs to know, checked.
//
// Read are the Hugging Face files of Qwen3.5 (dense, MoE; nested `text_config` or flat), Qwen3-Next, Qwen3
// (dense, MoE), Llama and Mistral without a sliding window, and their MLX conversions (`quantization` block).
// Every number is range-checked, so that products of sizes fit an int64 and sizes themselves an int; what
// would change the mathematics and is not implemented is refused by name instead of being ignored. Source:
// the configuration classes of these models in the transformers library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace tandem {

enum class Architecture : uint8_t {
  qwen3_5,     // hybrid: Gated DeltaNet and gated full attention; dense or MoE
  qwen3_next,  // the same mathematics, with merged and regrouped Gated DeltaNet projections in the checkpoint
  qwen3,       // full attention with q/k norms; dense or MoE
  llama,       // full attention without q/k norms; Mistral too
};

enum class LayerKind : uint8_t { linear_attention, full_attention };

// Rotary embedding: which frequencies, over which dimensions of a head.
struct RopeConfig {
  enum class Type : uint8_t { plain, linear, llama3, yarn };
  Type type = Type::plain;
  double theta = 0;     // base of the frequencies
  int rotary_dims = 0;  // R, even: the first R dimensions of a head are rotated, the rest pass through
  double factor = 1;    // linear, llama3, yarn
  // llama3
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int original_max_position = 0;  // llama3, yarn: context that the model was trained with before stretching
  // yarn
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // round the ramp's ends to whole dimensions
  double mscale = 1;
  double mscale_all_dim = 0;
  std::optional<double> attention_factor;  // overrides the formula for the factor on cos and sin
};

// Affine group quantisation of a matrix; see quant/affine.h.
struct QuantParams {
  int bits = 0;        // 2, 3, 4, 5, 6 or 8
  int group_size = 0;  // 32, 64 or 128
  bool operator==(const QuantParams&) const = default;
};

// The `quantization` block of an MLX conversion.
struct QuantizationConfig {
  std::optional<QuantParams> global;  // nullopt: the checkpoint is not quantised
  // Exceptions by module path in MLX names ("language_model.model.layers.3.mlp.gate"); nullopt: left
  // unquantised.
  std::map<std::string, std::optional<QuantParams>, std::less<>> modules;

  // How the matrix `module`.weight is stored *if* the checkpoint holds `module`.scales; nullopt: it must be
  // plain.
  std::optional<QuantParams> params_for(std::string_view module) const;
};

// Which hidden states a multi-token-prediction head takes. No published file says it: our own block
// "tandem_mtp": {"input": "pre_norm" or "post_norm", "chain": the same} at the end of config.json may.
struct MtpOptions {
  bool input_after_norm = true;  // the target's state after its final norm, else before
  bool chain_after_norm = true;  // a chain feeds back the output of the head's own norm, else its input
  bool operator==(const MtpOptions&) const = default;
};

struct ModelConfig {
  std::string file;                // the config.json it came from, for errors
  std::string model_type;          // of the text model, as written ("qwen3_5_text")
  std::string architecture_class;  // first of `architectures`, or empty
  Architecture architecture = Architecture::qwen3_5;

  int vocab_size = 0;  // rows of embedding and head (padded; the tokenizer may have fewer ids)
  int d_model = 0;     // hidden_size
  int n_layers = 0;
  int d_ff = 0;  // width of a dense FFN; 0 if every layer is MoE
  int n_heads = 0;
  int n_kv_heads = 0;  // divides n_heads
  int d_head = 0;
  double rms_norm_eps = 0;
  int max_position = 0;  // native context: max_position_embeddings
  int context = 0;       // positions that may be used: max_position, or what rope scaling stretches it to
  RopeConfig rope;
  std::vector<LayerKind> layer_kinds;  // n_layers
  std::vector<int> windows;  // drafters: n_layers, sliding window of each layer, 0: none; models: empty

  bool zero_centred_norms = false;  // layer, final and q/k norms multiply by 1 + w (raw checkpoints hold w)
  bool qk_norm = false;             // RMS norm over each head of q and k
  bool output_gate = false;      // q_proj carries a sigmoid gate per query row: [n_heads, (q, gate), d_head]
  bool attention_bias = false;   // q, k, v, o have biases
  bool tied_embeddings = false;  // the head is embed_tokens

  // Gated DeltaNet (hybrids; 0 otherwise). n_linear_v_heads is a multiple of n_linear_k_heads.
  int n_linear_k_heads = 0;
  int n_linear_v_heads = 0;
  int d_linear_k = 0;
  int d_linear_v = 0;
  int conv_kernel = 0;  // 4

  // Mixture of experts (0 and empty otherwise)
  int n_experts = 0;
  int top_k = 0;                 // experts per token
  int d_expert = 0;              // moe_intermediate_size
  int d_shared_expert = 0;       // 0: no shared expert
  bool norm_top_k = false;       // weights of the chosen experts are divided by their sum
  std::vector<bool> moe_layers;  // n_layers: this layer's FFN is MoE

  int n_mtp_layers = 0;          // as configured; whether the tensors exist is another matter
  MtpOptions mtp;                // of its head
  DType dtype = DType::bf16;     // f32, f16 or bf16: what activations were trained in
  std::vector<int32_t> eos_ids;  // of both levels of the file, sorted, unique; may be empty
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
  std::vector<int32_t> vision_ids;  // image and video tokens: a text prompt must not hold them
  bool has_vision = false;
  QuantizationConfig quantization;

  bool hybrid() const {
    return architecture == Architecture::qwen3_5 || architecture == Architecture::qwen3_next;
  }
  bool moe() const { return n_experts > 0; }
  bool quantised() const { return quantization.global.has_value(); }
  int linear_key_dim() const { return n_linear_k_heads * d_linear_k; }
  int linear_value_dim() const { return n_linear_v_heads * d_linear_v; }
  int conv_dim() const { return 2 * linear_key_dim() + linear_value_dim(); }
  int n_full_attention_layers() const;
};

// A drafter's network may have sliding windows, which models are refused for.
enum class ConfigUse : uint8_t { model, drafter };

// Parses the text of a config.json; `path` names it in errors: "path: field: expected ..., found ...".
Result<ModelConfig> parse_model_config(std::span<const std::byte> text, const std::string& path,
                                       ConfigUse use = ConfigUse::model);

// Of folder/config.json.
Result<ModelConfig> load_model_config(const std::string& folder);

// "qwen3_5, qwen3_5_moe, ...": the model types that are read.
std::string supported_model_types();

}  // namespace tandem
