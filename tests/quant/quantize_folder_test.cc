#include "quant/quantize_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "format/checkpoint.h"
#include "quant/affine.h"
#include "quant/checkpoint_builder.h"
#include "quant/values.h"

namespace tandem {
namespace {

constexpr const char* kHybridConfig = R"({"model_type":"qwen3_5_text","vocab_size":96,"hidden_size":64,
  "intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,
  "max_position_embeddings":512,"rms_norm_eps":1e-6,"layer_types":["linear_attention","full_attention"],
  "linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":16,"linear_value_head_dim":16,
  "linear_conv_kernel_dim":4,"tie_word_embeddings":true,
  "rope_parameters":{"rope_theta":10000.0,"partial_rotary_factor":0.5}})";

constexpr const char* kMoeConfig = R"({"model_type":"qwen3_5_moe_text","vocab_size":96,"hidden_size":64,
  "num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,"num_experts":3,
  "num_experts_per_tok":2,"moe_intermediate_size":32,"shared_expert_intermediate_size":32,
  "max_position_embeddings":512,"rms_norm_eps":1e-6,"layer_types":["full_attention"],
  "linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":16,"linear_value_head_dim":16,
  "linear_conv_kernel_dim":4,"rope_parameters":{"rope_theta":10000.0,"partial_rotary_factor":0.5}})";

// A hybrid with one layer of each kind, a vision tower, an MTP head and a head that is tied.
CheckpointBuilder hybrid() {
  CheckpointBuilder b;
  const std::string p = "model.language_model.";
  b.add(p + "embed_tokens.weight", {96, 64});
  b.add(p + "norm.weight", {64});
  b.add("lm_head.weight", {96, 64});
  b.add("model.visual.blocks.0.attn.qkv.weight", {64, 64});
  b.add(p + "layers.0.input_layernorm.weight", {64});
  b.add(p + "layers.0.linear_attn.conv1d.weight", {128, 1, 4});
  b.add(p + "layers.0.linear_attn.A_log", {4}, DType::f32);
  b.add(p + "layers.0.linear_attn.dt_bias", {4});
  b.add(p + "layers.0.linear_attn.norm.weight", {16}, DType::f32, 1.0f);
  b.add(p + "layers.0.linear_attn.in_proj_qkv.weight", {128, 64});
  b.add(p + "layers.0.mlp.down_proj.weight", {64, 96});
  b.add(p + "layers.1.self_attn.q_proj.weight", {128, 64});
  b.add(p + "layers.1.self_attn.q_norm.weight", {32});
  b.add("mtp.fc.weight", {64, 128});
  b.add("mtp.pre_fc_norm_hidden.weight", {64});
  b.add("mtp.layers.0.self_attn.k_norm.weight", {32});
  return b;
}

QuantizeReport run(const TempFolder& in, const std::string& out, QuantParams params,
                   uint64_t shard = 5'000'000'000) {
  const auto report = quantize_folder({.input = in.path(),
                                       .output = out,
                                       .params = params,
                                       .n_threads = 2,
                                       .max_shard_bytes = shard,
                                       .on_progress = {}});
  EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().message);
  return report.ok() ? *report : QuantizeReport{};
}

std::string error_of(const TempFolder& in, const std::string& out,
                     QuantParams params = {.bits = 4, .group_size = 64}) {
  const auto report = quantize_folder({.input = in.path(),
                                       .output = out,
                                       .params = params,
                                       .n_threads = 1,
                                       .max_shard_bytes = 1 << 30,
                                       .on_progress = {}});
  return report.ok() ? "no error" : report.error().message;
}

std::vector<float> values_of(const HostTensor* t) {
  EXPECT_NE(t, nullptr);
  if (t == nullptr) return {};
  std::vector<float> values(size_t(t->elements()));
  convert_to_f32(t->dtype, t->bytes.data(), values);
  return values;
}

std::vector<float> plus_one(std::vector<float> values) {
  for (float& x : values) x = float_from_bf16(bf16_from_float(x + 1.0f));
  return values;
}

