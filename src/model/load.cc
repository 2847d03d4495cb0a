#include "model/load.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "model/rope.h"

namespace tandem {
namespace {

AttentionShape attention_shape(const ModelConfig& c) {
  return {.n_heads = c.n_heads,
          .n_kv_heads = c.n_kv_heads,
          .d_head = c.d_head,
          .rotary_dims = c.rope.rotary_dims};
}

DeltaShape delta_shape(const ModelConfig& c) {
  return {.n_k_heads = c.n_linear_k_heads,
          .n_v_heads = c.n_linear_v_heads,
          .d_k = c.d_linear_k,
          .d_v = c.d_linear_v};
}

// Small vectors of all layers, gathered in host memory first so that they share one device buffer. Offsets
// become views once the buffer stands.
class VectorArena {
 public:
  struct Entry {
    View* view;
    size_t offset;
    int rows, cols;
  };

  void add(View* view, std::span<const float> values, int rows, int cols) {
    entries_.push_back({view, values_.size(), rows, cols});
    values_.insert(values_.end(), values.begin(), values.end());
    values_.resize((values_.size() + 15) / 16 * 16);  // every vector starts on a cache line
  }

  Result<DeviceBuffer> upload(Backend& backend) const {
    TD_ASSIGN_OR_RETURN(DeviceBuffer buffer, backend.allocate(values_.size() * sizeof(float),
                                                              "norm gains and other small tensors"));
    backend.copy_in(buffer.data(), std::as_bytes(std::span(values_)));
    for (const Entry& e : entries_)
      *e.view = buffer.view(DType::f32, e.rows, e.cols, e.offset * sizeof(float));
    return buffer;
  }

 private:
  std::vector<float> values_;
  std::vector<Entry> entries_;
};

class Loader {
 public:
  // backend: null to look at every tensor and keep none.
  Loader(TensorSource& source, const ModelConfig& config, Backend* backend, const LoadProgress& progress,
         const SharedWeights& shared)
      : source_(source),
        config_(config),
        backend_(backend),
        progress_(progress),
        shared_(shared),
        total_(weight_bytes_of(config)) {}

  Result<DecoderWeights> load() {
    if (const size_t available = backend_->available_bytes(); total_ > available) {
      return Error{fmt::format(
          "{}: the weights need {:.2f} GB, {:.2f} GB are available on backend {}: use a smaller or "
          "more strongly quantised model",
          source_.name(), double(total_) / 1e9, double(available) / 1e9, backend_->name())};
    }
    DecoderWeights w;
    w.embedding = shared_.embedding;
    w.head = shared_.head;
    if (!w.embedding) TD_RETURN_IF_ERROR(load_embedding_and_head(w));
    TD_RETURN_IF_ERROR(load_layers(w));
    TD_ASSIGN_OR_RETURN(w.vectors, arena_.upload(*backend_));
    return w;
  }

  Status check(TensorParts parts) {
    DecoderWeights w;
    if (parts == TensorParts::all) TD_RETURN_IF_ERROR(load_embedding_and_head(w));
    return load_layers(w);
  }

 private:
  Status load_embedding_and_head(DecoderWeights& w) {
    TD_ASSIGN_OR_RETURN(w.embedding,
                        simple("embed_tokens", "embedding", config_.vocab_size, config_.d_model));
    w.head = w.embedding;
    if (!config_.tied_embeddings) {
      TD_ASSIGN_OR_RETURN(w.head, simple("lm_head", "head", config_.vocab_size, config_.d_model));
    }
    return {};
  }

  Status load_layers(DecoderWeights& w) {
    w.layers.resize(size_t(config_.n_layers));  // before any view into it is remembered
    int n_delta = 0, n_attention = 0;
    for (int i = 0; i < config_.n_layers; ++i) {
      DecoderLayer& layer = w.layers[size_t(i)];
      const bool delta = config_.layer_kinds[size_t(i)] == LayerKind::linear_attention;
      layer.state_index = delta ? n_delta++ : n_attention++;
      TD_RETURN_IF_ERROR(gain(&layer.input_gain, layer_name(i, "input_layernorm.weight"), config_.d_model));
      TD_RETURN_IF_ERROR(
          gain(&layer.post_gain, layer_name(i, "post_attention_layernorm.weight"), config_.d_model));
      TD_RETURN_IF_ERROR(delta ? load_delta(i, layer) : load_attention(i, layer));
      TD_RETURN_IF_ERROR(config_.moe_layers[size_t(i)] ? load_moe(i, layer) : load_dense(i, layer));
    }
    TD_RETURN_IF_ERROR(gain(&w.final_gain, "norm.weight", config_.d_model));
    const RopeTable rope = rope_table(config_.rope);
    if (!rope.frequencies.empty()) {
      arena_.add(&w.rope_frequencies, rope.frequencies, 1, int(rope.frequencies.size()));
    }
    return {};
  }

