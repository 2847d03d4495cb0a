#include "model/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tandem {

Result<std::unique_ptr<Decoder>> Decoder::create(Backend& backend, DecoderShape shape, DecoderWeights weights,
                                                 const DecoderLimits& limits) {
  std::unique_ptr<Decoder> decoder(new Decoder(backend, std::move(shape), std::move(weights), limits));
  TD_RETURN_IF_ERROR(decoder->allocate());
  return decoder;
}

StateShape Decoder::state_shape() const {
  StateShape state{.delta = shape_.delta, .attention = shape_.attention};
  for (const DecoderLayer& layer : weights_.layers) {
    if (std::holds_alternative<DeltaMixer>(layer.mixer)) {
      ++state.n_delta_layers;
    } else {
      ++state.n_attention_layers;
    }
  }
  return state;
}

template <class Visit>
void Decoder::each_weight(Visit&& visit) const {
  const auto one = [&](const auto& w) {
    if (w) visit(*w);
  };
  for (const DecoderLayer& layer : weights_.layers) {
    std::visit(
        [&](const auto& mixer) {
          one(mixer.in_proj);
          one(mixer.out_proj);
        },
        layer.mixer);
    if (const auto* dense = std::get_if<DenseFfn>(&layer.ffn)) {
      one(dense->gate_up);
      one(dense->down);
    } else {
      const auto& moe = std::get<MoeFfn>(layer.ffn);
      for (const auto* w :
           {&moe.router, &moe.gate_up, &moe.down, &moe.shared_gate_up, &moe.shared_down, &moe.shared_gate}) {
        one(*w);
      }
    }
  }
  visit(*weights_.head);
}

std::vector<const Weight*> Decoder::matrices() const {
  std::vector<const Weight*> all;
  each_weight([&](const Weight& w) { all.push_back(&w); });
  return all;
}

Status Decoder::allocate() {
  std::vector<const Weight*> all = matrices();
  if (weights_.head != weights_.embedding) all.push_back(weights_.embedding.get());
  TD_RETURN_IF_ERROR(backend_->reserve({.max_rows = limits_.max_rows,
                                        .max_positions = shape_.max_positions,
                                        .attention = shape_.attention,
                                        .delta = shape_.delta,
                                        .weights = all,
                                        .moe_top_k = shape_.moe_top_k}));
  int wide = 0, inner = 0;
  for (const DecoderLayer& layer : weights_.layers) {
    std::visit(
        [&](const auto& mixer) {
          wide = std::max(wide, mixer.in_proj->n());
          inner = std::max(inner, mixer.out_proj->k());
        },
        layer.mixer);
    if (const auto* dense = std::get_if<DenseFfn>(&layer.ffn)) {
      wide = std::max(wide, dense->gate_up->n());
      inner = std::max(inner, dense->down->k());
    }
  }
  // One buffer, cut into cache-line aligned views.
  struct Part {
    MutView* view;
    DType dtype;
    int rows, cols;
  };
  const int rows = limits_.max_rows;
  const Part parts[] = {
      {&x_all_, DType::f32, rows, shape_.d_model},
      {&angles_all_, DType::f32, rows, std::max(shape_.attention.rotary_dims, 1)},
      {&hidden_all_, DType::f32, limits_.max_logit_rows, shape_.d_model},
      {&logits_all_, DType::f32, limits_.max_logit_rows, shape_.n_vocab},
      {&choices_all_, DType::i32, limits_.max_logit_rows, 2 * Backend::kMostBest},
      {&scratch_.norm, DType::f32, rows, shape_.d_model},
      {&scratch_.wide, DType::f32, rows, wide},
      {&scratch_.inner, DType::f32, rows, inner},
      {&scratch_.heads, DType::f32, rows, std::max(shape_.delta.n_v_heads, 1)},
      {&scratch_.heads2, DType::f32, rows, std::max(shape_.delta.n_v_heads, 1)},
      {&scratch_.qkv, DType::f32, rows, std::max(shape_.delta.conv_dim(), 1)},
      {&scratch_.router, DType::f32, rows, std::max(shape_.n_experts, 1)},
      {&scratch_.choice, DType::i32, rows, std::max(shape_.moe_top_k, 1)},
      {&scratch_.choice_weight, DType::f32, rows, std::max(shape_.moe_top_k, 1)},
  };
  constexpr size_t kAlign = 256;
  size_t bytes = 0;
  const auto size_of = [](const Part& p) {
    return (size_t(p.rows) * size_t(p.cols) * sizeof(float) + kAlign - 1) / kAlign * kAlign;
  };
  for (const Part& p : parts) bytes += size_of(p);
  TD_ASSIGN_OR_RETURN(activations_,
                      backend_->allocate(bytes, fmt::format("activations of {} rows", limits_.max_rows)));
  size_t offset = 0;
  if (!backend_->memory_is_host()) {
    logits_copy_.resize(size_t(limits_.max_logit_rows) * size_t(shape_.n_vocab));
    choices_copy_ = std::make_unique<std::byte[]>(size_t(limits_.max_logit_rows) * 2 * Backend::kMostBest *
                                                  sizeof(TokenId));
  }
  for (const Part& p : parts) {
    *p.view = activations_.view(p.dtype, p.rows, p.cols, offset);
    offset += size_of(p);
  }
  return {};
}

