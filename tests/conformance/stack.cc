#include "conformance/stack.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/count_allocations.h"

namespace tandem::conformance {
namespace {

constexpr float kEps = 1e-6f;

int slices_of(int k, int head, const WeightFormat& format) {
  return k_slices(k, format.affine() ? std::lcm(head, std::lcm(format.group, kSliceColumns)) : head);
}

}  // namespace

std::string StackShape::text() const {
  const auto n = [](int x) { return std::to_string(x); };
  return "hidden " + n(hidden) + ", d_ff " + n(d_ff) + ", vocab " + n(vocab) + ", " + format.text() +
         ", heads " + n(attention.n_heads) + "/" + n(attention.n_kv_heads) + " x " + n(attention.d_head) +
         " rotary " + n(attention.rotary_dims) + (gated ? ", gated" : "") +
         (head_norms ? ", head norms" : "") + ", delta " + n(delta.n_k_heads) + "/" + n(delta.n_v_heads) +
         " x " + n(delta.d_k) + "/" + n(delta.d_v) + ", experts " + n(top_k) + " of " + n(n_experts) + " x " +
         n(d_expert) + ", shared " + n(d_shared) + ", tape " + n(tape_rows);
}

StackShape random_shape(Rng& rng) {
  StackShape s;
  if (rng.uniform(0, 2) == 0) {
    s.format = {.dtype = rng.pick({DType::f32, DType::bf16, DType::f16})};
  } else {
    s.format = {.dtype = rng.pick({DType::bf16, DType::bf16, DType::f16, DType::f32}),
                .bits = rng.pick({2, 3, 4, 4, 5, 6, 8, 8, 8}),
                .group = rng.pick({32, 64, 64, 128})};
  }
  // Inputs of affine matrices are whole groups; inputs of dense ones are as odd as they come.
  const bool affine = s.format.affine();
  const int unit = affine ? s.format.group : 1;
  const auto width = [&](int most) {
    return unit * rng.uniform((16 + unit - 1) / unit, std::max(1, most / unit));
  };
  s.hidden = width(200);
  s.d_ff = width(300);
  s.vocab = rng.uniform(3, 150);
  s.attention.d_head = affine ? 64 : rng.pick({16, 24, 32, 64, 128});
  s.attention.n_kv_heads = rng.pick({1, 2});
  s.attention.n_heads = s.attention.n_kv_heads * rng.pick({2, 4});
  s.attention.rotary_dims = s.attention.d_head / rng.pick({1, 2, 4});
  s.attention.rotary_dims -= s.attention.rotary_dims % 2;
  s.gated = rng.uniform(0, 2) > 0;
  s.head_norms = rng.uniform(0, 2) > 0;
  s.delta.d_k = rng.pick({16, 32, 64, 128});
  s.delta.d_v = affine ? 64 : rng.pick({16, 32, 64, 128});
  s.delta.n_k_heads = rng.pick({1, 2});
  s.delta.n_v_heads = s.delta.n_k_heads * (affine ? rng.pick({2, 4}) : rng.pick({1, 2, 3}));
  s.n_experts = rng.uniform(2, 9);
  s.top_k = rng.uniform(1, std::min(4, s.n_experts));
  s.d_expert = width(150);
  // The shared expert has as many slices as the routed ones: the same width, or one that allows as many.
  s.d_shared = rng.uniform(0, 2) == 0 ? 0 : s.d_expert;
  s.normalise = rng.uniform(0, 2) > 0;
  s.tape_rows = rng.pick({kMaxDecodeRows, kMaxDecodeRows, 13});
  return s;
}

Stack::Stack(Backend& backend, const StackShape& shape, uint64_t seed)
    : backend_(&backend),
      shape_(shape),
      rng_(seed),
      s_(backend, size_t(kSlots) * shape.delta.n_v_heads * shape.delta.d_v * shape.delta.d_k * 4),
      conv_(backend, size_t(kSlots) * (kConvTaps - 1) * shape.delta.conv_dim() * 4),
      tape_g_(backend, size_t(kSlots) * 2 * shape.tape_rows * shape.delta.n_v_heads * 4),
      tape_k_(backend, size_t(kSlots) * 2 * shape.tape_rows * shape.delta.key_dim() * 4),
      tape_delta_(backend, size_t(kSlots) * 2 * shape.tape_rows * shape.delta.value_dim() * 4),
      tape_conv_(backend, size_t(kSlots) * 2 * shape.tape_rows * shape.delta.conv_dim() * 4),
      pages_(backend, size_t(kPages) * backend.kv_page_bytes(shape.attention)) {
  const DeltaShape& delta = shape.delta;
  const AttentionShape& attention = shape.attention;
  const int gate_cols = shape.gated ? attention.q_dim() : 0;
  const int attention_cols = attention.q_dim() + gate_cols + 2 * attention.kv_dim();
  delta_in_ = weight(delta.projection_dim(), shape.hidden);
  delta_out_ = weight(shape.hidden, delta.value_dim(), slices_of(delta.value_dim(), delta.d_v, shape.format));
  attention_in_ = weight(attention_cols, shape.hidden);
  attention_out_ =
      weight(shape.hidden, attention.q_dim(), slices_of(attention.q_dim(), attention.d_head, shape.format));
  gate_up_ = weight(2 * shape.d_ff, shape.hidden);
  down_ = weight(shape.hidden, shape.d_ff, slices_of(shape.d_ff, 1, shape.format));
  head_ = weight(shape.vocab, shape.hidden);
  const int moe_slices = slices_of(shape.d_expert, 1, shape.format);
  moe_ = {.router = weight(shape.n_experts, shape.hidden),
          .gate_up = weight(2 * shape.d_expert, shape.hidden, 1, shape.n_experts),
          .down = weight(shape.hidden, shape.d_expert, moe_slices, shape.n_experts),
          .top_k = shape.top_k,
          .normalise = shape.normalise};
  if (shape.d_shared > 0) {
    moe_.shared_gate_up = weight(2 * shape.d_shared, shape.hidden);
    moe_.shared_down = weight(shape.hidden, shape.d_shared, moe_slices);
    moe_.shared_gate = weight(1, shape.hidden);
  }

  const auto keep = [&](Rows rows) -> View {
    vectors_.emplace_back(backend, rows);
    return vectors_.back();
  };
  const auto gains = [&](int n) {
    Rows g = normal_rows(rng_, 1, n, 0.2f);
    for (float& x : g.v) x += 1;
    return g;
  };
  gain_ = keep(gains(shape.hidden));
  d_v_gain_ = keep(gains(delta.d_v));
  if (shape.head_norms) d_head_gain_ = keep(gains(attention.d_head));
  conv_weight_ = keep(normal_rows(rng_, delta.conv_dim(), kConvTaps, 0.5f));
  a_log_ = keep(normal_rows(rng_, 1, delta.n_v_heads));
  dt_bias_ = keep(normal_rows(rng_, 1, delta.n_v_heads, 2));
  Rows frequencies(1, attention.rotary_dims / 2);
  for (int i = 0; i < frequencies.cols; ++i) frequencies.v[size_t(i)] = std::pow(0.1f, float(i) * 0.37f);
  frequencies_ = keep(frequencies);

  const auto floats = [&](int rows, int cols, DType dtype = DType::f32) {
    auto buffer = backend.allocate(size_t(rows) * size_t(cols) * 4, "scratch");
    EXPECT_TRUE(buffer.ok()) << buffer.error().message;
    scratch_memory_.push_back(std::move(buffer).value());
    return scratch_memory_.back().view(dtype, rows, cols);
  };
  scratch_.norm = floats(kMaxRows, shape.hidden);
  scratch_.wide = floats(kMaxRows, std::max({delta.projection_dim(), attention_cols, 2 * shape.d_ff}));
  scratch_.inner = floats(kMaxRows, std::max({delta.value_dim(), attention.q_dim(), shape.d_ff}));
  scratch_.heads = floats(kMaxRows, delta.n_v_heads);
  scratch_.heads2 = floats(kMaxRows, delta.n_v_heads);
  scratch_.qkv = floats(kMaxRows, delta.conv_dim());
  scratch_.router = floats(kMaxRows, shape.n_experts);
  scratch_.choice = floats(kMaxRows, shape.top_k, DType::i32);
  scratch_.choice_weight = floats(kMaxRows, shape.top_k);
  x_ = floats(kMaxRows, shape.hidden);
  angles_ = floats(kMaxRows, attention.rotary_dims);
  hidden_ = floats(kMaxRows, shape.hidden);
  logits_ = floats(kMaxRows, shape.vocab);

  std::vector<const Weight*> weights;
  for (const Matrix& m : matrices_) weights.push_back(m.weight.get());
  const Status reserved = backend.reserve({.max_rows = kMaxRows,
                                           .max_positions = kPages * kPageTokens,
                                           .attention = attention,
                                           .delta = delta,
                                           .weights = weights,
                                           .moe_top_k = shape.top_k});
  EXPECT_TRUE(reserved.ok()) << reserved.error().message;

  // Slots and pages hold garbage, in no order.
  for (Memory* m : {&s_, &conv_, &pages_}) m->write_floats(0, Rows(1, int(m->bytes() / 4), 1e30f));
  for (int i = 0; i < kSlots; ++i) free_slots_.push_back(i);
  for (int i = 0; i < kPages; ++i) free_pages_.push_back(i);
  for (size_t i = free_pages_.size(); i > 1; --i) {
    std::swap(free_pages_[i - 1], free_pages_[size_t(rng_.uniform(0, int(i) - 1))]);
  }
}

const Weight* Stack::weight(int n, int k, int n_slices, int n_experts) {
  Matrix m;
  m.parts.push_back(std::make_unique<RandomMatrix>(rng_, n * n_experts, k, shape_.format));
  m.weight = pack(*backend_, {m.parts[0].get()}, {.n_experts = n_experts, .n_slices = n_slices});
  matrices_.push_back(std::move(m));
  return matrices_.back().weight.get();
}

Sequence Stack::new_sequence(int max_positions) {
  Sequence seq;
  const size_t n = size_t(max_positions + kPageTokens - 1) / kPageTokens;
  EXPECT_TRUE(!free_slots_.empty() && free_pages_.size() >= n) << "the test needs more slots or pages";
  seq.slot = free_slots_.back();
  free_slots_.pop_back();
  seq.pages.assign(free_pages_.end() - int64_t(n), free_pages_.end());
  free_pages_.resize(free_pages_.size() - n);
  return seq;
}

DeltaState Stack::delta_state() const {
  return {.tape_rows = shape_.tape_rows,
          .s = s_.floats(),
          .conv = conv_.floats(),
          .tape_g = tape_g_.floats(),
          .tape_k = tape_k_.floats(),
          .tape_delta = tape_delta_.floats(),
          .tape_conv = tape_conv_.floats()};
}

std::vector<SeqStep> Stack::seq_steps(const std::vector<Part>& parts) const {
  std::vector<SeqStep> out;
  int row = 0;
  for (const Part& part : parts) {
    const Sequence& seq = *part.sequence;
    out.push_back({.first_row = row,
                   .n_rows = part.x.rows,
                   .start = seq.length,
                   .parents = part.parents,
                   .slot = seq.slot,
                   .tape = seq.tape,
                   .pending = seq.pending,
                   .pages = seq.pages});
    row += part.x.rows;
  }
  return out;
}

void Stack::run_delta_step(const Step& step) {
  backend_->delta_step(step, {.shape = shape_.delta,
                              .qkv = scratch_.qkv.row_range(0, step.n_rows),
                              .log_decay = scratch_.heads.row_range(0, step.n_rows),
                              .beta = scratch_.heads2.row_range(0, step.n_rows),
                              .state = delta_state(),
                              .y = inner(step.n_rows, shape_.delta.value_dim())});
}

Attention Stack::attention_args(int rows) const {
  const AttentionShape& shape = shape_.attention;
  const MutView wide = scratch_.wide.row_range(0, rows);
  return {.shape = shape,
          .q = wide.col_range(0, shape.q_dim()),
          .gate = shape_.gated ? View(wide.col_range(shape.q_dim(), gate_cols())) : View{},
          .scale = 1 / std::sqrt(float(shape.d_head)),
          .cache = cache(),
          .out = inner(rows, shape.q_dim())};
}

void Stack::run_blocks(const Step& step, MutView x, MutView angles) {
  Backend& b = *backend_;
  b.delta_inputs(step,
                 {.x = x,
                  .gain = gain_,
                  .eps = kEps,
                  .projection = delta_in_,
                  .shape = shape_.delta,
                  .conv_weight = conv_weight_,
                  .a_log = a_log_,
                  .dt_bias = dt_bias_,
                  .state = delta_state()},
                 scratch_);
  run_delta_step(step);
  b.delta_output(step,
                 {.shape = shape_.delta, .gain = d_v_gain_, .eps = kEps, .projection = delta_out_, .x = x},
                 scratch_);
  b.moe(step, {.x = x, .gain = gain_, .eps = kEps, .weights = moe_}, scratch_);
  b.attention_inputs(step,
                     {.x = x,
                      .gain = gain_,
                      .eps = kEps,
                      .projection = attention_in_,
                      .shape = shape_.attention,
                      .gate_cols = gate_cols(),
                      .q_norm = d_head_gain_,
                      .k_norm = d_head_gain_,
                      .angles = angles,
                      .cache = cache()},
                     scratch_);
  b.attention_output(step, {.attention = attention_args(step.n_rows), .projection = attention_out_, .x = x},
                     scratch_);
  b.mlp(step, {.x = x, .gain = gain_, .eps = kEps, .gate_up = gate_up_, .down = down_}, scratch_);
  const MutView hidden = hidden_.row_range(0, step.n_rows);
  if (step.path == Path::decode) {
    b.head({.x = x,
            .gain = gain_,
            .eps = kEps,
            .weight = head_,
            .hidden = hidden,
            .logits = logits_.row_range(0, step.n_rows)});
  } else {
    b.rms_norm(x, gain_, kEps, hidden);
  }
}

void Stack::run_primitives(const Step& step, MutView x, MutView angles) {
  Backend& b = *backend_;
  const int rows = step.n_rows;
  const DeltaShape& delta = shape_.delta;
  const AttentionShape& attention = shape_.attention;
  const MutView norm = scratch_.norm.row_range(0, rows), wide = scratch_.wide.row_range(0, rows);

  const MutView projection = wide.col_range(0, delta.projection_dim());
  b.rms_norm(x, gain_, kEps, norm);
  b.linear(step.path, norm, *delta_in_, projection);
  b.delta_conv(step, {.shape = delta,
                      .projection = projection,
                      .conv_weight = conv_weight_,
                      .a_log = a_log_,
                      .dt_bias = dt_bias_,
                      .state = delta_state(),
                      .qkv = scratch_.qkv.row_range(0, rows),
                      .log_decay = scratch_.heads.row_range(0, rows),
                      .beta = scratch_.heads2.row_range(0, rows)});
  run_delta_step(step);
  const MutView y = inner(rows, delta.value_dim());
  b.gated_norm(y, wide.col_range(delta.conv_dim(), delta.value_dim()), d_v_gain_, kEps, y);
  b.linear_add(step.path, y, *delta_out_, x);

  const MutView logits = scratch_.router.row_range(0, rows), ids = scratch_.choice.row_range(0, rows),
                weights = scratch_.choice_weight.row_range(0, rows);
  b.rms_norm(x, gain_, kEps, norm);
  b.linear(step.path, norm, *moe_.router, logits);
  b.moe_route(logits, moe_.normalise, ids, weights);
  b.moe_experts(step.path,
                {.x = norm, .weights = moe_, .ids = ids, .choice_weights = weights, .residual = x});

  const MutView heads = wide.col_range(0, attention.q_dim() + gate_cols() + 2 * attention.kv_dim());
  b.rms_norm(x, gain_, kEps, norm);
  b.linear(step.path, norm, *attention_in_, heads);
  b.attention_prep(step, {.shape = attention,
                          .projection = heads,
                          .gate_cols = gate_cols(),
                          .q_norm = d_head_gain_,
                          .k_norm = d_head_gain_,
                          .eps = kEps,
                          .angles = angles,
                          .cache = cache()});
  b.attention(step, attention_args(rows));
  b.linear_add(step.path, inner(rows, shape_.attention.q_dim()), *attention_out_, x);

  const MutView gate_up = wide.col_range(0, 2 * shape_.d_ff);
  b.rms_norm(x, gain_, kEps, norm);
  b.linear(step.path, norm, *gate_up_, gate_up);
  b.silu_mul(gate_up, inner(rows, shape_.d_ff));
  b.linear_add(step.path, inner(rows, shape_.d_ff), *down_, x);

  b.rms_norm(x, gain_, kEps, hidden_.row_range(0, rows));
  if (step.path == Path::decode) {
    b.linear(Path::decode, hidden_.row_range(0, rows), *head_, logits_.row_range(0, rows));
  }
}

Rows Stack::run(Path path, const std::vector<Part>& parts) {
  Backend& b = *backend_;
  Rows in;
  for (const Part& part : parts) in.append(part.x);
  const std::vector<SeqStep> seqs = seq_steps(parts);
  const Step step{.path = path, .n_rows = in.rows, .seqs = seqs};
  const MutView x = x_.row_range(0, in.rows), angles = angles_.row_range(0, in.rows);
  b.copy_in(static_cast<std::byte*>(x_.data), std::as_bytes(std::span(in.v)));
  b.rope_angles(step, frequencies_, 1.1f, angles);
  const int64_t allocations_before = allocations_so_far();
  if (composed_) {
    run_primitives(step, x, angles);
  } else {
    run_blocks(step, x, angles);
  }
#if defined(TANDEM_CONFORMANCE_CUDA) && !defined(TANDEM_CUDA_EMULATED)
  (void)
      allocations_before;  // the driver allocates when it likes; our own code is counted on the emulated card
#else
  allocations_ = int(allocations_so_far() - allocations_before);
#endif

  Rows out(in.rows, 2 * shape_.hidden + (path == Path::decode ? shape_.vocab : 0));
  const auto read = [&](MutView v, int first) {
    Rows host(in.rows, v.cols);
    b.copy_out(std::as_writable_bytes(std::span(host.v)), static_cast<const std::byte*>(v.data));
    for (int r = 0; r < in.rows; ++r) std::copy_n(host.row(r), v.cols, out.row(r) + first);
  };
  read(x_, 0);
  read(hidden_, shape_.hidden);
  if (path == Path::decode) read(logits_, 2 * shape_.hidden);
  EXPECT_TRUE(std::all_of(out.v.begin(), out.v.end(), [](float v) { return std::isfinite(v); }));
  return out;
}

Rows Stack::prefill(const std::vector<Part>& parts) {
  for (const Part& part : parts) flush(*part.sequence);
  Rows out = run(Path::prefill, parts);
  for (const Part& part : parts) part.sequence->length += part.x.rows;
  return out;
}

Rows Stack::decode(const std::vector<Part>& parts) {
  Rows out = run(Path::decode, parts);
  // What was pending is folded now, and this step's rows lie on the other tape.
  for (const Part& part : parts) {
    part.sequence->tape = 1 - part.sequence->tape;
    part.sequence->pending.clear();
  }
  return out;
}

void Stack::commit(Sequence& sequence, int n) {
  std::vector<uint8_t> rows;
  for (int i = 0; i < n; ++i) rows.push_back(uint8_t(i));
  commit(sequence, rows);
}

void Stack::commit(Sequence& sequence, const std::vector<uint8_t>& rows) {
  sequence.pending = rows;
  sequence.length += int(rows.size());
}

void Stack::commit_path(const Part& part, const std::vector<int>& rows) {
  const std::vector<uint8_t> kept(rows.begin(), rows.end());
  backend_->move_kv(seq_steps({part})[0], shape_.attention, cache(), kept);
  commit(*part.sequence, kept);
}

void Stack::flush(Sequence& sequence) {
  const SeqStep seq{.n_rows = 1,
                    .start = sequence.length,
                    .slot = sequence.slot,
                    .tape = sequence.tape,
                    .pending = sequence.pending,
                    .pages = sequence.pages};
  backend_->fold_states({.path = Path::decode, .n_rows = 1, .seqs = {&seq, 1}}, shape_.delta, delta_state());
  sequence.pending.clear();
}

void Stack::copy(const Sequence& from, Sequence& to) {
  const auto copy_slot = [&](Memory& m) {
    const size_t n = m.bytes() / 4 / kSlots;
    m.write_floats(size_t(to.slot) * n, m.read_floats(size_t(from.slot) * n, 1, int(n)));
  };
  for (Memory* m : {&s_, &conv_, &tape_g_, &tape_k_, &tape_delta_, &tape_conv_}) copy_slot(*m);
  const size_t page_floats = backend_->kv_page_bytes(shape_.attention) / 4;
  for (size_t i = 0; i < from.pages.size(); ++i) {
    pages_.write_floats(size_t(to.pages[i]) * page_floats,
                        pages_.read_floats(size_t(from.pages[i]) * page_floats, 1, int(page_floats)));
  }
  to.length = from.length;
  to.tape = from.tape;
  to.pending = from.pending;
}

Rows Stack::recurrent_state(const Sequence& sequence) const {
  const DeltaShape& d = shape_.delta;
  const size_t s = size_t(d.n_v_heads) * d.d_v * d.d_k, conv = size_t(kConvTaps - 1) * d.conv_dim();
  Rows out = s_.read_floats(size_t(sequence.slot) * s, 1, int(s));
  const Rows window = conv_.read_floats(size_t(sequence.slot) * conv, 1, int(conv));
  out.v.insert(out.v.end(), window.v.begin(), window.v.end());
  out.cols = int(out.v.size());
  return out;
}

std::vector<std::byte> Stack::kv(const Sequence& sequence) const {
  const size_t bytes = backend_->kv_page_bytes(shape_.attention);
  std::vector<std::byte> out;
  for (const int32_t page : sequence.pages) {
    const std::vector<std::byte> one = pages_.read(size_t(page) * bytes, bytes);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

}  // namespace tandem::conformance
