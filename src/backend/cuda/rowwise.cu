// What works on rows alone: copies, norms, SwiGLU.
#include "backend/cuda/cuda.h"
#include "backend/cuda/norms.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

struct CopyArgs {
  Rows x;
  MutRows y;
  const int32_t* rows;  // or null: row r of x
  int cols;
};
__global__ void copy_rows_kernel(const __grid_constant__ CopyArgs a) {
  let_next_start();
  wait_for_inputs();
  const int r = int(blockIdx.x);
  const float* x = a.x.row(a.rows != nullptr ? a.rows[r] : r);
  float* y = a.y.row(r);
  for (int i = int(threadIdx.x); i < a.cols; i += kThreads) y[i] = x[i];
}

struct NormArgs {
  Rows x;
  Rows gain;
  MutRows y;
  int cols;
  float eps;
};
__global__ void __launch_bounds__(kNormWarps* kWarp) rms_norm_kernel(const __grid_constant__ NormArgs a) {
  let_next_start();
  wait_for_inputs();
  const int r = int(blockIdx.x);
  const float* x = a.x.row(r);
  const float* gain = a.gain.data;
  float* y = a.y.row(r);
  const float inv = inverse_norm_of_block(x, a.cols, a.eps);
  for (int i = int(threadIdx.x); i < a.cols; i += kNormWarps * kWarp) y[i] = x[i] * inv * gain[i];
}

struct SiluMulArgs {
  Rows gate_up;
  MutRows y;
  int cols;
};
__global__ void silu_mul_kernel(const __grid_constant__ SiluMulArgs a) {
  let_next_start();
  wait_for_inputs();
  const int i = int(blockIdx.x * kThreads + threadIdx.x);
  const float* x = a.gate_up.row(int(blockIdx.y));
  if (i < a.cols) a.y.row(int(blockIdx.y))[i] = silu(x[i]) * x[a.cols + i];
}

struct GatedNormArgs {
  Rows o, z, gain;
  MutRows y;
  int d;  // columns of a head
  float eps;
};
// One warp per head and row.
__global__ void gated_norm_kernel(const __grid_constant__ GatedNormArgs a) {
  let_next_start();
  wait_for_inputs();
  const int first = int(blockIdx.x) * a.d;
  const float* o = a.o.row(int(blockIdx.y)) + first;
  const float* z = a.z.row(int(blockIdx.y)) + first;
  float* y = a.y.row(int(blockIdx.y)) + first;
  const float inv = inverse_norm_of_warp(o, a.d, a.eps);
  for (int i = lane_id(); i < a.d; i += kWarp) y[i] = o[i] * inv * a.gain.data[i] * silu(z[i]);
}

unsigned blocks_for(int n) { return unsigned((n + kThreads - 1) / kThreads); }

}  // namespace

void CudaBackend::do_copy_rows(View x, std::span<const int32_t> rows, MutView y) {
  const int32_t* which = rows.empty() ? nullptr : ids_on_card(rows);
  card_->launch(copy_rows_kernel, {unsigned(y.rows)}, kThreads, 0,
                CopyArgs{rows_of(x), rows_of(y), which, y.cols});
}

void CudaBackend::do_rms_norm(View x, View gain, float eps, MutView y) {
  card_->launch(rms_norm_kernel, {unsigned(x.rows)}, kNormWarps * kWarp, 0,
                NormArgs{rows_of(x), rows_of(gain), rows_of(y), x.cols, eps});
}

void CudaBackend::do_silu_mul(View gate_up, MutView y) {
  card_->launch(silu_mul_kernel, {blocks_for(y.cols), unsigned(y.rows)}, kThreads, 0,
                SiluMulArgs{rows_of(gate_up), rows_of(y), y.cols});
}

void CudaBackend::do_gated_norm(View o, View z, View gain, float eps, MutView y) {
  card_->launch(gated_norm_kernel, {unsigned(o.cols / gain.cols), unsigned(o.rows)}, kWarp, 0,
                GatedNormArgs{rows_of(o), rows_of(z), rows_of(gain), rows_of(y), gain.cols, eps});
}

}  // namespace tandem::cuda
