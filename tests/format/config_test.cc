#include "format/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "format/config_texts.h"

namespace tandem {
namespace {

using nlohmann::json;

Result<ModelConfig> parse(std::string_view text) {
  return parse_model_config(as_byte_span(text), "config.json");
}

ModelConfig parsed(std::string_view text) {
  auto config = parse(text);
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? *std::move(config) : ModelConfig{};
}

// A text with fields set (JSON merge patch: null removes).
std::string patched(std::string_view text, std::string_view patch) {
  json config = json::parse(text);
  config.merge_patch(json::parse(patch));
  return config.dump();
}

TEST(ModelConfig, ReadsQwen35NestedInAVisionLanguageFile) {
  const ModelConfig c = parsed(kQwen35Text);
  EXPECT_EQ(c.architecture, Architecture::qwen3_5);
  EXPECT_EQ(c.model_type, "qwen3_5_text");
  EXPECT_EQ(c.architecture_class, "Qwen3_5ForConditionalGeneration");
  EXPECT_EQ(c.vocab_size, 248320);
  EXPECT_EQ(c.d_model, 5120);
  EXPECT_EQ(c.n_layers, 64);
  EXPECT_EQ(c.d_ff, 17408);
  EXPECT_EQ(c.n_heads, 24);
  EXPECT_EQ(c.n_kv_heads, 4);
  EXPECT_EQ(c.d_head, 256);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.max_position, 262144);
  EXPECT_EQ(c.context, 262144);
  EXPECT_EQ(c.rope.type, RopeConfig::Type::plain);
  EXPECT_EQ(c.rope.theta, 1e7);
  EXPECT_EQ(c.rope.rotary_dims, 64);
  EXPECT_TRUE(c.hybrid() && c.zero_centred_norms && c.qk_norm && c.output_gate);
  EXPECT_FALSE(c.moe() || c.quantised() || c.attention_bias);
  EXPECT_FALSE(c.tied_embeddings) << "the outer level wins";
  ASSERT_EQ(c.layer_kinds.size(), 64u);
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(c.layer_kinds[i] == LayerKind::full_attention, i % 4 == 3) << i;
  }
  EXPECT_EQ(c.n_full_attention_layers(), 16);
  EXPECT_EQ(c.n_linear_k_heads, 16);
  EXPECT_EQ(c.n_linear_v_heads, 48);
  EXPECT_EQ(c.conv_dim(), 2 * 2048 + 6144);
  EXPECT_EQ(c.conv_kernel, 4);
  EXPECT_EQ(c.n_mtp_layers, 1);
  EXPECT_EQ(c.dtype, DType::bf16);
  EXPECT_EQ(c.eos_ids, std::vector<int32_t>{248044});
  EXPECT_TRUE(c.has_vision);
  EXPECT_EQ(c.vision_ids, (std::vector<int32_t>{248056, 248057, 248053, 248054}));
}

TEST(ModelConfig, ReadsAQuantisedQwen35MoeFile) {
  const ModelConfig c = parsed(kQwen35MoeText);
  EXPECT_TRUE(c.hybrid() && c.moe() && c.norm_top_k);
  EXPECT_EQ(c.n_experts, 256);
  EXPECT_EQ(c.top_k, 8);
  EXPECT_EQ(c.d_expert, 512);
  EXPECT_EQ(c.d_shared_expert, 512);
  EXPECT_EQ(c.d_ff, 0);
  EXPECT_EQ(c.moe_layers, std::vector<bool>(40, true));
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{248044, 248046}));
  ASSERT_TRUE(c.quantised());
  EXPECT_EQ(c.quantization.params_for("language_model.lm_head"), (QuantParams{.bits = 4, .group_size = 64}));
  EXPECT_EQ(c.quantization.params_for("language_model.model.layers.0.mlp.gate"),
            (QuantParams{.bits = 8, .group_size = 64}));
  EXPECT_EQ(c.quantization.params_for("language_model.model.layers.1.mlp.gate"), std::nullopt);
}

TEST(ModelConfig, ReadsQwen3Next) {
  const ModelConfig c = parsed(kQwen3NextText);
  EXPECT_EQ(c.architecture, Architecture::qwen3_next);
  EXPECT_TRUE(c.hybrid() && c.moe() && c.norm_top_k && c.output_gate);
  EXPECT_EQ(c.rope.theta, 1e7);
  EXPECT_EQ(c.rope.rotary_dims, 64);
  EXPECT_EQ(c.top_k, 10);
}

