// Gated DeltaNet: the block after the delta rule. The gated norm leaves its rows as the output projection
// takes them, in bf16.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/weight.h"

namespace tandem::cuda {
namespace {

constexpr int kNormWarps = 4;

struct RoundedNormArgs {
  Rows o, z, gain;
  uint16_t* y;
  int64_t stride;
  int d, cols;  // columns of a head, of a row
  float eps;
};
// A warp per head and row, in the arithmetic of gated_norm; then zeros up to `stride`.
__global__ void __launch_bounds__(kNormWarps* kWarp)
    rounded_gated_norm_kernel(const __grid_constant__ RoundedNormArgs a) {
  wait_for_inputs();
  let_next_start();
  const int first = (int(blockIdx.x) * kNormWarps + warp_id()) * a.d;
  uint16_t* y = a.y + int64_t{blockIdx.y} * a.stride;
  if (first >= a.cols) {
    for (int i = first + lane_id(); i < min(first + a.d, int(a.stride)); i += kWarp) y[i] = 0;
    return;
  }
  const float* o = a.o.row(int(blockIdx.y)) + first;
  const float* z = a.z.row(int(blockIdx.y)) + first;
  float sum = 0;
  for (int i = lane_id(); i < a.d; i += kWarp) sum = fmaf(o[i], o[i], sum);
  const float inv = inverse_root(warp_sum(sum) / float(a.d) + a.eps);
  for (int i = lane_id(); i < a.d; i += kWarp) {
    y[first + i] = bf16_bits(o[i] * inv * a.gain.data[i] * silu(z[i]));
  }
}

}  // namespace

void CudaBackend::do_delta_output(const Step& step, const DeltaOutput& a, Scratch& s) {
  const CudaWeight& w = ours(*a.projection);
  const bool rounds = std::all_of(w.parts.begin(), w.parts.end(),
                                  [](const WeightPart& p) { return p.format != LinearFormat::f32; });
  if (!rounds) return Backend::do_delta_output(step, a, s);
  const int rows = step.n_rows, cols = a.shape.value_dim(), d = a.shape.d_v,
            stride = (cols + kGroupColumns - 1) / kGroupColumns * kGroupColumns;
  auto* rounded = reinterpret_cast<uint16_t*>(
      activations_.need(size_t(rows) * size_t(stride) * sizeof(uint16_t), may_grow()));
  const MutView z = s.wide.row_range(0, rows).col_range(a.shape.conv_dim(), cols);
  const int heads = (stride + d - 1) / d;
  card_->launch(rounded_gated_norm_kernel, {unsigned((heads + kNormWarps - 1) / kNormWarps), unsigned(rows)},
                kNormWarps * kWarp, 0,
                RoundedNormArgs{rows_of(View(s.inner)), rows_of(View(z)), rows_of(a.gain), rounded, stride, d,
                                cols, a.eps});
  product(rounded, stride, {}, w, a.x, true);
}

}  // namespace tandem::cuda
