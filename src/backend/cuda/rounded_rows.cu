// The fused blocks: norms and SwiGLU leave their rows in the form in which the product after them reads them,
// without a trip through fp32. Weights in fp32 go the long way, by the blocks' definitions.
#include <algorithm>

#include "backend/cuda/activations.cuh"
#include "backend/cuda/cuda.h"
#include "backend/cuda/norms.cuh"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;

struct NormArgs {
  Rows x, gain;
  ActivationRows y;
  int cols;
  float eps;
};
// A block per row and kNormWarps groups. Each sums the whole row's squares: reading a row from the cache is
// less than waiting for a block that has done so.
__global__ void __launch_bounds__(kNormWarps* kWarp) norm_kernel(const __grid_constant__ NormArgs a) {
  let_next_start();
  const int group = int(blockIdx.x) * kNormWarps + warp_id(), row = int(blockIdx.y);
  const int c = group * kGroupColumns + 2 * lane_id();
  const float first_gain = c < a.cols ? a.gain.data[c] : 0.0f,
              second_gain = c + 1 < a.cols ? a.gain.data[c + 1] : 0.0f;
  wait_for_inputs();
  const float* x = a.x.row(row);
  const float first = c < a.cols ? x[c] : 0.0f, second = c + 1 < a.cols ? x[c + 1] : 0.0f;
  const float inv = inverse_norm_of_block(x, a.cols, a.eps);
  if (group < a.y.groups) store_group(a.y, row, group, first * inv * first_gain, second * inv * second_gain);
}

struct SwigluArgs {
  Rows gate_up;
  int cols;
  ActivationRows y;
};
// A warp per row and group.
__global__ void __launch_bounds__(kThreads) swiglu_kernel(const __grid_constant__ SwigluArgs a) {
  let_next_start();
  wait_for_inputs();
  const int group = int(blockIdx.x) * kWarps + warp_id(), row = int(blockIdx.y);
  if (group >= a.y.groups) return;
  const float* gate = a.gate_up.row(row);
  const float* up = gate + a.cols;
  const int c = group * kGroupColumns + 2 * lane_id();
  store_group(a.y, row, group, c < a.cols ? silu(gate[c]) * up[c] : 0.0f,
              c + 1 < a.cols ? silu(gate[c + 1]) * up[c + 1] : 0.0f);
}

struct GatedNormArgs {
  Rows o, z, gain;
  int d, heads;  // d: a multiple of 64, at most 256
  float eps;
  ActivationRows y;
};
// A warp per head and row. A lane's columns are 64 apart: kMostGroups pairs of them.
constexpr int kMostGroups = 4;
__global__ void __launch_bounds__(kThreads) gated_norm_kernel(const __grid_constant__ GatedNormArgs a) {
  let_next_start();
  const int head = int(blockIdx.x) * kWarps + warp_id(), row = int(blockIdx.y), lane = lane_id();
  float gain[kMostGroups][2];
#pragma unroll
  for (int i = 0; i < kMostGroups; ++i) {
    const int c = i * kGroupColumns + 2 * lane;
    gain[i][0] = c < a.d ? a.gain.data[c] : 0.0f;
    gain[i][1] = c < a.d ? a.gain.data[c + 1] : 0.0f;
  }
  wait_for_inputs();
  if (head >= a.heads) return;
  const float* o = a.o.row(row) + head * a.d;
  const float* z = a.z.row(row) + head * a.d;
  float2 gate[kMostGroups], value[kMostGroups];
#pragma unroll
  for (int i = 0; i < kMostGroups; ++i) {
    const int c = i * kGroupColumns + 2 * lane;
    gate[i] = c < a.d ? make_float2(z[c], z[c + 1]) : make_float2(0.0f, 0.0f);
    value[i] = c < a.d ? make_float2(o[c], o[c + 1]) : make_float2(0.0f, 0.0f);
  }
  const float inv = inverse_norm_of_warp(value, a.d, a.eps);
#pragma unroll
  for (int i = 0; i < kMostGroups; ++i) {
    const int c = i * kGroupColumns + 2 * lane;
    if (i * kGroupColumns >= a.d) break;
    store_group(a.y, row, (head * a.d + c) / kGroupColumns, value[i].x * inv * gain[i][0] * silu(gate[i].x),
                value[i].y * inv * gain[i][1] * silu(gate[i].y));
  }
}

}  // namespace

bool CudaBackend::takes_rounded_rows(const CudaWeight& w) const {
  return std::none_of(w.parts.begin(), w.parts.end(),
                      [](const WeightPart& p) { return p.format == LinearFormat::f32; });
}

ActivationRows CudaBackend::rounded_norm(View x, View gain, float eps, const CudaWeight& w) {
  const ActivationRows y = activation_rows(x.rows, w);
  rounded_norm(x, gain, eps, y);
  return y;
}

