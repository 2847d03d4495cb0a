#include "model/dflash_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem {

Result<std::unique_ptr<DflashBlock>> DflashBlock::load(TensorSource& source, const DrafterConfig& config,
                                                       const Decoder& trunk) {
  std::unique_ptr<DflashBlock> block(new DflashBlock(trunk));
  TD_RETURN_IF_ERROR(block->load_weights(source, config));
  TD_RETURN_IF_ERROR(block->allocate(config));
  return block;
}

Status DflashBlock::check(TensorSource& source, const DrafterConfig& config) {
  const int d = config.network.d_model, taps = config.v2->conv_taps;
  for (int i = 0; i < config.network.n_layers; ++i) {
    for (const char* name : {"attention_conv", "mlp_conv"}) {
      const std::string conv = fmt::format("layers.{}.{}", i, name);
      TD_ASSIGN_OR_RETURN(const SourceMatrix m, source.matrix(conv + ".kernel_projection",
                                                              2 * taps * (d / config.v2->conv_group), d));
      source.done_with(m.matrix);
      const auto base = source.vector(conv + ".base_kernel", 2 * taps * d);
      if (!base.ok()) return base.error();
    }
  }
  return {};
}

Status DflashBlock::load_weights(TensorSource& source, const DrafterConfig& config) {
  Backend& backend = trunk_->backend();
  const int n_layers = config.network.n_layers, d = config.network.d_model;
  const int taps = config.v2->conv_taps, groups = d / config.v2->conv_group;
  std::vector<float> kernels;
  for (int i = 0; i < n_layers; ++i) {
    for (const auto& [name, all] : {std::pair("attention_conv", &attention_), {"mlp_conv", &mlp_}}) {
      const std::string conv = fmt::format("layers.{}.{}", i, name);
      TD_ASSIGN_OR_RETURN(const SourceMatrix m,
                          source.matrix(conv + ".kernel_projection", 2 * taps * groups, d));
      const RowRun run{&m.matrix, 0, m.matrix.n};
      TD_ASSIGN_OR_RETURN(std::unique_ptr<Weight> projection,
                          backend.pack({.name = conv, .rows = {&run, 1}}));
      all->push_back({.projection = std::move(projection), .before = {}, .after = {}});
      TD_ASSIGN_OR_RETURN(const std::vector<float> base, source.vector(conv + ".base_kernel", 2 * taps * d));
      kernels.insert(kernels.end(), base.begin(), base.end());
    }
  }
  TD_ASSIGN_OR_RETURN(kernels_, backend.allocate(kernels.size() * sizeof(float), "kernels of the drafter"));
  backend.copy_in(kernels_.data(), std::as_bytes(std::span(kernels)));
  size_t offset = 0;
  const auto next = [&] {
    const View kernel = kernels_.view(DType::f32, taps, d, offset * sizeof(float));
    offset += size_t(taps) * size_t(d);
    return kernel;
  };
  for (int i = 0; i < n_layers; ++i) {
    for (std::vector<Around>* all : {&attention_, &mlp_}) {
      (*all)[size_t(i)].before = next();
      (*all)[size_t(i)].after = next();
    }
  }
  return {};
}

Status DflashBlock::allocate(const DrafterConfig& config) {
  Backend& backend = trunk_->backend();
  const int rows = trunk_->limits().max_rows, d = config.network.d_model;
  const int dynamic = attention_[0].projection->n();
  int wide = 0, inner = 0;
  for (const DecoderLayer& layer : trunk_->layers()) {
    const auto& mixer = std::get<AttentionMixer>(layer.mixer);
    const auto& ffn = std::get<DenseFfn>(layer.ffn);
    wide = std::max({wide, mixer.in_proj->n(), ffn.gate_up->n()});
    inner = std::max({inner, mixer.out_proj->k(), ffn.down->k()});
  }
  const std::pair<MutView*, int> parts[] = {{&norm_all_, d},
                                            {&convolved_all_, d},
                                            {&dynamic_all_, dynamic},
                                            {&wide_all_, wide},
                                            {&inner_all_, inner}};
  constexpr size_t kAlign = 256;
  const auto size_of = [&](int cols) {
    return (size_t(rows) * size_t(cols) * sizeof(float) + kAlign - 1) / kAlign * kAlign;
  };
  size_t bytes = 0;
  for (const auto& [view, cols] : parts) bytes += size_of(cols);
  TD_ASSIGN_OR_RETURN(scratch_, backend.allocate(bytes, "blocks of the drafter"));
  size_t offset = 0;
  for (const auto& [view, cols] : parts) {
    *view = scratch_.view(DType::f32, rows, cols, offset);
    offset += size_of(cols);
  }
  std::vector<const Weight*> weights;
  for (const std::vector<Around>* all : {&attention_, &mlp_}) {
    for (const Around& conv : *all) weights.push_back(conv.projection.get());
  }
  return backend.reserve({.max_rows = rows, .weights = weights});
}