void Decoder::check_ids(const Step& step, std::span<const TokenId> ids) const {
  TD_CHECK(step.n_rows == int(ids.size()), "step of %d rows, %zu tokens", step.n_rows, ids.size());
  for (const TokenId id : ids) TD_CHECK(id >= 0 && id < shape_.n_vocab, "token %d of %d", id, shape_.n_vocab);
}

void Decoder::forward(const Step& step, std::span<const TokenId> ids, const StatePool& pool) {
  check_ids(step, ids);
  run(step, ids, pool, Extent::layers);
}

void Decoder::forward_rows(const Step& step, const StatePool& pool) { run(step, {}, pool, Extent::layers); }

void Decoder::cache_rows(const Step& step, const StatePool& pool) {
  TD_CHECK(weights_.layers.size() == 1 && std::holds_alternative<AttentionMixer>(weights_.layers[0].mixer),
           "caches of %zu layers alone, want one", weights_.layers.size());
  run(step, {}, pool, Extent::caches);
}

void Decoder::forward_with_head(const Step& step, std::span<const TokenId> ids, const StatePool& pool,
                                const RowChoice& choice) {
  check_ids(step, ids);
  run(step, ids, pool, Extent::head, choice);
}

void Decoder::run(const Step& step, std::span<const TokenId> ids, const StatePool& pool, Extent extent,
                  const RowChoice& choice) {
  TD_CHECK(step.n_rows > 0 && step.n_rows <= limits_.max_rows, "step of %d rows, at most %d", step.n_rows,
           limits_.max_rows);
  residual_ = x_all_.row_range(0, step.n_rows);
  angles_ = angles_all_.row_range(0, step.n_rows);
  if (!taps_.empty()) features_ = features_all_.row_range(0, step.n_rows);
  set_at_hand(0, extent == Extent::head ? std::min(step.n_rows, limits_.max_logit_rows) : 0, choice);
  if (choice.what != Choose::nothing && choice.n_tokens != n_tokens_in_steps_) {  // recorded as it was
    n_tokens_in_steps_ = choice.n_tokens;
    renew_owners();
  }
  struct Run {
    Decoder* decoder;
    const Step* step;
    std::span<const TokenId> ids;  // empty: the rows are there already
    const StatePool* pool;
    Extent extent;
  } run{this, &step, ids, &pool, extent};
  const auto body = [](void* context) {
    const Run& r = *static_cast<Run*>(context);
    Decoder& d = *r.decoder;
    if (!r.ids.empty()) d.backend_->embed(*d.weights_.embedding, r.ids, d.residual_);
    d.run_layers(*r.step, *r.pool, r.extent);
    if (d.n_at_hand_ > 0) d.run_head(d.residual_.row_range(0, d.n_at_hand_));
  };
  if (observer_) return body(&run);  // it looks at every step, recorded or not
  backend_->run({.owner = step_owners_[size_t(extent) + size_t(choice.what)],
                 .state = pool.id(),
                 .steps = {&step, 1},
                 .ids = ids,
                 .body = body,
                 .context = &run});
}