TEST(ModelConfig, ReadsQwen3WithYarn) {
  const ModelConfig c = parsed(kQwen3Text);
  EXPECT_EQ(c.architecture, Architecture::qwen3);
  EXPECT_TRUE(c.qk_norm);
  EXPECT_FALSE(c.hybrid() || c.moe() || c.output_gate || c.zero_centred_norms);
  EXPECT_EQ(c.rope.type, RopeConfig::Type::yarn);
  EXPECT_EQ(c.rope.rotary_dims, 128);
  EXPECT_EQ(c.rope.factor, 4);
  EXPECT_EQ(c.rope.original_max_position, 32768);
  EXPECT_EQ(c.rope.beta_fast, 32);
  EXPECT_TRUE(c.rope.truncate);
  EXPECT_EQ(c.rope.attention_factor, std::nullopt);
  EXPECT_EQ(c.max_position, 40960);
  EXPECT_EQ(c.context, 131072);
  EXPECT_EQ(c.bos_id, 151643);
  EXPECT_EQ(c.layer_kinds, std::vector<LayerKind>(36, LayerKind::full_attention));
}

TEST(ModelConfig, ReadsWhichLayersOfQwen3MoeAreSparse) {
  const ModelConfig c = parsed(kQwen3MoeText);
  EXPECT_EQ(c.moe_layers, (std::vector<bool>{false, true, false, false, false, true}));
  EXPECT_EQ(c.d_ff, 6144);
  EXPECT_EQ(c.d_shared_expert, 0);
  EXPECT_EQ(c.dtype, DType::f16);
  EXPECT_FALSE(parsed(patched(kQwen3MoeText, R"({"norm_topk_prob":null})")).norm_top_k);
  EXPECT_TRUE(parsed(patched(kQwen3NextText, R"({"norm_topk_prob":null})")).norm_top_k);
}

TEST(ModelConfig, ReadsLlama3AndItsRope) {
  const ModelConfig c = parsed(kLlamaText);
  EXPECT_EQ(c.architecture, Architecture::llama);
  EXPECT_FALSE(c.qk_norm);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.rope.type, RopeConfig::Type::llama3);
  EXPECT_EQ(c.rope.factor, 32);
  EXPECT_EQ(c.rope.low_freq_factor, 1);
  EXPECT_EQ(c.rope.high_freq_factor, 4);
  EXPECT_EQ(c.rope.original_max_position, 8192);
  EXPECT_EQ(c.context, 131072) << "not stretched again";
  EXPECT_EQ(c.eos_ids.size(), 3u);
}

TEST(ModelConfig, AnOldLlamaFileGetsItsDefaults) {
  const ModelConfig c = parsed(patched(
      kLlamaText, R"({"head_dim":null,"num_key_value_heads":null,"rope_theta":null,"rope_scaling":null})"));
  EXPECT_EQ(c.d_head, 64);
  EXPECT_EQ(c.n_kv_heads, 32);
  EXPECT_EQ(c.rope.theta, 10000);
}

TEST(ModelConfig, MistralWithoutAWindowIsALlama) {
  EXPECT_EQ(parsed(kMistralText).architecture, Architecture::llama);
  EXPECT_TRUE(parse(patched(kMistralText, R"({"sliding_window":32768})")).ok())
      << "a window as long as the context";
}

TEST(ModelConfig, SaysWhichHiddenStatesAnMtpHeadTakes) {
  EXPECT_EQ(parsed(kQwen35Text).mtp, (MtpOptions{.input_after_norm = true, .chain_after_norm = true}));
  EXPECT_EQ(parsed(patched(kQwen35Text, R"({"tandem_mtp":{"input":"pre_norm"}})")).mtp,
            (MtpOptions{.input_after_norm = false, .chain_after_norm = true}));
  EXPECT_EQ(parsed(patched(kQwen35Text, R"({"tandem_mtp":{"input":"post_norm","chain":"pre_norm"}})")).mtp,
            (MtpOptions{.input_after_norm = true, .chain_after_norm = false}));
}

