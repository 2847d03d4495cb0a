// Gated DeltaNet: from steps to tiles of channels and of state rows.
#include <algorithm>

#include "backend/cpu/cpu.h"

namespace tandem::cpu {
namespace {

constexpr int kWindow = kConvTaps - 1;
constexpr int kTileStateRows = 64;  // decode: state rows of a tile

// Index of a row of one of a slot's two tapes.
int64_t tape_row(const DeltaState& state, const SeqStep& seq, int tape, int r) {
  return (int64_t{seq.slot} * 2 + tape) * state.tape_rows + r;
}

float* window_of(const SeqStep& seq, const DeltaShape& shape, const DeltaState& state) {
  return state.conv + int64_t{seq.slot} * kWindow * shape.conv_dim();
}

// The tile's view of the window before the step's rows: the last three of [stored window | pending tape
// rows].
void set_window(const SeqStep& seq, const DeltaShape& shape, const DeltaState& state, int channel,
                ConvTile& t) {
  float* stored = window_of(seq, shape, state) + channel;
  t.window_stride = shape.conv_dim();
  const int n = int(seq.pending.size());
  for (int i = 0; i < kWindow; ++i) {
    const int from = n + i;  // in [stored window | pending rows]
    t.window[i] = from < kWindow ? stored + int64_t{from} * shape.conv_dim()
                                 : state.tape_conv +
                                       tape_row(state, seq, seq.tape, seq.pending[size_t(from - kWindow)]) *
                                           shape.conv_dim() +
                                       channel;
  }
  if (n > 0) t.window_before = stored;
}

// State rows [first, first + n) of value head h of a sequence, with what is pending.
void set_state(const SeqStep& seq, const DeltaShape& shape, const DeltaState& state, int h, int first, int n,
               DeltaTile& t) {
  const int key_head = h / (shape.n_v_heads / shape.n_k_heads);
  t.d_k = shape.d_k;
  t.n_state_rows = n;
  t.s = state.s + ((int64_t{seq.slot} * shape.n_v_heads + h) * shape.d_v + first) * shape.d_k;
  t.n_pending = int(seq.pending.size());
  for (int i = 0; i < t.n_pending; ++i) {
    const int64_t tape = tape_row(state, seq, seq.tape, seq.pending[size_t(i)]);
    t.fold_g[i] = state.tape_g[tape * shape.n_v_heads + h];
    t.fold_k[i] = state.tape_k + tape * shape.key_dim() + key_head * shape.d_k;
    t.fold_delta[i] = state.tape_delta + tape * shape.value_dim() + h * shape.d_v + first;
  }
}

int blocks_of(int n, int size) { return (n + size - 1) / size; }

}  // namespace

void CpuBackend::do_delta_conv(const Step& step, const DeltaConv& a) {
  const DeltaShape& shape = a.shape;
  const int n_blocks = blocks_of(shape.conv_dim(), kMaxConvChannels);
  const auto run = [&](const SeqStep& seq, int block) {
    const int channel = block * kMaxConvChannels;
    ConvTile t;
    t.n_channels = std::min(kMaxConvChannels, shape.conv_dim() - channel);
    t.weight = row(a.conv_weight, channel);
    t.weight_stride = a.conv_weight.stride;
    if (seq.start > 0) {
      set_window(seq, shape, a.state, channel, t);
    } else {  // nothing came before: zeros, whatever the slot holds
      t.window_stride = shape.conv_dim();
      t.window_before = window_of(seq, shape, a.state) + channel;
    }
    t.m_stride = a.projection.stride;
    t.out_stride = a.qkv.stride;
    t.n_rows = seq.n_rows;
    if (!seq.parents.empty()) t.parents = seq.parents.data();
    t.m = row(a.projection, seq.first_row) + channel;
    t.out = row(a.qkv, seq.first_row) + channel;
    if (step.path == Path::decode) {
      t.tape = a.state.tape_conv + tape_row(a.state, seq, 1 - seq.tape, 0) * shape.conv_dim() + channel;
      t.tape_stride = shape.conv_dim();
    } else {
      t.window_before = nullptr;
      t.window_after = window_of(seq, shape, a.state) + channel;
    }
    kernels_.conv(t);
  };
  const auto gates = [&](int r) {
    const float* b = row(a.projection, r) + shape.conv_dim() + shape.value_dim();
    kernels_.delta_gates(b, b + shape.n_v_heads, row(a.a_log, 0), row(a.dt_bias, 0), shape.n_v_heads,
                         row(a.beta, r), row(a.log_decay, r));
  };
  // Items: for each sequence, its blocks of channels and then its gates.
  const int64_t per_seq = n_blocks + 1;
  const double ns = 0.6 * step.n_rows * (shape.conv_dim() + 4.0 * shape.n_v_heads);
  share(int64_t(step.seqs.size()) * per_seq, 1, ns, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      const SeqStep& seq = step.seqs[size_t(i / per_seq)];
      if (i % per_seq < n_blocks) {
        run(seq, int(i % per_seq));
      } else {
        for (int r = 0; r < seq.n_rows; ++r) gates(seq.first_row + r);
      }
    }
  });
}

