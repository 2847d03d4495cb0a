// The tiny models with a random multi-token-prediction head added, as checkpoint folders.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <random>

#include "format/checkpoint.h"
#include "format/config.h"
#include "golden/model_under_test.h"
#include "quant/checkpoint_builder.h"

namespace tandem {

struct MtpCheckpoint {
  std::string family;          // of tests/data/goldens/tiny
  std::string fields = "";     // put in front of those of config.json, with a comma behind each
  bool fused_experts = false;  // gate and up of all experts in one tensor, else a tensor each
  bool flat_norms = false;     // the norms that MtpOptions chooses the sides of multiply by one
  std::string left_out = "";   // a tensor of the head that is missing
  int fc_rows = 0;             // > 0: of mtp.fc, in place of d_model
};

// Writes `wanted` into `folder`. Calls with the same family make the same values.
inline void write_mtp_checkpoint(const MtpCheckpoint& wanted, const TempFolder& folder) {
  const std::string base = std::string(TANDEM_TEST_DATA) + "/goldens/tiny/" + wanted.family;
  const ModelConfig c = value_or_throw(load_model_config(base));
  const Checkpoint checkpoint = value_or_throw(Checkpoint::open(base));
  CheckpointBuilder builder;
  std::mt19937 rng{11};
  const auto draw = [&rng](int64_t n, float spread) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(n));
    for (float& x : values) x = spread * normal(rng);
    return values;
  };
  for (const HostTensor& t : checkpoint.tensors()) {
    std::vector<float> values(size_t(t.elements()));
    convert_to_f32(t.dtype, t.bytes.data(), values);
    if (t.name == "model.norm.weight") values = draw(t.elements(), wanted.flat_norms ? 0 : 0.5f);
    builder.add(t.name, t.shape, values, t.dtype);
  }
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    if (name == wanted.left_out) return;
    if (name == "mtp.fc.weight" && wanted.fc_rows > 0) {
      shape[0] = wanted.fc_rows;
      values.resize(size_t(shape[0] * shape[1]));
    }
    builder.add(name, shape, values, DType::f32);
  };
  const auto matrix = [&](const std::string& name, int64_t n, int64_t k) {
    add(name, {n, k}, draw(n * k, 2 / std::sqrt(float(k))));
  };
  const auto norm = [&](const std::string& name, int64_t n, float spread) {
    add(name, {n}, draw(n, spread));
  };
  const int64_t d = c.d_model, q = int64_t{c.n_heads} * c.d_head, kv = int64_t{c.n_kv_heads} * c.d_head;
  matrix("mtp.fc.weight", d, 2 * d);
  norm("mtp.pre_fc_norm_embedding.weight", d, 0.3f);
  norm("mtp.pre_fc_norm_hidden.weight", d, 0.3f);
  norm("mtp.norm.weight", d, wanted.flat_norms ? 0 : 0.5f);
  const std::string layer = "mtp.layers.0.";
  norm(layer + "input_layernorm.weight", d, 0.3f);
  norm(layer + "post_attention_layernorm.weight", d, 0.3f);
  matrix(layer + "self_attn.q_proj.weight", c.output_gate ? 2 * q : q, d);
  matrix(layer + "self_attn.k_proj.weight", kv, d);
  matrix(layer + "self_attn.v_proj.weight", kv, d);
  matrix(layer + "self_attn.o_proj.weight", d, q);
  norm(layer + "self_attn.q_norm.weight", c.d_head, 0.3f);
  norm(layer + "self_attn.k_norm.weight", c.d_head, 0.3f);
  const std::string mlp = layer + "mlp.";
  const auto ffn = [&](const std::string& module, int64_t width) {
    matrix(module + "gate_proj.weight", width, d);
    matrix(module + "up_proj.weight", width, d);
    matrix(module + "down_proj.weight", d, width);
  };
  if (!c.moe()) {
    ffn(mlp, c.d_ff);
  } else {
    matrix(mlp + "gate.weight", c.n_experts, d);
    ffn(mlp + "shared_expert.", c.d_shared_expert);
    matrix(mlp + "shared_expert_gate.weight", 1, d);
    const int64_t e = c.n_experts, width = c.d_expert;
    std::vector<float> gate_up, down;
    for (int64_t i = 0; i < e; ++i) {
      const std::string expert = fmt::format("{}experts.{}.", mlp, i);
      const std::vector<float> g = draw(width * d, 0.2f), u = draw(width * d, 0.2f),
                               o = draw(d * width, 0.2f);
      gate_up.insert(gate_up.end(), g.begin(), g.end());
      gate_up.insert(gate_up.end(), u.begin(), u.end());
      down.insert(down.end(), o.begin(), o.end());
      if (wanted.fused_experts) continue;
      add(expert + "gate_proj.weight", {width, d}, g);
      add(expert + "up_proj.weight", {width, d}, u);
      add(expert + "down_proj.weight", {d, width}, o);
    }
    if (wanted.fused_experts) {
      add(mlp + "experts.gate_up_proj", {e, 2 * width, d}, gate_up);
      add(mlp + "experts.down_proj", {e, d, width}, down);
    }
  }
  std::string config = read_file(base + "/config.json");
  config.insert(config.find('{') + 1, wanted.fields);
  builder.write(folder, config);
}

}  // namespace tandem