TEST(ModelConfig, LayerTypesWinOverTheInterval) {
  const ModelConfig c = parsed(patched(
      kQwen3NextText,
      R"({"num_hidden_layers":3,"layer_types":["full_attention","linear_attention","full_attention"]})"));
  EXPECT_EQ(c.layer_kinds, (std::vector<LayerKind>{LayerKind::full_attention, LayerKind::linear_attention,
                                                   LayerKind::full_attention}));
}

TEST(ModelConfig, LinearRopeStretchesTheContext) {
  const ModelConfig c = parsed(patched(kQwen3Text, R"({"rope_scaling":{"rope_type":null,"type":"linear",
                                                       "original_max_position_embeddings":null}})"));
  EXPECT_EQ(c.rope.type, RopeConfig::Type::linear);
  EXPECT_EQ(c.context, 4 * 40960);
}

TEST(ModelConfig, YarnTakesItsOptionalFields) {
  const ModelConfig c = parsed(patched(
      kQwen3Text,
      R"({"rope_scaling":{"beta_fast":16,"beta_slow":2,"truncate":false,"mscale":0.7,"mscale_all_dim":0.5,
                      "attention_factor":1.25}})"));
  EXPECT_EQ(c.rope.beta_fast, 16);
  EXPECT_EQ(c.rope.beta_slow, 2);
  EXPECT_FALSE(c.rope.truncate);
  EXPECT_EQ(c.rope.mscale, 0.7);
  EXPECT_EQ(c.rope.mscale_all_dim, 0.5);
  EXPECT_EQ(c.rope.attention_factor, 1.25);
}

struct BadConfig {
  std::string_view text;
  const char* patch;
  const char* expected;  // part of the message, after "config.json: "
};