  static std::string layer_name(int i, const char* what) { return fmt::format("layers.{}.{}", i, what); }

  Status gain(View* view, const std::string& tensor, int n) {
    TD_ASSIGN_OR_RETURN(const std::vector<float> values, source_.shifted_gain(tensor, n));
    arena_.add(view, values, 1, n);
    return {};
  }

  Status plain_vector(View* view, const std::string& tensor, int n) {
    TD_ASSIGN_OR_RETURN(const std::vector<float> values, source_.vector(tensor, n));
    arena_.add(view, values, 1, n);
    return {};
  }

  Result<std::unique_ptr<Weight>> pack(const std::string& name, std::span<const SourceMatrix> matrices,
                                       std::span<const RowRun> rows, int n_slices = 1,
                                       std::span<const float> bias = {}, int n_experts = 1) {
    if (backend_ == nullptr) return std::unique_ptr<Weight>();
    if (progress_) progress_(done_, total_, name);
    TD_ASSIGN_OR_RETURN(
        std::unique_ptr<Weight> weight,
        backend_->pack(
            {.name = name, .rows = rows, .n_experts = n_experts, .n_slices = n_slices, .bias = bias}));
    for (const SourceMatrix& m : matrices) {
      done_ += uint64_t(m.matrix.n) * uint64_t(m.matrix.row_bytes());
      source_.done_with(m.matrix);
    }
    if (progress_) progress_(std::min(done_, total_), total_, name);
    return weight;
  }

  // k-slices may not cut a quantisation group, nor a head where k runs over heads.
  static int slices(const HostMatrix& m, int unit) {
    return k_slices(m.k, m.affine() ? std::lcm(std::lcm(unit, m.group), kSliceColumns) : unit);
  }

  // Dense rows have no groups; slices of whole vector registers keep the kernels simple.
  static constexpr int kDenseUnit = 32;

  // One module, one matrix. `slice_unit` > 0: tensor parallelism may cut its k at multiples of that.
  Result<std::unique_ptr<Weight>> simple(const std::string& module, const std::string& name, int n, int k,
                                         int slice_unit = 0, std::span<const float> bias = {}) {
    TD_ASSIGN_OR_RETURN(const SourceMatrix m, source_.matrix(module, n, k));
    const RowRun run{&m.matrix, 0, n};
    return pack(name, std::span(&m, 1), std::span(&run, 1), slice_unit > 0 ? slices(m.matrix, slice_unit) : 1,
                bias);
  }

  // Gate rows, then up rows, of a dense FFN or a shared expert.
  Result<std::unique_ptr<Weight>> gate_up(const std::string& module, const std::string& name, int width) {
    std::vector<SourceMatrix> m(2);
    TD_ASSIGN_OR_RETURN(m[0], source_.matrix(module + ".gate_proj", width, config_.d_model));
    TD_ASSIGN_OR_RETURN(m[1], source_.matrix(module + ".up_proj", width, config_.d_model));
    const RowRun runs[] = {{&m[0].matrix, 0, width}, {&m[1].matrix, 0, width}};
    return pack(name, m, runs);
  }

  Status load_dense(int i, DecoderLayer& layer) {
    const std::string mlp = layer_name(i, "mlp");
    DenseFfn ffn;
    TD_ASSIGN_OR_RETURN(ffn.gate_up, gate_up(mlp, layer_name(i, "gate_up"), config_.d_ff));
    TD_ASSIGN_OR_RETURN(ffn.down, simple(mlp + ".down_proj", layer_name(i, "down"), config_.d_model,
                                         config_.d_ff, kDenseUnit));
    layer.ffn = std::move(ffn);
    return {};
  }

