// A tiny Qwen3 target and DFlash drafters for it, written as checkpoint folders with random weights, and the
// drafter's network in double precision, straight from its definition.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "golden/model_under_test.h"
#include "model/checkpoint_source.h"
#include "model/dflash_network.h"
#include "quant/checkpoint_builder.h"

namespace tandem {

struct TinySizes {
  int vocab = 64, d = 32, heads = 4, kv_heads = 2, d_head = 16, d_ff = 48;
  double theta = 10000, eps = 1e-6;
  int q_dim() const { return heads * d_head; }
  int kv_dim() const { return kv_heads * d_head; }
};

struct TinyDrafter {
  bool second = true;  // DFlash 2
  int layers = 3, block = 6;
  std::vector<int> windows = {0, 0, 0};  // of each layer; 0: full
  std::optional<bool> is_causal = std::nullopt;
  int taps = 2, group = 8, rank = 5, top_k = 16;
  int rotary_dims = 16;
  std::vector<int> features = {2, 0};
  std::string prefix = "";
  bool encoder_names = false, sample_from_anchor = false;
  DType dtype = DType::f32;
  TinySizes sizes = {};

  bool bidirectional(int layer) const { return is_causal ? !*is_causal : windows[size_t(layer)] == 0; }
};

// Random tensors, so that a sublayer adds about as much as the stream holds: every part matters, and errors
// do not grow from layer to layer (docs/numerics.md, whole models).
class TinyTensors {
 public:
  TinyTensors(uint32_t seed, DType dtype) : rng_(seed), dtype_(dtype) {}

  void matrix(const std::string& name, int n, int k, float scale = 0.8f) {
    add(name, {n, k}, 0, scale / std::sqrt(float(k)));
  }
  void gain(const std::string& name, int n) { add(name, {n}, 1, 0.2f); }
  void add(const std::string& name, const std::vector<int64_t>& shape, float mean, float deviation) {
    int64_t n = 1;
    for (const int64_t s : shape) n *= s;
    std::vector<float> values(size_t(n), 0.0f);
    std::normal_distribution<float> normal(mean, deviation);
    for (float& x : values) x = normal(rng_);
    builder_.add(name, shape, values, dtype_);
  }
  // A constant tensor.
  void fill(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
    builder_.add(name, shape, values, dtype_);
  }
  void layer(const std::string& layer, const TinySizes& s) {
    matrix(layer + "self_attn.q_proj.weight", s.q_dim(), s.d);
    matrix(layer + "self_attn.k_proj.weight", s.kv_dim(), s.d);
    matrix(layer + "self_attn.v_proj.weight", s.kv_dim(), s.d);
    matrix(layer + "self_attn.o_proj.weight", s.d, s.q_dim());
    matrix(layer + "mlp.gate_proj.weight", s.d_ff, s.d);
    matrix(layer + "mlp.up_proj.weight", s.d_ff, s.d);
    matrix(layer + "mlp.down_proj.weight", s.d, s.d_ff);
    gain(layer + "self_attn.q_norm.weight", s.d_head);
    gain(layer + "self_attn.k_norm.weight", s.d_head);
    gain(layer + "input_layernorm.weight", s.d);
    gain(layer + "post_attention_layernorm.weight", s.d);
  }
  std::vector<float> values(const std::string& name) const { return builder_.values(name); }
  const CheckpointBuilder& builder() const { return builder_; }