TEST(ModelConfig, WhatIsWrongOrNotImplementedIsRefusedByName) {
  const std::vector<BadConfig> cases{
      {kQwen3Text, R"({"model_type":"gpt_oss"})",
       "model_type: 'gpt_oss' is not supported; supported are qwen3_5, "},
      {kQwen3Text, R"({"model_type":null})",
       "model_type: a file without it is not supported; supported are qwen3_5"},
      {kQwen3Text, R"({"model_type":7})", "model_type: expected a string, found 7"},
      {kQwen35Text, R"({"text_config":{"model_type":"qwen4exp"}})",
       "text_config.model_type: 'qwen4exp' is not"},
      {kQwen35Text, R"({"text_config":{"model_type":"qwen3"}})", "'qwen3' does not fit model_type 'qwen3_5'"},
      {kQwen35Text, R"({"text_config":{"model_type":"qwen3_5_moe_text"}})",
       "does not fit model_type 'qwen3_5'"},
      {kQwen35Text, R"({"text_config":[]})", "text_config: expected an object, found a list"},
      {kQwen35Text, R"({"text_config":{"hidden_size":-3}})",
       "text_config.hidden_size: expected an integer in [1, 262144], found -3"},
      {kQwen3Text, R"({"hidden_size":null})",
       "hidden_size: expected an integer in [1, 262144], found nothing"},
      {kQwen3Text, R"({"hidden_size":"4096"})",
       "hidden_size: expected an integer in [1, 262144], found \"4096\""},
      {kQwen3Text, R"({"hidden_size":4096.5})",
       "hidden_size: expected an integer in [1, 262144], found 4096.5"},
      {kQwen3Text, R"({"hidden_size":1e300})",
       "hidden_size: expected an integer in [1, 262144], found 1e+300"},
      {kQwen3Text, R"({"vocab_size":4294967296})", "vocab_size: expected an integer in [1, 4194304]"},
      {kQwen3Text, R"({"num_hidden_layers":0})",
       "num_hidden_layers: expected an integer in [1, 1024], found 0"},
      {kQwen3Text, R"({"num_key_value_heads":7})",
       "num_attention_heads: 32 is not a multiple of num_key_value_heads = 7"},
      {kQwen3Text, R"({"num_key_value_heads":null})", "num_key_value_heads: expected an integer"},
      {kQwen3Text, R"({"head_dim":null})", "head_dim: expected an integer, found nothing"},
      {kQwen3Text, R"({"head_dim":127})", "head_dim: expected an even number, found 127"},
      {kLlamaText, R"({"head_dim":null,"hidden_size":2047})",
       "hidden_size: 2047 over num_attention_heads = 32"},
      {kQwen3Text, R"({"rms_norm_eps":0})", "rms_norm_eps: expected a number in [1e-12, 0.1], found 0"},
      {kQwen3Text, R"({"hidden_act":"gelu"})", "hidden_act: 'gelu' is not supported; supported is silu"},
      {kQwen35MoeText, R"({"attention_bias":true})",
       "attention_bias: biases in the attention layers are not"},
      {kLlamaText, R"({"mlp_bias":true})", "mlp_bias: biases in the feed-forward layers are not supported"},
      {kQwen3Text, R"({"use_sliding_window":true,"sliding_window":4096,"max_window_layers":28})",
       "sliding_window: a window of 4096 in a context of 40960 is not supported"},
      {kMistralText, R"({"sliding_window":4096})", "sliding_window: a window of 4096 in a context of 32768"},
      {kMistralText, R"({"sliding_window":null})",
       "sliding_window: expected null or a length, found nothing"},
      {kQwen3Text, R"({"layer_types":["full_attention"]})",
       "layer_types: expected one entry for each of num_hidden_layers = 36, found 1"},
      {kQwen3Text, R"({"num_hidden_layers":1,"layer_types":["sliding_attention"]})",
       "layer_types: entry 0 is 'sliding_attention', supported are full_attention"},
      {kQwen3Text, R"({"num_hidden_layers":1,"layer_types":["linear_attention"]})",
       "layer_types: entry 0 is 'linear_attention', supported are full_attention"},
      {kQwen35MoeText, R"({"full_attention_interval":null})",
       "layer_types: expected it, or full_attention_interval; found neither"},
      {kQwen35MoeText, R"({"linear_num_value_heads":40})",
       "linear_num_value_heads: 40 is not a multiple of linear_num_key_heads = 16"},
      {kQwen35MoeText, R"({"linear_conv_kernel_dim":3})",
       "linear_conv_kernel_dim: expected an integer in [4, 4]"},
      {kQwen35MoeText, R"({"num_experts_per_tok":9,"num_experts":8})",
       "num_experts_per_tok: 9 is more than num_experts = 8"},
      {kQwen35MoeText, R"({"shared_expert_intermediate_size":null})",
       "shared_expert_intermediate_size: expected an"},
      {kQwen3MoeText, R"({"intermediate_size":null})", "intermediate_size: expected an integer"},
      {kQwen3MoeText, R"({"mlp_only_layers":["x"]})",
       "mlp_only_layers: expected integers in [0, 1024], found \"x\""},
      {kQwen35Text, R"({"text_config":{"mtp_use_dedicated_embeddings":true}})",
       "text_config.mtp_use_dedicated_embeddings: an MTP head with its own embeddings is not supported"},
      {kQwen35Text, R"({"tandem_mtp":{"chain":"after"}})",
       "tandem_mtp.chain: expected pre_norm or post_norm, found 'after'"},
      {kQwen35Text, R"({"tandem_mtp":"pre_norm"})", "tandem_mtp: expected an object"},
      {kQwen35MoeText, R"({"rope_parameters":{"rope_theta":null}})", "rope_theta: expected a number"},
      {kQwen35MoeText, R"({"rope_parameters":{"partial_rotary_factor":null}})",
       "partial_rotary_factor: expected a"},
      {kQwen35MoeText, R"({"rope_parameters":{"partial_rotary_factor":0.005}})",
       "rope_parameters.partial_rotary_factor: 0.005 of head_dim 256 gives 1 rotated dimensions"},
      {kQwen3Text, R"({"rope_scaling":{"rope_type":"longrope"}})",
       "rope_scaling.rope_type: rotary embedding 'longrope' is not supported; supported are default, linear"},
      {kQwen3Text, R"({"rope_scaling":{"rope_type":null,"type":"dynamic"}})",
       "rope_scaling.type: rotary embedding 'dynamic' is not supported"},
      {kQwen3Text, R"({"rope_scaling":{"factor":null}})",
       "rope_scaling.factor: expected a number in [1, 10000]"},
      {kQwen3Text, R"({"rope_scaling":{"factor":0.5}})",
       "rope_scaling.factor: expected a number in [1, 10000]"},
      {kQwen3Text, R"({"rope_scaling":{"original_max_position_embeddings":null}})",
       "rope_scaling.original_max_position_embeddings: expected an integer"},
      {kQwen3Text, R"({"rope_scaling":{"beta_fast":1,"beta_slow":2}})",
       "rope_scaling.beta_fast: expected at least"},
      {kLlamaText, R"({"rope_scaling":{"high_freq_factor":1.0}})",
       "rope_scaling.high_freq_factor: expected more"},
      {kQwen3Text, R"({"torch_dtype":"float8_e4m3fn"})", "torch_dtype: 'float8_e4m3fn' is not supported"},
      {kQwen3Text, R"({"eos_token_id":[1,-1]})",
       "eos_token_id: expected integers in [0, 2147483647], found -1"},
      {kQwen35MoeText, R"({"quantization":{"bits":7}})",
       "quantization.bits: expected 2, 3, 4, 5, 6 or 8, found 7"},
      {kQwen35MoeText, R"({"quantization":{"group_size":16}})",
       "quantization.group_size: expected 32, 64 or 128, found 16"},
      {kQwen35MoeText, R"({"quantization":{"mode":"mxfp4"}})",
       "quantization.mode: quantisation 'mxfp4' is not"},
      {kQwen35MoeText, R"({"quantization":{"mode":"nvfp4"}})",
       "quantization.mode: quantisation 'nvfp4' is not"},
      {kQwen35MoeText, R"({"quantization":{"mode":"mxfp8"}})",
       "quantization.mode: quantisation 'mxfp8' is not"},
      {kQwen35MoeText, R"({"quantization":{"language_model.lm_head":{"mode":"mxfp8"}}})",
       "quantization.language_model.lm_head.mode: quantisation 'mxfp8' is not supported"},
      {kQwen35MoeText, R"({"quantization":{"language_model.lm_head":{"bits":9}}})",
       "quantization.language_model.lm_head.bits: expected 2, 3, 4, 5, 6 or 8, found 9"},
      {kQwen3Text, R"({"quantization_config":{"quant_method":"awq","bits":4}})",
       "quantization_config.quant_method: quantisation 'awq' is not supported; supported are plain bf16"},
      {kQwen3Text, R"({"quantization_config":{"quant_method":"gptq","bits":4}})",
       "quantisation 'gptq' is not"},
      {kQwen3Text, R"({"quantization_config":{"quant_method":"fp8"}})",
       "quantisation 'fp8' is not supported"},
      {kQwen3Text, R"({"quantization_config":{"quant_method":"mxfp4"}})",
       "quantisation 'mxfp4' is not supported"},
      {kQwen3Text,
       R"({"quantization_config":{"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized"}})",
       "quantisation 'compressed-tensors' (format 'nvfp4-pack-quantized') is not supported"},
      {kQwen35Text, R"({"text_config":{"quantization_config":{"quant_method":"fp8"}}})",
       "text_config.quantization_config.quant_method: quantisation 'fp8'"},
  };
  for (const BadConfig& bad : cases) {
    const auto config = parse(patched(bad.text, bad.patch));
    ASSERT_FALSE(config.ok()) << bad.patch << " was accepted";
    EXPECT_EQ(config.error().message.find("config.json: "), 0u) << config.error().message;
    EXPECT_NE(config.error().message.find(bad.expected), std::string::npos)
        << bad.patch << " gave: " << config.error().message << "\nexpected: " << bad.expected;
  }
}