AffineMatrix matrix_of(const Checkpoint& c, const std::string& module, const ModelConfig& config) {
  const QuantParams params = *config.quantization.params_for(module);
  const auto m = make_affine_matrix(*c.find(module + ".weight"), *c.find(module + ".scales"),
                                    *c.find(module + ".biases"), params.bits, params.group_size);
  EXPECT_TRUE(m.ok()) << (m.ok() ? "" : m.error().message);
  return m.ok() ? *m : AffineMatrix{};
}

double relative_error(const AffineMatrix& m, const std::vector<float>& w) {
  double error = 0, total = 0;
  std::vector<float> row(static_cast<size_t>(m.k));
  for (int64_t i = 0; i < m.n; ++i) {
    dequantize_row(m, i, row);
    for (int64_t j = 0; j < m.k; ++j) {
      const double x = w[size_t(i * m.k + j)];
      error += (x - row[size_t(j)]) * (x - row[size_t(j)]);
      total += x * x;
    }
  }
  return std::sqrt(error / total);
}

TEST(QuantizeFolder, AHybridGetsTheNamesShapesAndNormsOfMlx) {
  const TempFolder in, out;
  const CheckpointBuilder source = hybrid();
  source.write(in, kHybridConfig);
  in.write("tokenizer.json", "{}");
  in.write("chat_template.jinja", "{{ x }}");
  in.write("notes.txt", "not of the model");
  const QuantizeReport report = run(in, out / "q", {.bits = 8, .group_size = 64});
  EXPECT_EQ(report.n_quantised, 4u);
  EXPECT_EQ(report.n_vision, 1u);
  EXPECT_EQ(report.n_shards, 1u);
  EXPECT_EQ(report.plain, std::vector<std::string>{"language_model.model.layers.0.mlp.down_proj.weight"});
  EXPECT_EQ(report.copied, (std::vector<std::string>{"tokenizer.json", "chat_template.jinja"}));
  EXPECT_EQ(read_file(out / "q/chat_template.jinja"), "{{ x }}");
  EXPECT_FALSE(std::filesystem::exists(out / "q/notes.txt"));
  EXPECT_EQ(out.names(), std::vector<std::string>{"q"}) << "no temporary folder is left";

  const auto c = Checkpoint::open(out / "q");
  ASSERT_TRUE(c.ok()) << c.error().message;
  const auto config = load_model_config(out / "q");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->quantization.global, (QuantParams{.bits = 8, .group_size = 64}));
  EXPECT_EQ(c->total_bytes(), report.output_bytes);
  const std::string p = "model.language_model.", q = "language_model.model.";
  EXPECT_FALSE(c->has("language_model.lm_head.weight")) << "tied";
  EXPECT_FALSE(c->has("model.visual.blocks.0.attn.qkv.weight"));
  EXPECT_EQ(values_of(c->find(q + "norm.weight")), plus_one(source.values(p + "norm.weight")));
  EXPECT_EQ(values_of(c->find(q + "layers.0.input_layernorm.weight")),
            plus_one(source.values(p + "layers.0.input_layernorm.weight")));
  EXPECT_EQ(values_of(c->find(q + "layers.1.self_attn.q_norm.weight")),
            plus_one(source.values(p + "layers.1.self_attn.q_norm.weight")));
  EXPECT_EQ(values_of(c->find("language_model.mtp.pre_fc_norm_hidden.weight")),
            plus_one(source.values("mtp.pre_fc_norm_hidden.weight")));
  EXPECT_EQ(values_of(c->find("language_model.mtp.layers.0.self_attn.k_norm.weight")),
            plus_one(source.values("mtp.layers.0.self_attn.k_norm.weight")));
  EXPECT_EQ(values_of(c->find(q + "layers.0.linear_attn.norm.weight")),
            source.values(p + "layers.0.linear_attn.norm.weight"));
  EXPECT_EQ(values_of(c->find(q + "layers.0.linear_attn.A_log")),
            source.values(p + "layers.0.linear_attn.A_log"));
  EXPECT_EQ(c->find(q + "layers.0.linear_attn.A_log")->dtype, DType::f32);
  EXPECT_EQ(c->find(q + "layers.0.linear_attn.conv1d.weight")->shape, (std::vector<int64_t>{128, 4, 1}));
  EXPECT_EQ(values_of(c->find(q + "layers.0.linear_attn.conv1d.weight")),
            source.values(p + "layers.0.linear_attn.conv1d.weight"));
  EXPECT_EQ(values_of(c->find(q + "layers.0.mlp.down_proj.weight")),
            source.values(p + "layers.0.mlp.down_proj.weight"));
  for (const auto& [module, name] :
       {std::pair{q + "embed_tokens", p + "embed_tokens.weight"},
        std::pair{q + "layers.1.self_attn.q_proj", p + "layers.1.self_attn.q_proj.weight"},
        std::pair{std::string("language_model.mtp.fc"), std::string("mtp.fc.weight")}}) {
    EXPECT_LT(relative_error(matrix_of(*c, module, *config), source.values(name)), 1e-2) << module;
  }
}

