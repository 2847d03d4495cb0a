#include "model/dflash_network.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace tandem {

Result<std::unique_ptr<DflashNetwork>> DflashNetwork::load(TensorSource& source, const DrafterConfig& config,
                                                           Decoder& target, const DecoderLimits& limits) {
  std::unique_ptr<DflashNetwork> network(new DflashNetwork(target, config));
  const DecoderShape& t = target.shape();
  TD_RETURN_IF_ERROR(check_target(
      config, {.name = t.model, .n_layers = t.n_layers, .d_model = t.d_model, .n_vocab = t.n_vocab}));
  if (config.block_size > kMaxDecodeRows) {
    return Error{fmt::format("{}: block_size: a block of {} rows, a step of this engine has at most {}",
                             config.network.file, config.block_size, kMaxDecodeRows)};
  }
  TD_ASSIGN_OR_RETURN(network->trunk_,
                      load_decoder(source, config.network, target.backend(), limits, {},
                                   {.embedding = target.embedding(), .head = target.head()}));
  for (int i = 0; i < config.network.n_layers; ++i) {
    network->trunk_->set_attention_view(i, config.bidirectional[size_t(i)],
                                        config.network.windows[size_t(i)]);
  }
  TD_RETURN_IF_ERROR(network->load_context(source, limits));
  if (config.v2) {
    TD_ASSIGN_OR_RETURN(network->block_, DflashBlock::load(source, config, *network->trunk_));
    network->trunk_->replace_layers(network->block_.get());
    TD_ASSIGN_OR_RETURN(network->selector_,
                        DflashSelector::load(source, config, target.backend(), limits.max_logit_rows));
  }
  return network;
}

Status DflashNetwork::check(TensorSource& source, const DrafterConfig& config) {
  const ModelConfig& c = config.network;
  const int d = c.d_model;
  TD_RETURN_IF_ERROR(check_tensors(source, c, TensorParts::without_embedding_and_head));
  const auto matrix = [&](const std::string& name, int n, int k) -> Status {
    TD_ASSIGN_OR_RETURN(const SourceMatrix m, source.matrix(name, n, k));
    source.done_with(m.matrix);
    return {};
  };
  TD_RETURN_IF_ERROR(matrix("fc", d, int(config.target_layers.size()) * d));
  if (const auto gain = source.vector("hidden_norm.weight", d); !gain.ok()) return gain.error();
  if (config.v2) {
    TD_RETURN_IF_ERROR(DflashBlock::check(source, config));
    TD_RETURN_IF_ERROR(DflashSelector::check(source, config));
  }
  return {};
}

Status DflashNetwork::load_context(TensorSource& source, const DecoderLimits& limits) {
  Backend& backend = target_->backend();
  const ModelConfig& c = config_.network;
  const int d = c.d_model, kv_dim = c.n_kv_heads * c.d_head;
  std::vector<const Weight*> weights;
  const auto pack = [&](const std::string& name,
                        std::span<const RowRun> runs) -> Result<std::unique_ptr<Weight>> {
    TD_ASSIGN_OR_RETURN(std::unique_ptr<Weight> w, backend.pack({.name = name, .rows = runs}));
    weights.push_back(w.get());
    return w;
  };
  TD_ASSIGN_OR_RETURN(const SourceMatrix fc, source.matrix("fc", d, int(config_.target_layers.size()) * d));
  const RowRun fc_run{&fc.matrix, 0, d};
  TD_ASSIGN_OR_RETURN(fc_, pack("fc", {&fc_run, 1}));
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string attention = fmt::format("layers.{}.self_attn.", i);
    TD_ASSIGN_OR_RETURN(const SourceMatrix k, source.matrix(attention + "k_proj", kv_dim, d));
    TD_ASSIGN_OR_RETURN(const SourceMatrix v, source.matrix(attention + "v_proj", kv_dim, d));
    const RowRun runs[] = {{&k.matrix, 0, kv_dim}, {&v.matrix, 0, kv_dim}};
    TD_ASSIGN_OR_RETURN(std::unique_ptr<Weight> w, pack(attention + "kv", runs));
    kv_.push_back(std::move(w));
  }
  TD_ASSIGN_OR_RETURN(const std::vector<float> gain, source.vector("hidden_norm.weight", d));
  TD_ASSIGN_OR_RETURN(vectors_,
                      backend.allocate(gain.size() * sizeof(float), "norm of the drafter's context"));
  backend.copy_in(vectors_.data(), std::as_bytes(std::span(gain)));
  context_gain_ = vectors_.view(DType::f32, 1, d);
  const int rows = limits.max_rows, rotary = std::max(2, c.rope.rotary_dims);
  const auto bytes = [&](int cols) { return size_t(rows) * size_t(cols) * sizeof(float); };
  TD_ASSIGN_OR_RETURN(
      scratch_, backend.allocate(bytes(d) + bytes(2 * kv_dim) + bytes(rotary), "the drafter's context"));
  context_all_ = scratch_.view(DType::f32, rows, d);
  kv_all_ = scratch_.view(DType::f32, rows, 2 * kv_dim, bytes(d));
  angles_all_ = scratch_.view(DType::f32, rows, rotary, bytes(d) + bytes(2 * kv_dim));
  return backend.reserve({.max_rows = rows, .weights = weights});
}

void DflashNetwork::ingest(const Step& step, View features, const StatePool& pool) {
  const int n = step.n_rows;
  TD_CHECK(n <= context_all_.rows && features.rows == n, "%d rows, %d of features, at most %d", n,
           features.rows, context_all_.rows);
  Backend& backend = target_->backend();
  const MutView context = context_all_.row_range(0, n), kv = kv_all_.row_range(0, n),
                angles = angles_all_.row_range(0, n);
  const DecoderShape& shape = trunk_->shape();
  backend.linear(step.path, features, *fc_, context);
  backend.rms_norm(context, context_gain_, shape.norm_eps, context);
  backend.rope_angles(step, trunk_->rope_frequencies(), shape.rope_factor, angles);
  AttentionShape keys_only = shape.attention;
  keys_only.n_heads = 0;
  for (size_t i = 0; i < kv_.size(); ++i) {
    const auto& mixer = std::get<AttentionMixer>(trunk_->layers()[i].mixer);
    backend.linear(step.path, context, *kv_[i], kv);
    backend.attention_prep(step, {.shape = keys_only,
                                  .projection = kv,
                                  .q_norm = mixer.k_norm,
                                  .k_norm = mixer.k_norm,
                                  .eps = shape.norm_eps,
                                  .angles = angles,
                                  .cache = pool.kv(int(i))});
  }
}

}  // namespace tandem