TEST(ModelConfig, TextThatIsNoConfigIsAnErrorWithItsPath) {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep = "{\"a\":" + deep + (deep.empty() ? "1}" : "}");
  const std::vector<std::pair<std::string, const char*>> cases{
      {"", "config.json: the file is empty, expected JSON"},
      {"[]", "config.json: expected a JSON object, found a list"},
      {"{", "config.json: not valid JSON"},
      {"{\"model_type\":\"\xff\"}", "config.json: not valid JSON: The input is not valid UTF-8"},
      {deep, "config.json: JSON nested deeper than 32 levels"},
      {std::string(17 << 20, ' '), "config.json: 17825792 bytes of JSON, expected at most 16777216"},
      {R"({"model_type":"qwen3","model_type":"llama"})",
       "config.json: model_type: the key occurs more than once"},
  };
  for (const auto& [text, expected] : cases) {
    const auto config = parse(text);
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().message.find(expected), 0u) << config.error().message;
  }
}

TEST(ModelConfig, LoadsEveryEmbeddedModelAndGolden) {
  const std::string models = TANDEM_MODELS, tiny = std::string(TANDEM_TEST_DATA) + "/goldens/tiny/";
  for (const std::string& folder :
       {models + "/tandem-demo", models + "/tandem-demo-dflash", tiny + "qwen3_5", tiny + "qwen3_5_moe",
        tiny + "qwen3_next", tiny + "qwen3", tiny + "llama"}) {
    const auto config = load_model_config(folder);
    EXPECT_TRUE(config.ok()) << config.error().message;
  }
  const auto demo = load_model_config(models + "/tandem-demo");
  ASSERT_TRUE(demo.ok());
  EXPECT_EQ(demo->rope.rotary_dims, 32);
  EXPECT_EQ(demo->quantization.global, (QuantParams{.bits = 8, .group_size = 64}));
  EXPECT_FALSE(load_model_config(models).ok());
}

