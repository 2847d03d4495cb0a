// config.json texts of each family, as published: shapes of real checkpoints, fields that matter here.
#pragma once

#include <array>
#include <string_view>

namespace tandem {

// Qwen3.5-27B, as a vision-language repository nests it.
constexpr std::string_view kQwen35Text = R"({
  "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "tie_word_embeddings": false,
  "image_token_id": 248056, "video_token_id": 248057, "vision_start_token_id": 248053, "vision_end_token_id": 248054,
  "vision_config": {"depth": 27, "hidden_size": 1152},
  "text_config": {"model_type": "qwen3_5_text", "attention_bias": false, "attn_output_gate": true,
    "dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 17408, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": false, "num_attention_heads": 24, "num_hidden_layers": 64,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "vocab_size": 248320,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
      "mrope_interleaved": true, "mrope_section": [11, 11, 10]}}})";

// Qwen3.5-35B-A3B, text only, MLX 4 bit with an 8-bit router.
constexpr std::string_view kQwen35MoeText = R"({
  "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "attention_bias": false,
  "dtype": "bfloat16", "eos_token_id": [248046, 248044], "full_attention_interval": 4, "head_dim": 256,
  "hidden_act": "silu", "hidden_size": 2048, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
  "max_position_embeddings": 262144, "moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 256,
  "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "vocab_size": 248320,
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
  "quantization": {"group_size": 64, "bits": 4, "mode": "affine",
    "language_model.model.layers.0.mlp.gate": {"group_size": 64, "bits": 8},
    "language_model.model.layers.1.mlp.gate": false},
  "quantization_config": {"group_size": 64, "bits": 4}})";

constexpr std::string_view kQwen3NextText = R"({
  "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "attention_bias": false,
  "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4, "head_dim": 256,
  "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
  "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
  "moe_intermediate_size": 512, "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512,
  "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2, "partial_rotary_factor": 0.25,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000, "shared_expert_intermediate_size": 512,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})";

// Qwen3-8B with YaRN switched on as its model card says.
constexpr std::string_view kQwen3Text = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "bos_token_id": 151643,
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
  "max_position_embeddings": 40960, "max_window_layers": 36, "num_attention_heads": 32, "num_hidden_layers": 36,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "sliding_window": null,
  "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})";

constexpr std::string_view kQwen3MoeText = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": false,
  "decoder_sparse_step": 2, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
  "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [3], "moe_intermediate_size": 768,
  "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 6, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000.0, "tie_word_embeddings": false, "torch_dtype": "float16", "vocab_size": 151936})";

// Llama-3.2-1B.
constexpr std::string_view kLlamaText = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
  "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32,
  "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256})";

// Mistral-7B v0.3: no window.
constexpr std::string_view kMistralText = R"({
  "architectures": ["MistralForCausalLM"], "model_type": "mistral", "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
  "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32768})";

// A DFlash 2 drafter of Qwen3.8-27B.
constexpr std::string_view kDflash2Text = R"({
  "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "attention_bias": false, "is_causal": false,
  "dflash_config": {"block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2, "mask_token_id": 248070,
    "selector_rank": 256, "selector_top_k": 16, "target_layer_ids": [5, 19, 33, 47, 61]},
  "dtype": "bfloat16", "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17408,
  "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
    "sliding_attention"],
  "max_position_embeddings": 262144, "max_window_layers": 5, "num_attention_heads": 32,
  "num_hidden_layers": 5, "num_key_value_heads": 8, "num_target_layers": 64, "rms_norm_eps": 1e-06,
  "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"}, "sample_from_anchor": false,
  "sliding_window": 2048, "tie_word_embeddings": false, "use_sliding_window": true, "vocab_size": 248320})";

inline constexpr std::array kAllConfigTexts{kQwen35Text,   kQwen35MoeText, kQwen3NextText, kQwen3Text,
                                            kQwen3MoeText, kLlamaText,     kMistralText};

}  // namespace tandem