  Status load_moe(int i, DecoderLayer& layer) {
    const std::string mlp = layer_name(i, "mlp");
    const int n_experts = config_.n_experts, d_expert = config_.d_expert, d_model = config_.d_model;
    MoeFfn ffn;
    TD_ASSIGN_OR_RETURN(ffn.router, simple(mlp + ".gate", layer_name(i, "router"), n_experts, d_model));
    {
      TD_ASSIGN_OR_RETURN(std::vector<SourceMatrix> gate,
                          source_.experts(i, ExpertPart::gate, n_experts, d_expert, d_model));
      TD_ASSIGN_OR_RETURN(std::vector<SourceMatrix> up,
                          source_.experts(i, ExpertPart::up, n_experts, d_expert, d_model));
      std::vector<RowRun> runs;
      for (size_t e = 0; e < gate.size(); ++e) {
        runs.push_back({&gate[e].matrix, 0, d_expert});
        runs.push_back({&up[e].matrix, 0, d_expert});
      }
      std::vector<SourceMatrix> both = gate;  // shares the storage that the runs point into
      both.insert(both.end(), up.begin(), up.end());
      TD_ASSIGN_OR_RETURN(ffn.gate_up, pack(layer_name(i, "experts.gate_up"), both, runs, 1, {}, n_experts));
    }
    {
      TD_ASSIGN_OR_RETURN(const std::vector<SourceMatrix> down,
                          source_.experts(i, ExpertPart::down, n_experts, d_model, d_expert));
      std::vector<RowRun> runs;
      for (const SourceMatrix& m : down) runs.push_back({&m.matrix, 0, d_model});
      TD_ASSIGN_OR_RETURN(ffn.down, pack(layer_name(i, "experts.down"), down, runs,
                                         slices(down[0].matrix, kDenseUnit), {}, n_experts));
    }
    if (config_.d_shared_expert > 0) {
      const std::string shared = mlp + ".shared_expert";
      TD_ASSIGN_OR_RETURN(ffn.shared_gate_up,
                          gate_up(shared, layer_name(i, "shared.gate_up"), config_.d_shared_expert));
      TD_ASSIGN_OR_RETURN(ffn.shared_down, simple(shared + ".down_proj", layer_name(i, "shared.down"),
                                                  d_model, config_.d_shared_expert, kDenseUnit));
      TD_ASSIGN_OR_RETURN(ffn.shared_gate,
                          simple(mlp + ".shared_expert_gate", layer_name(i, "shared.gate"), 1, d_model));
    }
    layer.ffn = std::move(ffn);
    return {};
  }

  Status load_delta(int i, DecoderLayer& layer) {
    const std::string attn = layer_name(i, "linear_attn.");
    const DeltaShape d = delta_shape(config_);
    const int d_model = config_.d_model;
    DeltaMixer m;
    std::vector<SourceMatrix> sources;
    std::vector<RowRun> runs;
    if (config_.architecture == Architecture::qwen3_next) {
      TD_RETURN_IF_ERROR(next_projection(attn, d, sources, runs));
    } else {
      const std::pair<const char*, int> parts[] = {{"in_proj_qkv", d.conv_dim()},
                                                   {"in_proj_z", d.value_dim()},
                                                   {"in_proj_b", d.n_v_heads},
                                                   {"in_proj_a", d.n_v_heads}};
      sources.reserve(std::size(parts));
      for (const auto& [module, n] : parts) {
        TD_ASSIGN_OR_RETURN(SourceMatrix source, source_.matrix(attn + module, n, d_model));
        sources.push_back(std::move(source));
        runs.push_back({&sources.back().matrix, 0, n});
      }
    }
    TD_ASSIGN_OR_RETURN(m.in_proj, pack(layer_name(i, "delta.in"), sources, runs));
    TD_ASSIGN_OR_RETURN(m.out_proj,
                        simple(attn + "out_proj", layer_name(i, "delta.out"), d_model, d.value_dim(), d.d_v));
    layer.mixer = std::move(m);
    DeltaMixer& mixer = std::get<DeltaMixer>(layer.mixer);
    TD_ASSIGN_OR_RETURN(const std::vector<float> taps,
                        source_.conv_taps(attn + "conv1d.weight", d.conv_dim(), kConvTaps));
    arena_.add(&mixer.conv_weight, taps, d.conv_dim(), kConvTaps);
    TD_RETURN_IF_ERROR(plain_vector(&mixer.a_log, attn + "A_log", d.n_v_heads));
    TD_RETURN_IF_ERROR(plain_vector(&mixer.dt_bias, attn + "dt_bias", d.n_v_heads));
    return plain_vector(&mixer.gain, attn + "norm.weight", d.d_v);
  }