void Decoder::set_attention_view(int layer, bool bidirectional, int window) {
  auto& mixer = std::get<AttentionMixer>(weights_.layers[size_t(layer)].mixer);
  mixer.bidirectional = bidirectional;
  mixer.window = window;
  renew_owners();
}

Status Decoder::tap_layers(std::span<const int> layers) {
  for (const int layer : layers) {
    if (layer < 0 || layer >= shape_.n_layers) {
      return Error{fmt::format("layer {} of {} cannot be tapped", layer, shape_.n_layers)};
    }
  }
  const int cols = int(layers.size()) * shape_.d_model;
  const size_t bytes = size_t(limits_.max_rows) * size_t(cols) * sizeof(float);
  TD_ASSIGN_OR_RETURN(features_memory_, backend_->allocate(bytes, "hidden states for the drafter"));
  features_all_ = features_memory_.view(DType::f32, limits_.max_rows, cols);
  taps_.assign(layers.begin(), layers.end());
  renew_owners();
  return {};
}

void Decoder::run_layers(const Step& step, const StatePool& pool, Extent extent) {
  if (shape_.attention.rotary_dims > 0) {
    backend_->rope_angles(step, weights_.rope_frequencies, shape_.rope_factor, angles_);
  }
  if (extent == Extent::caches) {
    const DecoderLayer& layer = weights_.layers[0];
    return prepare(step, layer, std::get<AttentionMixer>(layer.mixer), pool);
  }
  if (layer_pass_ != nullptr) return layer_pass_->run(step, residual_, angles_, pool);
  if (observer_) observer_(observer_context_, 0, residual_);
  int index = 0;
  for (const DecoderLayer& layer : weights_.layers) {
    std::visit([&](const auto& mixer) { mix(step, layer, mixer, pool); }, layer.mixer);
    std::visit([&](const auto& ffn) { feed_forward(step, layer, ffn); }, layer.ffn);
    for (size_t i = 0; i < taps_.size(); ++i) {
      if (taps_[i] == index) {
        backend_->copy_rows(residual_, {}, features_.col_range(int(i) * shape_.d_model, shape_.d_model));
      }
    }
    ++index;
    if (observer_) observer_(observer_context_, index, residual_);
  }
}

void Decoder::mix(const Step& step, const DecoderLayer& layer, const DeltaMixer& m, const StatePool& pool) {
  prepare(step, layer, m, pool);
  recur(step, layer, pool);
  project(step, m);
}

void Decoder::prepare(const Step& step, const DecoderLayer& layer, const DeltaMixer& m,
                      const StatePool& pool) {
  backend_->delta_inputs(step,
                         {.x = residual_,
                          .gain = layer.input_gain,
                          .eps = shape_.norm_eps,
                          .projection = m.in_proj.get(),
                          .shape = shape_.delta,
                          .conv_weight = m.conv_weight,
                          .a_log = m.a_log,
                          .dt_bias = m.dt_bias,
                          .state = pool.delta(layer.state_index)},
                         scratch_);
}

void Decoder::recur(const Step& step, const DecoderLayer& layer, const StatePool& pool) {
  const int rows = step.n_rows;
  backend_->delta_step(step, {.shape = shape_.delta,
                              .qkv = scratch_.qkv.row_range(0, rows),
                              .log_decay = scratch_.heads.row_range(0, rows),
                              .beta = scratch_.heads2.row_range(0, rows),
                              .state = pool.delta(layer.state_index),
                              .y = scratch_.inner.row_range(0, rows).col_range(0, shape_.delta.value_dim())});
}

void Decoder::project(const Step& step, const DeltaMixer& m) {
  backend_->delta_output(step,
                         {.shape = shape_.delta,
                          .gain = m.gain,
                          .eps = shape_.norm_eps,
                          .projection = m.out_proj.get(),
                          .x = residual_},
                         scratch_);
}