// Whatever is accepted is safe to compute sizes with.
void expect_sound(const ModelConfig& c) {
  ASSERT_TRUE(c.d_model > 0 && c.n_layers > 0 && c.n_heads > 0 && c.n_kv_heads > 0 && c.d_head > 0);
  ASSERT_EQ(c.n_heads % c.n_kv_heads, 0);
  ASSERT_TRUE(c.rope.rotary_dims >= 2 && c.rope.rotary_dims % 2 == 0 && c.rope.rotary_dims <= c.d_head);
  ASSERT_EQ(c.layer_kinds.size(), size_t(c.n_layers));
  ASSERT_EQ(c.moe_layers.size(), size_t(c.n_layers));
  ASSERT_TRUE(c.context >= 1 && c.context <= 1 << 24);
  if (c.hybrid()) {
    ASSERT_EQ(c.n_linear_v_heads % c.n_linear_k_heads, 0);
  }
  for (int i = 0; i < c.n_layers; ++i) {
    if (c.moe_layers[size_t(i)]) {
      ASSERT_TRUE(c.top_k >= 1 && c.top_k <= c.n_experts && c.d_expert > 0);
    } else {
      ASSERT_GT(c.d_ff, 0);
    }
  }
}

TEST(ModelConfig, OddValuesInAnyFieldNeverGiveAnUnsoundConfig) {
  const std::vector<json> odd{nullptr,
                              "",
                              "x",
                              -1,
                              0,
                              1,
                              2,
                              3,
                              1e-30,
                              1e300,
                              0.5,
                              true,
                              false,
                              json::array(),
                              json::object(),
                              json::array({1, 2}),
                              int64_t{1} << 40,
                              INT64_MIN,
                              UINT64_MAX,
                              2147483647,
                              2147483648,
                              "default",
                              "yarn"};
  for (const std::string_view text : kAllConfigTexts) {
    const json flat = json::parse(text).flatten();
    for (const auto& [pointer, old] : flat.items()) {
      for (const json& value : odd) {
        json changed = flat;
        if (value.is_structured()) continue;  // flattened texts hold scalars; lists and objects come below
        changed[pointer] = value;
        const auto config = parse(changed.unflatten().dump());
        if (config.ok()) expect_sound(*config);
      }
    }
    json whole = json::parse(text);
    for (auto& [key, old] : whole.items()) {
      for (const json& value : odd) {
        json changed = whole;
        changed[key] = value;
        const auto config = parse(changed.dump());
        if (config.ok()) expect_sound(*config);
      }
    }
  }
}

TEST(ModelConfig, DamagedTextNeverGivesAnUnsoundConfig) {
  std::mt19937 rng(2);
  for (int i = 0; i < 5000; ++i) {
    std::string text(kAllConfigTexts[size_t(i) % kAllConfigTexts.size()]);
    const int n_edits = 1 + int(rng() % 4);
    for (int e = 0; e < n_edits && !text.empty(); ++e) {
      const size_t at = rng() % text.size();
      switch (rng() % 3) {
        case 0:
          text[at] = char(text[at] ^ (1 << (rng() % 8)));
          break;
        case 1:
          text[at] = "0123456789.-eE"[rng() % 14];
          break;
        default:
          text.erase(at, rng() % 5);
      }
    }
    if (rng() % 8 == 0) text.resize(rng() % (text.size() + 1));
    const auto config = parse(text);
    if (config.ok()) expect_sound(*config);
  }
}

}  // namespace
}  // namespace tandem