  // Qwen3-Next groups rows by key head: [q | k | r v heads | r z heads] and [r b | r a]. Brought into the
  // order of Qwen3.5.
  Status next_projection(const std::string& attn, const DeltaShape& d, std::vector<SourceMatrix>& sources,
                         std::vector<RowRun>& runs) {
    const int r = d.n_v_heads / d.n_k_heads;
    const int group = 2 * d.d_k + 2 * r * d.d_v;
    sources.reserve(2);
    TD_ASSIGN_OR_RETURN(SourceMatrix qkvz,
                        source_.matrix(attn + "in_proj_qkvz", group * d.n_k_heads, config_.d_model));
    sources.push_back(std::move(qkvz));
    TD_ASSIGN_OR_RETURN(SourceMatrix ba,
                        source_.matrix(attn + "in_proj_ba", 2 * d.n_v_heads, config_.d_model));
    sources.push_back(std::move(ba));
    const auto gather = [&](const HostMatrix& matrix, int stride, int offset, int n) {
      for (int g = 0; g < d.n_k_heads; ++g) runs.push_back({&matrix, g * stride + offset, n});
    };
    gather(sources[0].matrix, group, 0, d.d_k);
    gather(sources[0].matrix, group, d.d_k, d.d_k);
    gather(sources[0].matrix, group, 2 * d.d_k, r * d.d_v);
    gather(sources[0].matrix, group, 2 * d.d_k + r * d.d_v, r * d.d_v);
    gather(sources[1].matrix, 2 * r, 0, r);
    gather(sources[1].matrix, 2 * r, r, r);
    return {};
  }

  Status load_attention(int i, DecoderLayer& layer) {
    const std::string attn = layer_name(i, "self_attn.");
    const AttentionShape a = attention_shape(config_);
    const bool gated = config_.output_gate;
    AttentionMixer m;
    std::vector<SourceMatrix> sources(3);
    TD_ASSIGN_OR_RETURN(sources[0],
                        source_.matrix(attn + "q_proj", (gated ? 2 : 1) * a.q_dim(), config_.d_model));
    TD_ASSIGN_OR_RETURN(sources[1], source_.matrix(attn + "k_proj", a.kv_dim(), config_.d_model));
    TD_ASSIGN_OR_RETURN(sources[2], source_.matrix(attn + "v_proj", a.kv_dim(), config_.d_model));
    std::vector<RowRun> runs;
    if (gated) {  // rows of a head: d_head of q, then d_head of the gate -> all q, then all gates
      for (int part = 0; part < 2; ++part) {
        for (int h = 0; h < a.n_heads; ++h)
          runs.push_back({&sources[0].matrix, (2 * h + part) * a.d_head, a.d_head});
      }
    } else {
      runs.push_back({&sources[0].matrix, 0, a.q_dim()});
    }
    runs.push_back({&sources[1].matrix, 0, a.kv_dim()});
    runs.push_back({&sources[2].matrix, 0, a.kv_dim()});
    std::vector<float> in_bias, out_bias;
    if (config_.attention_bias) {
      for (const auto& [module, n] :
           {std::pair{"q_proj", a.q_dim()}, {"k_proj", a.kv_dim()}, {"v_proj", a.kv_dim()}}) {
        TD_ASSIGN_OR_RETURN(const std::vector<float> part, source_.vector(attn + module + ".bias", n));
        in_bias.insert(in_bias.end(), part.begin(), part.end());
      }
      if (source_.has_vector(attn + "o_proj.bias")) {  // Qwen2-style files have none
        TD_ASSIGN_OR_RETURN(out_bias, source_.vector(attn + "o_proj.bias", config_.d_model));
      }
    }
    TD_ASSIGN_OR_RETURN(m.in_proj, pack(layer_name(i, "attention.in"), sources, runs, 1, in_bias));
    TD_ASSIGN_OR_RETURN(m.out_proj, simple(attn + "o_proj", layer_name(i, "attention.out"), config_.d_model,
                                           a.q_dim(), a.d_head, out_bias));
    layer.mixer = std::move(m);
    AttentionMixer& mixer = std::get<AttentionMixer>(layer.mixer);
    if (config_.qk_norm) {
      TD_RETURN_IF_ERROR(gain(&mixer.q_norm, attn + "q_norm.weight", a.d_head));
      TD_RETURN_IF_ERROR(gain(&mixer.k_norm, attn + "k_norm.weight", a.d_head));
    }
    return {};
  }