TEST(QuantizeFolder, AConvertedCheckpointIsNotShiftedAgain) {
  const TempFolder in, out;
  CheckpointBuilder b;
  b.add("language_model.model.embed_tokens.weight", {96, 64});
  b.add("language_model.model.norm.weight", {64}, DType::bf16, 1.0f);
  b.add("language_model.model.layers.0.linear_attn.conv1d.weight", {128, 4, 1});
  b.add("mtp.norm.weight", {64});  // taken from the original: zero-centred still
  b.add("mtp.pre_fc_norm_hidden.weight", {64});
  b.write(in, kHybridConfig);
  run(in, out / "q", {.bits = 4, .group_size = 32});
  const auto c = Checkpoint::open(out / "q");
  ASSERT_TRUE(c.ok()) << c.error().message;
  EXPECT_EQ(values_of(c->find("language_model.model.norm.weight")),
            b.values("language_model.model.norm.weight"));
  EXPECT_EQ(c->find("language_model.model.layers.0.linear_attn.conv1d.weight")->shape,
            (std::vector<int64_t>{128, 4, 1}));
  EXPECT_EQ(values_of(c->find("language_model.mtp.norm.weight")), plus_one(b.values("mtp.norm.weight")));
}

TEST(QuantizeFolder, FusedAndSingleExpertsGiveTheSameStacks) {
  CheckpointBuilder fused, single;
  const std::string p = "model.layers.0.mlp.";
  fused.add(p + "experts.gate_up_proj", {3, 64, 64});
  fused.add(p + "experts.down_proj", {3, 64, 32});
  const std::vector<float> gate_up = fused.values(p + "experts.gate_up_proj"),
                           down = fused.values(p + "experts.down_proj");
  const auto part = [](const std::vector<float>& v, size_t first, size_t n) {
    return std::vector<float>(v.begin() + int64_t(first), v.begin() + int64_t(first + n));
  };
  for (const size_t e : {2u, 0u, 1u}) {
    const std::string q = p + "experts." + std::to_string(e) + ".";
    single.add(q + "up_proj.weight", {32, 64}, part(gate_up, e * 4096 + 2048, 2048));
    single.add(q + "gate_proj.weight", {32, 64}, part(gate_up, e * 4096, 2048));
    single.add(q + "down_proj.weight", {64, 32}, part(down, e * 2048, 2048));
  }
  for (CheckpointBuilder* b : {&fused, &single}) {
    b->add(p + "gate.weight", {3, 64}, std::vector<float>(192, 0.25f));
    b->add(p + "shared_expert_gate.weight", {1, 64}, std::vector<float>(64, 0.5f));
  }
  const TempFolder in_fused, in_single, out;
  fused.write(in_fused, kMoeConfig);
  single.write(in_single, kMoeConfig);
  run(in_fused, out / "f", {.bits = 4, .group_size = 32});
  run(in_single, out / "s", {.bits = 4, .group_size = 32});
  EXPECT_EQ(read_file(out / "f/model.safetensors"), read_file(out / "s/model.safetensors"));
  EXPECT_EQ(read_file(out / "f/config.json"), read_file(out / "s/config.json"));

  const auto c = Checkpoint::open(out / "f");
  const auto config = load_model_config(out / "f");
  ASSERT_TRUE(c.ok() && config.ok());
  const std::string q = "language_model.model.layers.0.mlp.";
  EXPECT_EQ(c->find(q + "switch_mlp.gate_proj.weight")->shape, (std::vector<int64_t>{3, 32, 8}));
  EXPECT_EQ(c->find(q + "switch_mlp.up_proj.scales")->shape, (std::vector<int64_t>{3, 32, 2}));
  EXPECT_EQ(c->find(q + "switch_mlp.down_proj.weight")->shape, (std::vector<int64_t>{3, 64, 4}));
  EXPECT_LT(relative_error(matrix_of(*c, q + "switch_mlp.down_proj", *config), down), 0.1);
  std::vector<float> up;
  for (size_t e = 0; e < 3; ++e) {
    const auto rows = part(gate_up, e * 4096 + 2048, 2048);
    up.insert(up.end(), rows.begin(), rows.end());
  }
  EXPECT_LT(relative_error(matrix_of(*c, q + "switch_mlp.up_proj", *config), up), 0.1);
  // Routing decides everything behind it: it keeps 8 bits.
  for (const char* module : {"gate", "shared_expert_gate"}) {
    EXPECT_EQ(config->quantization.params_for(q + module), (QuantParams{.bits = 8, .group_size = 64}));
    EXPECT_EQ(c->find(q + module + ".weight")->shape.back(), 16);
  }
}

