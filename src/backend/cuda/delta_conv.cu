// Gated DeltaNet: causal convolution and gates.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/delta.cuh"

namespace tandem::cuda {
namespace {

constexpr int kMostWarps = 8;
constexpr int kPrefillRows = 32;  // rows of a block in prefill

struct ConvArgs {
  StepTable table;
  DeltaShape shape;
  DeltaState state;
  Rows projection, weight, a_log, dt_bias;
  MutRows qkv, log_decay, beta;
  int n_rows;            // prefill: of the step
  int n_channel_blocks;  // along x; the block after them does the gates
  bool whole_taps;       // a channel's taps are one float4
};

__device__ __forceinline__ float4 taps_of(const ConvArgs& a, int channel) {
  const float* w = a.weight.row(channel);
  if (a.whole_taps) return *reinterpret_cast<const float4*>(w);
  return make_float4(w[0], w[1], w[2], w[3]);
}

__device__ __forceinline__ float convolve(float4 w, float x0, float x1, float x2, float x3) {
  return silu(fmaf(w.w, x3, fmaf(w.z, x2, fmaf(w.y, x1, w.x * x0))));
}

// Gates of all value heads of row r; threads take heads.
__device__ __forceinline__ void gates(const ConvArgs& a, int r, int h) {
  const float* b = a.projection.row(r) + conv_dim(a.shape) + value_dim(a.shape);
  const float x = b[a.shape.n_v_heads + h] + a.dt_bias.data[h];
  a.log_decay.row(r)[h] = -exp_(a.a_log.data[h]) * softplus(x);
  a.beta.row(r)[h] = sigmoid(b[h]);
}

// Where a channel's window before the rows of the step lies, its i-th input: the last ones of
// [stored | pending tape rows].
__device__ __forceinline__ const float* before_step(const DeltaShape& shape, const DeltaState& state,
                                                    const SeqEntry& seq, int channel, int i) {
  const int from = i + seq.n_pending;
  if (from < kWindow) return window_of(shape, state, seq) + from * conv_dim(shape) + channel;
  return state.tape_conv + pending_row(state, seq, from - kWindow) * conv_dim(shape) + channel;
}

__device__ __forceinline__ void store_window(const DeltaShape& shape, const DeltaState& state,
                                             const SeqEntry& seq, int channel,
                                             const float (&window)[kWindow]) {
  float* stored = window_of(shape, state, seq) + channel;
#pragma unroll
  for (int i = 0; i < kWindow; ++i) stored[i * conv_dim(shape)] = window[i];
}

// Decode: a block has 32 channels of a sequence, so that the window is read by all before it is written; a
// warp takes every n-th row.
__global__ void __launch_bounds__(kMostWarps* kWarp) conv_decode_kernel(const __grid_constant__ ConvArgs a) {
  const SeqEntry& seq = a.table.seqs[blockIdx.y];
  const int n_warps = int(blockDim.x) / kWarp, c_dim = conv_dim(a.shape);
  const int channel = int(blockIdx.x) * kWarp + lane_id();
  const bool has_channel = int(blockIdx.x) < a.n_channel_blocks && channel < c_dim;
  const bool fresh = seq.start == 0;
  const float4 w = has_channel ? taps_of(a, channel) : float4{};
  if (has_channel && !fresh && threadIdx.x < kWindow) {
    prefetch(before_step(a.shape, a.state, seq, int(blockIdx.x) * kWarp, int(threadIdx.x)));
  }
  let_next_start();
  wait_for_inputs();
  if (int(blockIdx.x) == a.n_channel_blocks) {
    for (int i = int(threadIdx.x); i < seq.n_rows * a.shape.n_v_heads; i += int(blockDim.x)) {
      gates(a, seq.first_row + i / a.shape.n_v_heads, i % a.shape.n_v_heads);
    }
    return;
  }
  float window[kWindow] = {};
  if (has_channel && !fresh) {
#pragma unroll
    for (int i = 0; i < kWindow; ++i) window[i] = *before_step(a.shape, a.state, seq, channel, i);
  }
  // The warp's first row, in the same trip to memory as the window.
  const float* m = a.projection.row(seq.first_row) + channel;
  float own = has_channel && warp_id() < seq.n_rows ? m[warp_id() * a.projection.stride] : 0.0f;
  __syncthreads();
  if (!has_channel) return;
  if (warp_id() == 0 && (fresh || seq.n_pending > 0)) store_window(a.shape, a.state, seq, channel, window);
  float* tape = a.state.tape_conv + tape_row(a.state, seq, 1 - seq.tape, 0) * c_dim + channel;
  for (int t = warp_id(); t < seq.n_rows; t += n_warps) {
    float x[kWindow];
    int above = t;
#pragma unroll
    for (int i = kWindow - 1, before = kWindow; i >= 0; --i) {
      if (above >= 0) above = parent_of(seq, above);
      if (above < 0) --before;  // rows of the window taken, newest first
      x[i] = above >= 0    ? m[above * a.projection.stride]
             : before == 2 ? window[2]
             : before == 1 ? window[1]
                           : window[0];
    }
    if (t != warp_id()) own = m[t * a.projection.stride];
    tape[int64_t{t} * c_dim] = own;
    a.qkv.row(seq.first_row + t)[channel] = convolve(w, x[0], x[1], x[2], own);
  }
}

// Prefill: all rows at once; the windows still stand as they were before the step.
__global__ void __launch_bounds__(kMostWarps* kWarp) conv_prefill_kernel(const __grid_constant__ ConvArgs a) {
  const int c_dim = conv_dim(a.shape), channel = int(blockIdx.x) * kWarp + lane_id();
  const int first = int(blockIdx.y) * kPrefillRows, end = min(first + kPrefillRows, a.n_rows);
  let_next_start();
  wait_for_inputs();
  if (int(blockIdx.x) == a.n_channel_blocks) {
    for (int i = int(threadIdx.x); i < (end - first) * a.shape.n_v_heads; i += int(blockDim.x)) {
      gates(a, first + i / a.shape.n_v_heads, i % a.shape.n_v_heads);
    }
    return;
  }
  if (channel >= c_dim) return;
  const float4 w = taps_of(a, channel);
  for (int r = first + warp_id(); r < end; r += kMostWarps) {
    const SeqEntry& seq = a.table.seqs[a.table.row_seq[r]];
    const float* stored = window_of(a.shape, a.state, seq) + channel;
    const int t = r - seq.first_row;
    float x[kConvTaps];
#pragma unroll
    for (int i = 0; i < kConvTaps; ++i) {
      const int from = t + i - kWindow;
      x[i] = from >= 0        ? a.projection.row(seq.first_row + from)[channel]
             : seq.start == 0 ? 0.0f
                              : stored[(from + kWindow) * c_dim];
    }
    a.qkv.row(r)[channel] = convolve(w, x[0], x[1], x[2], x[3]);
  }
}

// After all rows of a prefill step: each window takes the last inputs of [window | rows].
__global__ void window_after_kernel(const __grid_constant__ ConvArgs a) {
  let_next_start();
  wait_for_inputs();
  const SeqEntry& seq = a.table.seqs[blockIdx.y];
  const int c_dim = conv_dim(a.shape), channel = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (channel >= c_dim) return;
  const float* stored = window_of(a.shape, a.state, seq) + channel;
  float window[kWindow];
#pragma unroll
  for (int i = 0; i < kWindow; ++i) {
    const int from = seq.n_rows - kWindow + i;
    window[i] = from >= 0        ? a.projection.row(seq.first_row + from)[channel]
                : seq.start == 0 ? 0.0f
                                 : stored[(from + kWindow) * c_dim];
  }
  store_window(a.shape, a.state, seq, channel, window);
}

struct FoldWindowArgs {
  StepTable table;
  DeltaShape shape;
  DeltaState state;
};
__global__ void fold_window_kernel(const __grid_constant__ FoldWindowArgs a) {
  let_next_start();
  wait_for_inputs();
  const SeqEntry& seq = a.table.seqs[blockIdx.y];
  const int channel = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (channel >= conv_dim(a.shape) || seq.n_pending == 0) return;
  float window[kWindow];
#pragma unroll
  for (int i = 0; i < kWindow; ++i) window[i] = *before_step(a.shape, a.state, seq, channel, i);
  store_window(a.shape, a.state, seq, channel, window);
}

constexpr int kWindowThreads = 128;
dim3 window_grid(const Step& step, const DeltaShape& shape) {
  return {unsigned((shape.conv_dim() + kWindowThreads - 1) / kWindowThreads), unsigned(step.seqs.size())};
}

}  // namespace

void CudaBackend::do_delta_conv(const Step& step, const DeltaConv& a) {
  const int n_channel_blocks = (a.shape.conv_dim() + kWarp - 1) / kWarp;
  const ConvArgs args{.table = table(step),
                      .shape = a.shape,
                      .state = a.state,
                      .projection = rows_of(a.projection),
                      .weight = rows_of(a.conv_weight),
                      .a_log = rows_of(a.a_log),
                      .dt_bias = rows_of(a.dt_bias),
                      .qkv = rows_of(a.qkv),
                      .log_decay = rows_of(a.log_decay),
                      .beta = rows_of(a.beta),
                      .n_rows = step.n_rows,
                      .n_channel_blocks = n_channel_blocks,
                      .whole_taps = aligned16(a.conv_weight.data, a.conv_weight.stride)};
  if (step.path == Path::decode) {
    card_->launch(conv_decode_kernel, {unsigned(n_channel_blocks + 1), unsigned(step.seqs.size())},
                  std::min(most_rows(step), kMostWarps) * kWarp, 0, args);
    return;
  }
  card_->launch(conv_prefill_kernel,
                {unsigned(n_channel_blocks + 1), unsigned((step.n_rows + kPrefillRows - 1) / kPrefillRows)},
                kMostWarps * kWarp, 0, args);
  card_->launch(window_after_kernel, window_grid(step, a.shape), kWindowThreads, 0, args);
}

void CudaBackend::fold_windows(const Step& step, const DeltaShape& shape, const DeltaState& state) {
  card_->launch(fold_window_kernel, window_grid(step, shape), kWindowThreads, 0,
                FoldWindowArgs{table(step), shape, state});
}

}  // namespace tandem::cuda