void Decoder::prepare(const Step& step, const DecoderLayer& layer, const AttentionMixer& m,
                      const StatePool& pool) {
  backend_->attention_inputs(step,
                             {.x = residual_,
                              .gain = layer.input_gain,
                              .eps = shape_.norm_eps,
                              .projection = m.in_proj.get(),
                              .shape = shape_.attention,
                              .gate_cols = shape_.gated_attention ? shape_.attention.q_dim() : 0,
                              .q_norm = m.q_norm,
                              .k_norm = m.k_norm,
                              .angles = angles_,
                              .cache = pool.kv(layer.state_index)},
                             scratch_);
}

void Decoder::mix(const Step& step, const DecoderLayer& layer, const AttentionMixer& m,
                  const StatePool& pool) {
  prepare(step, layer, m, pool);
  backend_->attention_output(
      step, {.attention = attention_of(step, layer, m, pool), .projection = m.out_proj.get(), .x = residual_},
      scratch_);
}

Attention Decoder::attention_of(const Step& step, const DecoderLayer& layer, const AttentionMixer& m,
                                const StatePool& pool) const {
  const AttentionShape& shape = shape_.attention;
  const int gate_cols = shape_.gated_attention ? shape.q_dim() : 0;
  const MutView projection = scratch_.wide.row_range(0, step.n_rows);
  return {.shape = shape,
          .q = projection.col_range(0, shape.q_dim()),
          .gate = gate_cols > 0 ? View(projection.col_range(shape.q_dim(), gate_cols)) : View{},
          .scale = float(1.0 / std::sqrt(double(shape.d_head))),
          .bidirectional = m.bidirectional,
          .window = m.window,
          .cache = pool.kv(layer.state_index),
          .out = scratch_.inner.row_range(0, step.n_rows).col_range(0, shape.q_dim())};
}

void Decoder::project(const Step& step, const AttentionMixer& m) {
  const MutView out = scratch_.inner.row_range(0, step.n_rows).col_range(0, shape_.attention.q_dim());
  backend_->linear_add(step.path, out, *m.out_proj, residual_);
}

void Decoder::feed_forward(const Step& step, const DecoderLayer& layer, const DenseFfn& ffn) {
  backend_->mlp(step,
                {.x = residual_,
                 .gain = layer.post_gain,
                 .eps = shape_.norm_eps,
                 .gate_up = ffn.gate_up.get(),
                 .down = ffn.down.get()},
                scratch_);
}

void Decoder::feed_forward(const Step& step, const DecoderLayer& layer, const MoeFfn& ffn) {
  backend_->moe(step,
                {.x = residual_,
                 .gain = layer.post_gain,
                 .eps = shape_.norm_eps,
                 .weights = {.router = ffn.router.get(),
                             .gate_up = ffn.gate_up.get(),
                             .down = ffn.down.get(),
                             .shared_gate_up = ffn.shared_gate_up.get(),
                             .shared_down = ffn.shared_down.get(),
                             .shared_gate = ffn.shared_gate.get(),
                             .top_k = shape_.moe_top_k,
                             .normalise = shape_.moe_normalise}},
                scratch_);
}

void Decoder::run_block(LayerBlock block, const Step& step, const StatePool& pool) {
  TD_CHECK(step.n_rows == residual_.rows, "a block over %d rows after a step of %d", step.n_rows,
           residual_.rows);
  if (block == LayerBlock::head) return run_head(residual_.row_range(0, n_at_hand_));
  for (const DecoderLayer& layer : weights_.layers) {
    const auto* delta = std::get_if<DeltaMixer>(&layer.mixer);
    const auto* attention = std::get_if<AttentionMixer>(&layer.mixer);
    const auto* mlp = std::get_if<DenseFfn>(&layer.ffn);
    const auto* moe = std::get_if<MoeFfn>(&layer.ffn);
    if (block == LayerBlock::delta_inputs && delta) prepare(step, layer, *delta, pool);
    if (block == LayerBlock::delta_step && delta) recur(step, layer, pool);
    if (block == LayerBlock::delta_output && delta) project(step, *delta);
    if (block == LayerBlock::attention_inputs && attention) prepare(step, layer, *attention, pool);
    if (block == LayerBlock::attention && attention) {
      backend_->attention(step, attention_of(step, layer, *attention, pool));
    }
    if (block == LayerBlock::attention_output && attention) project(step, *attention);
    if (block == LayerBlock::mlp && mlp) feed_forward(step, layer, *mlp);
    if (block == LayerBlock::moe && moe) feed_forward(step, layer, *moe);
  }
}