void CpuBackend::do_delta_step(const Step& step, const DeltaStep& a) {
  const DeltaShape& shape = a.shape;
  const int group = shape.n_v_heads / shape.n_k_heads;
  const int64_t heads = int64_t(step.seqs.size()) * shape.n_v_heads;
  const bool decode = step.path == Path::decode;

  // Prefill and the closed form: columns of delta are independent, so heads are cut where there are too few
  // for the threads.
  const bool whole_heads = !decode || delta_ == DeltaForm::closed;
  int block = whole_heads ? round_up(shape.d_v, 32) : kTileStateRows;
  while (whole_heads && block > 32 && heads * blocks_of(shape.d_v, block) < 2 * team_.size())
    block = round_up(block / 2, 32);
  const int n_blocks = blocks_of(shape.d_v, block);

  const auto step_tile = [&](const SeqStep& seq, int h, int first, int n, int thread) {
    const int key_head = h / group;
    DeltaTile t;
    set_state(seq, shape, a.state, h, first, n, t);
    t.fresh = seq.start == 0;
    t.n_rows = seq.n_rows;
    if (!seq.parents.empty()) {
      t.parents = seq.parents.data();
      t.kept = thread_floats(thread, kept_state_floats(shape.d_k));
    }
    for (int i = 0; i < t.n_rows; ++i) {
      const int r = seq.first_row + i;
      const int64_t tape = tape_row(a.state, seq, 1 - seq.tape, i);
      const float* qkv = row(a.qkv, r);
      t.log_decay[i] = row(a.log_decay, r)[h];
      t.beta[i] = row(a.beta, r)[h];
      t.q[i] = qkv + key_head * shape.d_k;
      t.k[i] = qkv + shape.key_dim() + key_head * shape.d_k;
      t.v[i] = qkv + 2 * shape.key_dim() + h * shape.d_v + first;
      t.y[i] = row(a.y, r) + h * shape.d_v + first;
      t.delta[i] = a.state.tape_delta + tape * shape.value_dim() + h * shape.d_v + first;
      t.tape_k[i] = first == 0 && h % group == 0
                        ? a.state.tape_k + tape * shape.key_dim() + key_head * shape.d_k
                        : nullptr;
      t.tape_g[i] = first == 0 ? a.state.tape_g + tape * shape.n_v_heads + h : nullptr;
    }
    kernels_.delta_step(t);
  };
  const auto chunk_of = [&](const SeqStep& seq, int h, int first, int n, int thread) {
    const int key_head = h / group, column = h * shape.d_v + first;
    const float* qkv = row(a.qkv, seq.first_row);
    return DeltaChunks{
        .d_k = shape.d_k,
        .n_state_rows = n,
        .s = a.state.s + ((int64_t{seq.slot} * shape.n_v_heads + h) * shape.d_v + first) * shape.d_k,
        .fresh = seq.start == 0,
        .start = seq.start,
        .n_rows = seq.n_rows,
        .q = qkv + key_head * shape.d_k,
        .k = qkv + shape.key_dim() + key_head * shape.d_k,
        .v = qkv + 2 * shape.key_dim() + column,
        .row_stride = a.qkv.stride,
        .log_decay = row(a.log_decay, seq.first_row) + h,
        .log_decay_stride = a.log_decay.stride,
        .beta = row(a.beta, seq.first_row) + h,
        .beta_stride = a.beta.stride,
        .y = row(a.y, seq.first_row) + column,
        .y_stride = a.y.stride,
        .work = thread_floats(thread, delta_work_floats(shape.d_k, shape.d_v))};
  };
  const auto closed_tile = [&](const SeqStep& seq, int h, int first, int n, int thread) {
    DeltaTile fold;
    set_state(seq, shape, a.state, h, first, n, fold);
    fold.fresh = seq.start == 0;
    if (fold.fresh || fold.n_pending > 0) kernels_.delta_step(fold);
    DeltaChunks t = chunk_of(seq, h, first, n, thread);
    const int64_t tape = tape_row(a.state, seq, 1 - seq.tape, 0);
    t.tape_delta = a.state.tape_delta + tape * shape.value_dim() + h * shape.d_v + first;
    t.tape_delta_stride = shape.value_dim();
    if (first == 0) {
      t.tape_g = a.state.tape_g + tape * shape.n_v_heads + h;
      t.tape_g_stride = shape.n_v_heads;
    }
    if (first == 0 && h % group == 0) {
      t.tape_k = a.state.tape_k + tape * shape.key_dim() + h / group * shape.d_k;
      t.tape_k_stride = shape.key_dim();
    }
    kernels_.delta_closed(t);
  };
  const double ns = 0.2 * (step.n_rows + 1.0) * shape.n_v_heads * shape.d_v * shape.d_k;
  share(heads * n_blocks, 1, ns, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const int first = int(i % n_blocks) * block, h = int(i / n_blocks % shape.n_v_heads);
      const SeqStep& seq = step.seqs[size_t(i / n_blocks / shape.n_v_heads)];
      const int n = std::min(block, shape.d_v - first);
      if (!decode) {
        kernels_.delta_chunks(chunk_of(seq, h, first, n, thread));
      } else if (delta_ == DeltaForm::closed && seq.n_rows > 1 && seq.parents.empty()) {
        closed_tile(seq, h, first, n, thread);
      } else {
        step_tile(seq, h, first, n, thread);
      }
    }
  });
}

void CpuBackend::do_fold_states(const Step& step, const DeltaShape& shape, const DeltaState& state) {
  share(int64_t(step.seqs.size()) * shape.n_v_heads, 1,
        0.5 * double(step.seqs.size()) * shape.n_v_heads * shape.d_v * shape.d_k,
        [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) {
            DeltaTile t;
            set_state(step.seqs[size_t(i / shape.n_v_heads)], shape, state, int(i % shape.n_v_heads), 0,
                      shape.d_v, t);
            kernels_.delta_step(t);
          }
        });
  for (const SeqStep& seq : step.seqs) {
    for (int channel = 0; channel < shape.conv_dim(); channel += kMaxConvChannels) {
      ConvTile t;
      t.n_channels = std::min(kMaxConvChannels, shape.conv_dim() - channel);
      set_window(seq, shape, state, channel, t);
      kernels_.conv(t);
    }
  }
}

}  // namespace tandem::cpu