TEST(QuantizeFolder, AMissingExpertIsNamed) {
  CheckpointBuilder b;
  for (const int e : {0, 2})
    b.add("model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj.weight", {32, 64});
  const TempFolder in, out;
  b.write(in, kMoeConfig);
  EXPECT_EQ(error_of(in, out / "q"),
            in / "model.safetensors" +
                ": tensor 'model.layers.0.mlp.experts.2.up_proj.weight': expert 1 is missing "
                "before it");
  CheckpointBuilder two;
  for (const int e : {0, 1})
    two.add("model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj.weight", {32, 64});
  two.write(in, kMoeConfig);
  EXPECT_NE(error_of(in, out / "q").find("2 experts, expected num_experts = 3"), std::string::npos);
  CheckpointBuilder uneven;
  uneven.add("model.layers.0.mlp.experts.0.up_proj.weight", {32, 64});
  uneven.add("model.layers.0.mlp.experts.1.up_proj.weight", {31, 64});
  uneven.write(in, kMoeConfig);
  EXPECT_NE(error_of(in, out / "q")
                .find("expected BF16 [32, 64] as in 'model.layers.0.mlp.experts.0.up_proj.weight', "
                      "found BF16 [31, 64]"),
            std::string::npos)
      << error_of(in, out / "q");
}

TEST(QuantizeFolder, OtherFamiliesKeepTheirNames) {
  for (const char* family : {"qwen3", "llama", "qwen3_next"}) {
    const TempFolder out;
    const std::string input = std::string(TANDEM_TEST_DATA) + "/goldens/tiny/" + family;
    const auto report = quantize_folder({.input = input,
                                         .output = out / "q",
                                         .params = {.bits = 8, .group_size = 32},
                                         .n_threads = 1,
                                         .max_shard_bytes = 1 << 30,
                                         .on_progress = {}});
    ASSERT_TRUE(report.ok()) << report.error().message;
    const auto before = Checkpoint::open(input), after = Checkpoint::open(out / "q");
    ASSERT_TRUE(before.ok() && after.ok());
    EXPECT_TRUE(after->has("lm_head.scales"));
    EXPECT_EQ(after->find("lm_head.scales")->dtype, DType::f32) << "scales have the type of the weights";
    EXPECT_EQ(after->has("model.layers.0.mlp.switch_mlp.down_proj.weight"),
              std::string(family) == "qwen3_next");
    const auto norm = values_of(before->find("model.norm.weight"));
    const auto new_norm = values_of(after->find("model.norm.weight"));
    const float shift = std::string(family) == "qwen3_next" ? 1.0f : 0.0f;
    for (size_t i = 0; i < norm.size(); ++i) ASSERT_EQ(new_norm[i], norm[i] + shift) << family;
  }
}