void Decoder::set_at_hand(int first, int n, const RowChoice& choice) {
  at_hand_ = first;
  n_at_hand_ = n;
  choice_ = choice;
  choices_ = nullptr;
  if (n > 0) hidden_ = hidden_all_.row_range(0, n);
}

void Decoder::head(int first, int n, const RowChoice& choice) {
  TD_CHECK(first >= 0 && n > 0 && first + n <= residual_.rows && n <= limits_.max_logit_rows,
           "head of rows %d + %d of %d, at most %d", first, n, residual_.rows, limits_.max_logit_rows);
  set_at_hand(first, n, choice);
  run_head(residual_.row_range(first, n));
}

void Decoder::head(std::span<const int32_t> rows, const RowChoice& choice) {
  const int n = int(rows.size());
  TD_CHECK(n > 0 && n <= limits_.max_logit_rows, "head of %d rows, at most %d", n, limits_.max_logit_rows);
  set_at_hand(0, n, choice);
  backend_->copy_rows(residual_, rows, hidden_);
  run_head(hidden_);
}

void Decoder::run_head(View x) {
  const MutView logits = logits_all_.row_range(0, x.rows);
  backend_->head({.x = x,
                  .gain = weights_.final_gain,
                  .eps = shape_.norm_eps,
                  .weight = weights_.head.get(),
                  .hidden = hidden_,
                  .logits = logits});
  switch (choice_.what) {
    case Choose::nothing:
      break;
    case Choose::greedy:
      backend_->choose_greedy(logits, choice_.n_tokens, {}, chosen_ids());
      break;
    case Choose::best:
      backend_->choose_best(logits, choice_.n_tokens, chosen_values(), chosen_ids());
      break;
  }
}

int Decoder::place_at_hand(int row) const {
  TD_CHECK(row >= at_hand_ && row < at_hand_ + n_at_hand_, "row %d of a step, at hand are %d + %d", row,
           at_hand_, n_at_hand_);
  return row - at_hand_;
}

std::span<float> Decoder::row_logits(int row) { return logits_on_host(place_at_hand(row), 1); }

int Decoder::n_chosen() const {
  return choice_.what == Choose::best ? std::min(choice_.n_tokens, Backend::kMostBest)
                                      : int(choice_.what == Choose::greedy);
}

MutView Decoder::chosen_ids() const {
  const int k = n_chosen();
  return {choices_all_.data, DType::i32, n_at_hand_, k, k};
}

MutView Decoder::chosen_values() const {
  const int k = n_chosen();
  return {static_cast<int32_t*>(choices_all_.data) + int64_t{n_at_hand_} * k, DType::f32, n_at_hand_, k, k};
}

void Decoder::fetch_choices() {
  if (choices_ != nullptr) return;
  choices_ = static_cast<const TokenId*>(choices_all_.data);
  if (backend_->memory_is_host()) return;
  const int words = n_at_hand_ * n_chosen() * (choice_.what == Choose::best ? 2 : 1);
  backend_->copy_out({choices_copy_.get(), size_t(words) * sizeof(TokenId)},
                     static_cast<const std::byte*>(choices_all_.data));
  choices_ = reinterpret_cast<const TokenId*>(choices_copy_.get());
}

TokenId Decoder::choice(int row) {
  const int place = place_at_hand(row);
  if (choice_.what == Choose::nothing) return -1;
  fetch_choices();
  return choices_[place * n_chosen()];
}

