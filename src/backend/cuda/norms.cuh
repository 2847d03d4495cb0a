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

// The same by a block of kNormWarps warps: a thread adds every n-th column, then lanes, then warps ascending.
__device__ __forceinline__ float inverse_norm_of_block(const float* x, int n, float eps) {
  __shared__ float of_warp[kNormWarps];
  float sum = 0;
#pragma unroll 8
  for (int c = int(threadIdx.x); c < n; c += kNormWarps * kWarp) sum = fmaf(x[c], x[c], sum);
  sum = warp_sum(sum);
  if (lane_id() == 0) of_warp[warp_id()] = sum;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < kNormWarps; ++w) total += of_warp[w];
  return inverse_root(total / float(n) + eps);
}

}  // namespace tandem::cuda