void CudaBackend::rounded_norm(View x, View gain, float eps, const ActivationRows& y) {
  card_->launch(norm_kernel, {unsigned((y.groups + kNormWarps - 1) / kNormWarps), unsigned(x.rows)},
                kNormWarps * kWarp, 0, NormArgs{rows_of(x), rows_of(gain), y, x.cols, eps});
}

ActivationRows CudaBackend::rounded_swiglu(View gate_up, const CudaWeight& w) {
  const ActivationRows y = activation_rows(gate_up.rows, w);
  card_->launch(swiglu_kernel, {unsigned((y.groups + kWarps - 1) / kWarps), unsigned(gate_up.rows)}, kThreads,
                0, SwigluArgs{rows_of(gate_up), gate_up.cols / 2, y});
  return y;
}

void CudaBackend::do_delta_inputs(const Step& step, const DeltaInputs& a, Scratch& s) {
  const CudaWeight& w = ours(*a.projection);
  if (!takes_rounded_rows(w)) return Backend::do_delta_inputs(step, a, s);
  const int rows = step.n_rows;
  const MutView projection = s.wide.row_range(0, rows).col_range(0, a.shape.projection_dim());
  product(rounded_norm(a.x, a.gain, a.eps, w), {}, w, projection, false);
  delta_conv(step, {.shape = a.shape,
                    .projection = projection,
                    .conv_weight = a.conv_weight,
                    .a_log = a.a_log,
                    .dt_bias = a.dt_bias,
                    .state = a.state,
                    .qkv = s.qkv.row_range(0, rows).col_range(0, a.shape.conv_dim()),
                    .log_decay = s.heads.row_range(0, rows).col_range(0, a.shape.n_v_heads),
                    .beta = s.heads2.row_range(0, rows).col_range(0, a.shape.n_v_heads)});
}

void CudaBackend::do_delta_output(const Step& step, const DeltaOutput& a, Scratch& s) {
  const CudaWeight& w = ours(*a.projection);
  const int d = a.shape.d_v, rows = step.n_rows;
  if (!takes_rounded_rows(w) || d % kGroupColumns != 0 || d > kMostGroups * kGroupColumns)
    return Backend::do_delta_output(step, a, s);
  const MutView z = s.wide.row_range(0, rows)
                        .col_range(0, a.shape.projection_dim())
                        .col_range(a.shape.conv_dim(), a.shape.value_dim());
  const ActivationRows y = activation_rows(rows, w);
  const int heads = a.shape.n_v_heads;
  card_->launch(gated_norm_kernel, {unsigned((heads + kWarps - 1) / kWarps), unsigned(rows)}, kThreads, 0,
                GatedNormArgs{rows_of(View(s.inner)), rows_of(View(z)), rows_of(a.gain), d, heads, a.eps, y});
  product(y, {}, w, a.x, true);
}

void CudaBackend::do_attention_inputs(const Step& step, const AttentionInputs& a, Scratch& s) {
  const CudaWeight& w = ours(*a.projection);
  if (!takes_rounded_rows(w)) return Backend::do_attention_inputs(step, a, s);
  const MutView projection =
      s.wide.row_range(0, step.n_rows).col_range(0, a.shape.q_dim() + a.gate_cols + 2 * a.shape.kv_dim());
  product(rounded_norm(a.x, a.gain, a.eps, w), {}, w, projection, false);
  attention_prep(step, {.shape = a.shape,
                        .projection = projection,
                        .gate_cols = a.gate_cols,
                        .q_norm = a.q_norm,
                        .k_norm = a.k_norm,
                        .eps = a.eps,
                        .angles = a.angles,
                        .cache = a.cache});
}

void CudaBackend::do_attention_output(const Step& step, const AttentionOutput& a, Scratch& s) {
  const CudaWeight& w = ours(*a.projection);
  if (step.path != Path::decode || !takes_rounded_rows(w) || a.attention.shape.d_head % kGroupColumns != 0)
    return Backend::do_attention_output(step, a, s);
  const ActivationRows y = activation_rows(step.n_rows, w);
  attend_rows(step, a.attention, &y);
  product(y, {}, w, a.x, true);
}

void CudaBackend::do_mlp(const Step& step, const Mlp& a, Scratch& s) {
  const CudaWeight& up = ours(*a.gate_up);
  const CudaWeight& down = ours(*a.down);
  if (!takes_rounded_rows(up) || !takes_rounded_rows(down)) {
    return Backend::do_mlp(step, a, s);
  }
  const MutView gate_up = s.wide.row_range(0, step.n_rows).col_range(0, up.n());
  product(rounded_norm(a.x, a.gain, a.eps, up), {}, up, gate_up, false);
  product(rounded_swiglu(gate_up, down), {}, down, a.x, true);
}

}  // namespace tandem::cuda
