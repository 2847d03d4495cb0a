// The sums of the norms: one order each, for the operations and for the blocks that fuse them.
#pragma once

#include "backend/cuda/gpu.cuh"

namespace tandem::cuda {

constexpr int kNormWarps = 8;  // of a block that sums a row's squares

// 1 / sqrt(mean(x^2) + eps) over n columns. A lane adds columns 2 l, 2 l + 1 of every 64th; then the lanes.
__device__ __forceinline__ float inverse_norm_of_warp(const float* x, int n, float eps) {
  float sum = 0;
  for (int c = 2 * lane_id(); c < n; c += 2 * kWarp) {
    sum = fmaf(x[c], x[c], sum);
    if (c + 1 < n) sum = fmaf(x[c + 1], x[c + 1], sum);
  }
  return inverse_root(warp_sum(sum) / float(n) + eps);
}

// The same of values in registers: [i] columns 64 i + 2 l, 64 i + 2 l + 1; zero beyond n.
template <int kGroups>
__device__ __forceinline__ float inverse_norm_of_warp(const float2 (&x)[kGroups], int n, float eps) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) sum = fmaf(x[i].y, x[i].y, fmaf(x[i].x, x[i].x, sum));
  return inverse_root(warp_sum(sum) / float(n) + eps);
}

// The same by a block of kNormWarps warps: a thread adds every n-th column, then lanes, then warps ascending.
__device__ __forceinline__ float inverse_norm_of_block(const float* x, int n, float eps) {
  __shared__ float of_warp[kNormWarps];
  // A row of up to kAtOnce values a thread takes one trip to memory.
  constexpr int kAtOnce = 24, kStep = kNormWarps * kWarp;
  float sum = 0;
  for (int first = int(threadIdx.x); first < n; first += kAtOnce * kStep) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) v[i] = first + i * kStep < n ? x[first + i * kStep] : 0.0f;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum = fmaf(v[i], v[i], sum);
  }
  sum = warp_sum(sum);
  if (lane_id() == 0) of_warp[warp_id()] = sum;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < kNormWarps; ++w) total += of_warp[w];
  return inverse_root(total / float(n) + eps);
}

}  // namespace tandem::cuda