 private:
  std::mt19937 rng_;
  DType dtype_;
  CheckpointBuilder builder_;
};

inline nlohmann::json tiny_config(const TinySizes& s, const char* architecture, int layers) {
  return {{"architectures", {architecture}},
          {"model_type", "qwen3"},
          {"vocab_size", s.vocab},
          {"hidden_size", s.d},
          {"intermediate_size", s.d_ff},
          {"num_hidden_layers", layers},
          {"num_attention_heads", s.heads},
          {"head_dim", s.d_head},
          {"num_key_value_heads", s.kv_heads},
          {"hidden_act", "silu"},
          {"rms_norm_eps", s.eps},
          {"max_position_embeddings", 1024},
          {"attention_bias", false},
          {"tie_word_embeddings", false},
          {"dtype", "float32"},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", s.theta}}}};
}

constexpr int kTinyTargetLayers = 4;

inline TinyTensors write_tiny_target(const TempFolder& folder, const TinySizes& s = {},
                                     DType dtype = DType::f32) {
  TinyTensors t(11, dtype);
  t.add("model.embed_tokens.weight", {s.vocab, s.d}, 0, 1);
  t.matrix("lm_head.weight", s.vocab, s.d, 3);
  t.gain("model.norm.weight", s.d);
  for (int i = 0; i < kTinyTargetLayers; ++i) t.layer("model.layers." + std::to_string(i) + ".", s);
  t.builder().write(folder, tiny_config(s, "Qwen3ForCausalLM", kTinyTargetLayers).dump());
  return t;
}

inline nlohmann::json tiny_drafter_config(const TinyDrafter& d) {
  nlohmann::json json = tiny_config(d.sizes, d.second ? "DFlash2DraftModel" : "DFlashDraftModel", d.layers);
  json["num_target_layers"] = kTinyTargetLayers;
  json["rope_parameters"]["partial_rotary_factor"] = double(d.rotary_dims) / d.sizes.d_head;
  json["sample_from_anchor"] = d.sample_from_anchor;
  if (d.is_causal) json["is_causal"] = *d.is_causal;
  json["layer_types"] = nlohmann::json::array();
  for (const int w : d.windows) {
    json["layer_types"].push_back(w > 0 ? "sliding_attention" : "full_attention");
    if (w > 0) json["sliding_window"] = w;
  }
  nlohmann::json& dflash = json["dflash_config"];
  dflash = {{"mask_token_id", d.sizes.vocab - 1}, {"target_layer_ids", d.features}, {"block_size", d.block}};
  if (d.second) {
    dflash["conv_kernel_size"] = d.taps;
    dflash["conv_group_size"] = d.group;
    dflash["selector_rank"] = d.rank;
    dflash["selector_top_k"] = d.top_k;
  }
  return json;
}

// identity: convolutions that change nothing, as training begins with.
inline TinyTensors tiny_drafter_tensors(const TinyDrafter& d, bool identity = false) {
  TinyTensors t(22, d.dtype);
  const TinySizes& s = d.sizes;
  const std::string p = d.prefix, e = p + (d.encoder_names ? "encoder." : "");
  t.matrix(e + "fc.weight", s.d, int(d.features.size()) * s.d);
  t.gain(d.encoder_names ? e + "output_norm_enc.weight" : p + "hidden_norm.weight", s.d);
  t.gain(p + "norm.weight", s.d);
  for (int i = 0; i < d.layers; ++i) t.layer(p + "layers." + std::to_string(i) + ".", s);
  if (!d.second) return t;
  for (int i = 0; i < d.layers; ++i) {
    for (const char* name : {"attention_conv", "mlp_conv"}) {
      const std::string conv = p + "layers." + std::to_string(i) + "." + name;
      const int dynamic = 2 * d.taps * s.d / d.group;
      if (identity) {
        std::vector<float> base;
        for (int side = 0; side < 2; ++side) {
          for (int tap = 0; tap < d.taps; ++tap) base.insert(base.end(), size_t(s.d), tap == 0 ? 1.0f : 0.0f);
        }
        t.fill(conv + ".base_kernel", {2, d.taps, s.d}, base);
        t.fill(conv + ".kernel_projection.weight", {dynamic, s.d},
               std::vector<float>(size_t(dynamic) * size_t(s.d), 0.0f));
      } else {
        t.add(conv + ".base_kernel", {2, d.taps, s.d}, 0.5f, 0.3f);
        t.matrix(conv + ".kernel_projection.weight", dynamic, s.d, 0.4f);
      }
    }
  }
  t.add(p + "candidate_selector.predecessor_codebook", {s.vocab, d.rank}, 0, 1);
  t.add(p + "candidate_selector.successor_codebook", {s.vocab, d.rank}, 0, 1);
  t.matrix(p + "candidate_selector.hidden_projection.weight", d.rank, s.d, 2);
  return t;
}

inline TinyTensors write_tiny_drafter(const TempFolder& folder, const TinyDrafter& d, bool identity = false) {
  TinyTensors t = tiny_drafter_tensors(d, identity);
  t.builder().write(folder, tiny_drafter_config(d).dump());
  return t;
}

inline Result<std::unique_ptr<DflashNetwork>> load_tiny_drafter(const std::string& folder, Decoder& target,
                                                                const DecoderLimits& limits = {
                                                                    .max_rows = 128}) {
  TD_ASSIGN_OR_RETURN(const DrafterConfig config, load_drafter_config(folder));
  TD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  TD_ASSIGN_OR_RETURN(CheckpointSource source,
                      CheckpointSource::create_drafter(checkpoint, config.network, nullptr));
  return DflashNetwork::load(source, config, target, limits);
}

inline Status check_tiny_drafter(const std::string& folder) {
  TD_ASSIGN_OR_RETURN(const DrafterConfig config, load_drafter_config(folder));
  TD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  TD_ASSIGN_OR_RETURN(CheckpointSource source,
                      CheckpointSource::create_drafter(checkpoint, config.network, nullptr));
  return DflashNetwork::check(source, config);
}

// The network in double. Only the rotary angles are rounded to fp32, as the models are trained.
class DflashOracle {
 public:
  using Rows = std::vector<std::vector<double>>;

  DflashOracle(const TinyDrafter& d, const TinyTensors& drafter, const TinyTensors& target)
      : d_(d), drafter_(drafter), target_(target) {}

  // Normed hidden states of all rows of a block after context rows of features.
  Rows hidden(const std::vector<std::vector<float>>& features, const std::vector<TokenId>& ids) const {
    const std::string e = d_.encoder_names ? "encoder." : "";
    const TinySizes& s = d_.sizes;
    Rows context;
    for (const auto& f : features) context.emplace_back(f.begin(), f.end());
    context = norm(times(context, weight(e + "fc.weight"), s.d),
                   weight(d_.encoder_names ? "encoder.output_norm_enc.weight" : "hidden_norm.weight"));
    const std::vector<float> embedding = target_.values("model.embed_tokens.weight");
    Rows x;
    for (const TokenId id : ids)
      x.emplace_back(embedding.begin() + id * s.d, embedding.begin() + (id + 1) * s.d);
    for (int i = 0; i < d_.layers; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      around(x, layer + "attention_conv", layer + "input_layernorm.weight",
             [&](const Rows& u) { return attend(i, layer + "self_attn.", context, u); });
      around(x, layer + "mlp_conv", layer + "post_attention_layernorm.weight", [&](const Rows& u) {
        Rows gate = times(u, weight(layer + "mlp.gate_proj.weight"), s.d_ff);
        const Rows up = times(u, weight(layer + "mlp.up_proj.weight"), s.d_ff);
        for (size_t r = 0; r < gate.size(); ++r) {
          for (size_t c = 0; c < gate[r].size(); ++c) gate[r][c] *= up[r][c] / (1 + std::exp(-gate[r][c]));
        }
        return times(gate, weight(layer + "mlp.down_proj.weight"), s.d);
      });
    }
    return norm(x, weight("norm.weight"));
  }
  Rows logits(const Rows& hidden) const {
    return times(hidden, target_.values("lm_head.weight"), d_.sizes.vocab);
  }
  // S(a, b) of the selector at a slot with this hidden state and logits.
  double score(const std::vector<double>& hidden, double unary, TokenId a, TokenId b) const {
    const std::vector<float> before = weight("candidate_selector.predecessor_codebook"),
                             after = weight("candidate_selector.successor_codebook");
    const Rows h = times({hidden}, weight("candidate_selector.hidden_projection.weight"), d_.rank);
    double sum = unary;
    for (int r = 0; r < d_.rank; ++r) {
      sum += double(before[size_t(a * d_.rank + r)]) * h[0][size_t(r)] * after[size_t(b * d_.rank + r)];
    }
    return sum;
  }

 private:
  std::vector<float> weight(const std::string& name) const { return drafter_.values(d_.prefix + name); }

  static Rows times(const Rows& x, const std::vector<float>& w, int n) {
    Rows y;
    for (const auto& row : x) {
      std::vector<double>& out = y.emplace_back(size_t(n), 0.0);
      for (size_t i = 0; i < size_t(n); ++i) {
        for (size_t j = 0; j < row.size(); ++j) out[i] += row[j] * w[i * row.size() + j];
      }
    }
    return y;
  }
  Rows norm(Rows x, const std::vector<float>& gain) const {
    for (auto& row : x) {
      for (size_t first = 0; first < row.size(); first += gain.size()) {
        double sum = 0;
        for (size_t i = 0; i < gain.size(); ++i) sum += row[first + i] * row[first + i];
        const double inv = 1 / std::sqrt(sum / double(gain.size()) + float(d_.sizes.eps));
        for (size_t i = 0; i < gain.size(); ++i) row[first + i] *= inv * gain[i];
      }
    }
    return x;
  }
  // conv_s(y)[i, c] = sum over taps of (base[s, t, c] + delta[i, s, t, group of c]) y[i - t, c].
  Rows convolve(const Rows& y, int side, const std::vector<float>& base, const Rows& delta) const {
    const int d = d_.sizes.d, groups = d / d_.group;
    Rows out = y;
    for (int i = 0; i < int(y.size()); ++i) {
      for (int c = 0; c < d; ++c) {
        double sum = 0;
        for (int t = 0; t < d_.taps && t <= i; ++t) {
          const int at = side * d_.taps + t;
          sum += (base[size_t(at * d + c)] + delta[size_t(i)][size_t(at * groups + c / d_.group)]) *
                 y[size_t(i - t)][size_t(c)];
        }
        out[size_t(i)][size_t(c)] = sum;
      }
    }
    return out;
  }
  template <class Sublayer>
  void around(Rows& x, const std::string& conv, const std::string& gain, Sublayer sublayer) const {
    Rows u = norm(x, weight(gain));
    if (d_.second) {
      const std::vector<float> base = weight(conv + ".base_kernel");
      const Rows delta =
          times(u, weight(conv + ".kernel_projection.weight"), 2 * d_.taps * d_.sizes.d / d_.group);
      u = convolve(sublayer(convolve(u, 0, base, delta)), 1, base, delta);
    } else {
      u = sublayer(u);
    }
    for (size_t r = 0; r < x.size(); ++r) {
      for (size_t c = 0; c < x[r].size(); ++c) x[r][c] += u[r][c];
    }
  }
  void rotate(Rows& x, int first_position) const {
    const int half = d_.rotary_dims / 2;
    for (size_t r = 0; r < x.size(); ++r) {
      for (size_t head = 0; head < x[r].size(); head += size_t(d_.sizes.d_head)) {
        for (int i = 0; i < half; ++i) {
          const float f = float(std::pow(d_.sizes.theta, -double(i) / half));
          const double angle = float(first_position + int(r)) * f;
          double &a = x[r][head + size_t(i)], &b = x[r][head + size_t(i + half)];
          const double a0 = a, b0 = b;
          a = a0 * std::cos(angle) - b0 * std::sin(angle);
          b = b0 * std::cos(angle) + a0 * std::sin(angle);
        }
      }
    }
  }
  Rows attend(int layer, const std::string& attn, const Rows& context, const Rows& u) const {
    const TinySizes& s = d_.sizes;
    const int start = int(context.size()), n = int(u.size()), window = d_.windows[size_t(layer)];
    Rows sources = context;  // keys and values of context are not convolved
    sources.insert(sources.end(), u.begin(), u.end());
    Rows q = norm(times(u, weight(attn + "q_proj.weight"), s.q_dim()), weight(attn + "q_norm.weight"));
    Rows k = norm(times(sources, weight(attn + "k_proj.weight"), s.kv_dim()), weight(attn + "k_norm.weight"));
    const Rows v = times(sources, weight(attn + "v_proj.weight"), s.kv_dim());
    rotate(q, start);
    rotate(k, 0);
    Rows out(size_t(n), std::vector<double>(size_t(s.q_dim()), 0.0));
    for (int i = 0; i < n; ++i) {
      for (int h = 0; h < s.heads; ++h) {
        const int of_q = h * s.d_head, of_k = h / (s.heads / s.kv_heads) * s.d_head;
        std::vector<double> p(k.size(), 0.0);
        double total = 0;
        for (int j = 0; j < int(k.size()); ++j) {
          const int ahead = j - (start + i);
          const bool seen =
              (ahead <= 0 || d_.bidirectional(layer)) && (window == 0 || std::abs(ahead) < window);
          if (!seen) continue;
          double dot = 0;
          for (int c = 0; c < s.d_head; ++c)
            dot += q[size_t(i)][size_t(of_q + c)] * k[size_t(j)][size_t(of_k + c)];
          total += p[size_t(j)] = std::exp(dot / std::sqrt(double(s.d_head)));
        }
        for (size_t j = 0; j < k.size(); ++j) {
          for (int c = 0; c < s.d_head; ++c)
            out[size_t(i)][size_t(of_q + c)] += p[j] / total * v[j][size_t(of_k + c)];
        }
      }
    }
    return times(out, weight(attn + "o_proj.weight"), s.d);
  }

  const TinyDrafter d_;
  const TinyTensors& drafter_;
  const TinyTensors& target_;
};

}  // namespace tandem
