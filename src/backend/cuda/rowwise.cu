// What works on rows alone: copies, norms, SwiGLU.
#include "backend/cuda/cuda.h"

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
  wait_for_inputs();
  const int r = int(blockIdx.x);
  const float* x = a.x.row(a.rows != nullptr ? a.rows[r] : r);
  float* y = a.y.row(r);
  for (int i = int(threadIdx.x); i < a.cols; i += kThreads) y[i] = x[i];
}

// Sum of v over the block, in every thread: lanes, then warps ascending.
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float of_warp[kThreads / kWarp];
  v = warp_sum(v);
  __syncthreads();
  if (lane_id() == 0) of_warp[warp_id()] = v;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) sum += of_warp[w];
  return sum;
}

struct NormArgs {
  Rows x;
  Rows gain;
  MutRows y;
  int cols;
  float eps;
};
__global__ void rms_norm_kernel(const __grid_constant__ NormArgs a) {
  wait_for_inputs();
  const int r = int(blockIdx.x);
  const float* x = a.x.row(r);
  const float* gain = a.gain.data;
  float* y = a.y.row(r);
  float sum = 0;
  for (int i = int(threadIdx.x); i < a.cols; i += kThreads) sum = fmaf(x[i], x[i], sum);
  const float inv = inverse_root(block_sum(sum) / float(a.cols) + a.eps);
  for (int i = int(threadIdx.x); i < a.cols; i += kThreads) y[i] = x[i] * inv * gain[i];
}

struct SiluMulArgs {
  Rows gate_up;
  MutRows y;
  int cols;
};
__global__ void silu_mul_kernel(const __grid_constant__ SiluMulArgs a) {
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
  wait_for_inputs();
  const int first = int(blockIdx.x) * a.d;
  const float* o = a.o.row(int(blockIdx.y)) + first;
  const float* z = a.z.row(int(blockIdx.y)) + first;
  float* y = a.y.row(int(blockIdx.y)) + first;
  float sum = 0;
  for (int i = lane_id(); i < a.d; i += kWarp) sum = fmaf(o[i], o[i], sum);
  const float inv = inverse_root(warp_sum(sum) / float(a.d) + a.eps);
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
  card_->launch(rms_norm_kernel, {unsigned(x.rows)}, kThreads, 0,
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