BestLogits Decoder::best(int row) {
  const int place = place_at_hand(row), k = n_chosen();
  if (choice_.what != Choose::best || choice(row) < 0) return {};
  const TokenId* ids = choices_ + place * k;
  const auto* values = reinterpret_cast<const float*>(ids + n_at_hand_ * k);
  return {{values, size_t(k)}, {ids, size_t(k)}};
}

std::span<float> Decoder::logits(int first, int n) {
  head(first, n, {});
  return logits_on_host(0, n);
}

std::span<float> Decoder::logits(std::span<const int32_t> rows) {
  head(rows, {});
  return logits_on_host(0, int(rows.size()));
}

std::span<float> Decoder::logits_on_host(int first, int n) {
  const size_t count = size_t(n) * size_t(shape_.n_vocab), offset = size_t(first) * size_t(shape_.n_vocab);
  float* logits = static_cast<float*>(logits_all_.data) + offset;
  if (backend_->memory_is_host()) return {logits, count};
  const auto copy = std::span(logits_copy_).subspan(offset, count);
  backend_->copy_out(std::as_writable_bytes(copy), reinterpret_cast<const std::byte*>(logits));
  return copy;
}

double Decoder::bytes_read(const Weight& w, int n_rows) const {
  if (w.n_experts() == 1) return double(w.bytes());
  // Expected distinct experts when each row chooses top_k of them evenly.
  return double(w.bytes()) * (1.0 - std::pow(1.0 - double(shape_.moe_top_k) / w.n_experts(), n_rows));
}

size_t Decoder::weight_bytes(int n_rows) const {
  double bytes = 0;
  each_weight([&](const Weight& w) { bytes += bytes_read(w, n_rows); });
  return size_t(bytes);
}

int Decoder::n_layers_with(LayerBlock block) const {
  if (block == LayerBlock::head) return 1;
  int n = 0;
  for (const DecoderLayer& layer : weights_.layers) {
    const bool of_ffn = block == LayerBlock::mlp || block == LayerBlock::moe;
    const bool delta = std::holds_alternative<DeltaMixer>(layer.mixer);
    n += of_ffn ? std::holds_alternative<MoeFfn>(layer.ffn) == (block == LayerBlock::moe)
                : delta == (block <= LayerBlock::delta_output);
  }
  return n;
}

size_t Decoder::block_weight_bytes(LayerBlock block, int n_rows) const {
  double bytes = 0;
  const auto one = [&](const auto& w) {
    if (w) bytes += bytes_read(*w, n_rows);
  };
  if (block == LayerBlock::head) one(weights_.head);
  for (const DecoderLayer& layer : weights_.layers) {
    if (const auto* m = std::get_if<DeltaMixer>(&layer.mixer)) {
      if (block == LayerBlock::delta_inputs) one(m->in_proj);
      if (block == LayerBlock::delta_output) one(m->out_proj);
    } else {
      const auto& attention = std::get<AttentionMixer>(layer.mixer);
      if (block == LayerBlock::attention_inputs) one(attention.in_proj);
      if (block == LayerBlock::attention_output) one(attention.out_proj);
    }
    if (const auto* dense = std::get_if<DenseFfn>(&layer.ffn); dense && block == LayerBlock::mlp) {
      one(dense->gate_up);
      one(dense->down);
    }
    if (const auto* moe = std::get_if<MoeFfn>(&layer.ffn); moe && block == LayerBlock::moe) {
      for (const auto* w : {&moe->router, &moe->gate_up, &moe->down, &moe->shared_gate_up, &moe->shared_down,
                            &moe->shared_gate}) {
        one(*w);
      }
    }
  }
  return size_t(bytes);
}

size_t Decoder::weight_bytes_held() const {
  size_t bytes = weights_.head != weights_.embedding ? weights_.embedding->bytes() : 0;
  each_weight([&](const Weight& w) { bytes += w.bytes(); });
  return bytes;
}

double Decoder::macs_per_row() const {
  double macs = 0;
  each_weight([&](const Weight& w) {
    if (&w == weights_.head.get()) return;
    const int used = w.n_experts() == 1 ? 1 : shape_.moe_top_k;
    macs += double(w.n()) * w.k() * used;
  });
  return macs;
}

}  // namespace tandem