  TensorSource& source_;
  const ModelConfig& config_;
  Backend* backend_;
  const LoadProgress progress_;
  const SharedWeights shared_;
  VectorArena arena_;
  uint64_t done_ = 0, total_ = 0;
};

Status check_kernel(const ModelConfig& config) {
  if (!config.hybrid() || config.conv_kernel == kConvTaps) return {};
  return Error{fmt::format("{}: linear_conv_kernel_dim is {}, this engine runs {}", config.file,
                           config.conv_kernel, kConvTaps)};
}

}  // namespace

StateShape state_shape_of(const ModelConfig& c) {
  const int n_attention = c.n_full_attention_layers();
  return {.n_delta_layers = c.n_layers - n_attention,
          .delta = delta_shape(c),
          .n_attention_layers = n_attention,
          .attention = attention_shape(c)};
}

uint64_t weight_bytes_of(const ModelConfig& c) {
  const auto matrix = [&](uint64_t n, uint64_t k) -> uint64_t {
    if (!c.quantised()) return n * k * dtype_bytes(c.dtype);
    const QuantParams& q = *c.quantization.global;
    return n * k * uint64_t(q.bits) / 8 + n * k / uint64_t(q.group_size) * 4;
  };
  const auto h = uint64_t(c.d_model);
  uint64_t total = matrix(uint64_t(c.vocab_size), h) * (c.tied_embeddings ? 1 : 2);
  const AttentionShape a = attention_shape(c);
  const DeltaShape d = delta_shape(c);
  for (size_t i = 0; i < size_t(c.n_layers); ++i) {
    if (c.layer_kinds[i] == LayerKind::linear_attention) {
      total += matrix(uint64_t(d.projection_dim()), h) + matrix(h, uint64_t(d.value_dim()));
    } else {
      total += matrix(uint64_t(a.q_dim() * (c.output_gate ? 2 : 1) + 2 * a.kv_dim()), h) +
               matrix(h, uint64_t(a.q_dim()));
    }
    if (c.moe_layers[i]) {
      total += matrix(uint64_t(c.n_experts), h) +
               matrix(3 * uint64_t(c.n_experts) * uint64_t(c.d_expert), h) +
               matrix(3 * uint64_t(c.d_shared_expert), h);
    } else {
      total += matrix(3 * uint64_t(c.d_ff), h);
    }
  }
  return total;
}

Status check_tensors(TensorSource& source, const ModelConfig& config, TensorParts parts) {
  TD_RETURN_IF_ERROR(check_kernel(config));
  return Loader(source, config, nullptr, {}, {}).check(parts);
}

Result<std::unique_ptr<Decoder>> load_decoder(TensorSource& source, const ModelConfig& config,
                                              Backend& backend, const DecoderLimits& limits,
                                              const LoadProgress& progress, const SharedWeights& shared) {
  TD_RETURN_IF_ERROR(check_kernel(config));
  Loader loader(source, config, &backend, progress, shared);
  TD_ASSIGN_OR_RETURN(DecoderWeights weights, loader.load());
  DecoderShape shape{.model = source.name(),
                     .n_vocab = config.vocab_size,
                     .d_model = config.d_model,
                     .n_layers = config.n_layers,
                     .max_positions = config.context,
                     .norm_eps = float(config.rms_norm_eps),
                     .attention = attention_shape(config),
                     .gated_attention = config.output_gate,
                     .delta = delta_shape(config),
                     .n_experts = config.n_experts,
                     .moe_top_k = config.top_k,
                     .moe_normalise = config.norm_top_k,
                     .rope_factor = rope_table(config.rope).factor};
  return Decoder::create(backend, std::move(shape), std::move(weights), limits);
}

}  // namespace tandem