TEST(QuantizeFolder, ShardsAreCutAndListedInTheIndex) {
  const TempFolder in, out;
  hybrid().write(in, kHybridConfig);
  const QuantizeReport whole = run(in, out / "whole", {.bits = 6, .group_size = 64});
  const QuantizeReport cut = run(in, out / "cut", {.bits = 6, .group_size = 64}, 8000);
  EXPECT_EQ(cut.n_shards, 5u);
  EXPECT_TRUE(std::filesystem::exists(out / "cut/model-00005-of-00005.safetensors"));
  const auto a = Checkpoint::open(out / "whole"), b = Checkpoint::open(out / "cut");
  ASSERT_TRUE(a.ok() && b.ok()) << (b.ok() ? "" : b.error().message);
  ASSERT_EQ(a->names(), b->names());
  for (const HostTensor& t : a->tensors()) {
    const HostTensor* other = b->find(t.name);
    EXPECT_TRUE(std::equal(t.bytes.begin(), t.bytes.end(), other->bytes.begin(), other->bytes.end()))
        << t.name;
  }
  EXPECT_EQ(whole.relative_rms_error, cut.relative_rms_error);
}

TEST(QuantizeFolder, ProgressEndsAtTheTotal) {
  const TempFolder in, out;
  hybrid().write(in, kHybridConfig);
  uint64_t last = 0, total = 0;
  const auto report = quantize_folder({.input = in.path(),
                                       .output = out / "q",
                                       .params = {.bits = 5, .group_size = 64},
                                       .n_threads = 1,
                                       .max_shard_bytes = 1 << 30,
                                       .on_progress = [&](const QuantizeProgress& p) {
                                         EXPECT_GE(p.bytes_done, last);
                                         last = p.bytes_done;
                                         total = p.bytes_total;
                                       }});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, report->output_bytes);
}

TEST(QuantizeFolder, NeverOverwrites) {
  const TempFolder in, out;
  hybrid().write(in, kHybridConfig);
  const std::string file = out.write("file", "precious");
  EXPECT_EQ(error_of(in, file), file + ": the output exists and is not a folder; choose another name");
  EXPECT_EQ(error_of(in, out.path()),
            out.path() + ": the output folder is not empty; choose another name or remove it");
  EXPECT_EQ(read_file(file), "precious");
  std::filesystem::create_directory(out / "empty");
  EXPECT_EQ(error_of(in, out / "empty/"), "no error") << "an empty folder may be filled";
}

TEST(QuantizeFolder, WhatCannotBeQuantisedIsNamedAndNothingIsLeft) {
  const TempFolder in, out;
  CheckpointBuilder b = hybrid();
  std::vector<float> bad(128 * 64, 0.5f);
  bad[1000] = std::numeric_limits<float>::quiet_NaN();
  b.add("model.language_model.layers.1.self_attn.k_proj.weight", {128, 64}, bad);
  b.write(in, kHybridConfig);
  EXPECT_EQ(error_of(in, out / "q"),
            in / "model.safetensors" +
                ": tensor 'model.language_model.layers.1.self_attn.k_proj.weight': value 1000 "
                "is NaN or infinite; the checkpoint is damaged");
  bad[1000] = 3e38f;
  bad[1001] = -3e38f;
  CheckpointBuilder large;
  large.add("model.embed_tokens.weight", {128, 64}, bad);
  large.write(in, kHybridConfig);
  EXPECT_NE(error_of(in, out / "q").find("holds values too large to be quantised"), std::string::npos);
  EXPECT_EQ(error_of(in, out / "q", {.bits = 7, .group_size = 64}).find("quantize: 7 bits in groups of 64"),
            0u);
  EXPECT_TRUE(out.names().empty());
}

TEST(QuantizeFolder, AQuantisedCheckpointIsRefused) {
  const TempFolder out;
  const std::string demo = std::string(TANDEM_MODELS) + "/tandem-demo";
  const auto report = quantize_folder({.input = demo,
                                       .output = out / "q",
                                       .params = {.bits = 4, .group_size = 64},
                                       .n_threads = 1,
                                       .max_shard_bytes = 1 << 30,
                                       .on_progress = {}});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(
      report.error().message,
      demo + "/config.json: quantization: the checkpoint is quantised already; start from the original");
}

TEST(QuantizeFolder, AnOutputThatCannotBeMadeIsAnErrorWithItsPath) {
  const TempFolder in, out;
  hybrid().write(in, kHybridConfig);
  const std::string output = out.write("file", "") + "/sub";
  const std::string message = error_of(in, output);
  EXPECT_EQ(message.find(output + ": cannot "), 0u) << message;
}

}  // namespace
}  // namespace tandem