void DflashBlock::run(const Step& step, MutView residual, View angles, const StatePool& pool) {
  Backend& backend = trunk_->backend();
  const int n = step.n_rows;
  const MutView out = norm_all_.row_range(0, n), convolved = convolved_all_.row_range(0, n);
  for (size_t i = 0; i < attention_.size(); ++i) {
    const DecoderLayer& layer = trunk_->layers()[i];
    enter(step, attention_[i], residual, layer.input_gain);
    attend(step, layer, angles, pool);
    leave(step, attention_[i], residual);

    const auto& ffn = std::get<DenseFfn>(layer.ffn);
    const MutView gate_up = wide_all_.row_range(0, n).col_range(0, ffn.gate_up->n());
    const MutView inner = inner_all_.row_range(0, n).col_range(0, ffn.down->k());
    enter(step, mlp_[i], residual, layer.post_gain);
    backend.linear(step.path, convolved, *ffn.gate_up, gate_up);
    backend.silu_mul(gate_up, inner);
    backend.linear(step.path, inner, *ffn.down, out);
    leave(step, mlp_[i], residual);
  }
}

void DflashBlock::enter(const Step& step, const Around& conv, View x, View gain) {
  Backend& backend = trunk_->backend();
  const int n = step.n_rows;
  const MutView norm = norm_all_.row_range(0, n), dynamic = dynamic_all_.row_range(0, n);
  backend.rms_norm(x, gain, trunk_->shape().norm_eps, norm);
  backend.linear(step.path, norm, *conv.projection, dynamic);
  backend.block_conv(step, {.x = norm,
                            .base = conv.before,
                            .dynamic = dynamic.col_range(0, dynamic.cols / 2),
                            .y = convolved_all_.row_range(0, n)});
}

void DflashBlock::leave(const Step& step, const Around& conv, MutView x) {
  const int n = step.n_rows, half = dynamic_all_.cols / 2;
  trunk_->backend().block_conv(step, {.x = norm_all_.row_range(0, n),
                                      .base = conv.after,
                                      .dynamic = dynamic_all_.row_range(0, n).col_range(half, half),
                                      .residual = x,
                                      .y = x});
}

void DflashBlock::attend(const Step& step, const DecoderLayer& layer, View angles, const StatePool& pool) {
  Backend& backend = trunk_->backend();
  const auto& mixer = std::get<AttentionMixer>(layer.mixer);
  const AttentionShape& shape = trunk_->shape().attention;
  const int n = step.n_rows;
  const MutView projection = wide_all_.row_range(0, n).col_range(0, mixer.in_proj->n());
  const MutView attended = inner_all_.row_range(0, n).col_range(0, shape.q_dim());
  const KvLayer cache = pool.kv(layer.state_index);
  backend.linear(step.path, convolved_all_.row_range(0, n), *mixer.in_proj, projection);
  backend.attention_prep(step, {.shape = shape,
                                .projection = projection,
                                .q_norm = mixer.q_norm,
                                .k_norm = mixer.k_norm,
                                .eps = trunk_->shape().norm_eps,
                                .angles = angles,
                                .cache = cache});
  backend.attention(step, {.shape = shape,
                           .q = projection.col_range(0, shape.q_dim()),
                           .scale = float(1.0 / std::sqrt(double(shape.d_head))),
                           .bidirectional = mixer.bidirectional,
                           .window = mixer.window,
                           .cache = cache,
                           .out = attended});
  backend.linear(step.path, attended, *mixer.out_proj, norm_all_.row_range(0, n));
}

}  // namespace tandem
