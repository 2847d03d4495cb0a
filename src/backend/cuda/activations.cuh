// Rows of activations as matrix products read them, and how those who make them write them.
//
// [row, column], columns beyond k zero. For bf16 weights: bf16. For affine weights: fp16, each group of 64
// columns scaled by a power of two that brings its largest value into [512, 1024):
//   step = 2^(exponent of max |x| - 9);  q = fp16(x / step)
// so that a value keeps 11 significant bits unless it is below 2^-23 of the largest. A group that holds a NaN
// or an infinity has a NaN for its step.
#pragma once

#include "backend/cuda/weight.h"

namespace tandem::cuda {

struct ActivationRows {
  uint16_t* bf16;  // [rows, 64 groups], or null
  uint16_t* f16;   // likewise
  float2* stats;   // with f16: [groups, stats_rows]: step, step * sum of q
  int groups, stats_rows;

  __host__ __device__ ActivationRows from_row(int row) const {
    ActivationRows out = *this;
    if (bf16 != nullptr) out.bf16 += int64_t(row) * groups * kGroupColumns;
    if (f16 != nullptr) out.f16 += int64_t(row) * groups * kGroupColumns;
    if (stats != nullptr) out.stats += row;
    return out;
  }
};

// A warp's groups in fp16: lane l has columns 2 l and 2 l + 1 of each. Pairs of q, and in every lane the
// stats.
template <int kCount>
__device__ __forceinline__ void round_to_f16(const float2 (&x)[kCount], uint32_t (&pair)[kCount],
                                             float2 (&stats)[kCount]) {
  float largest[kCount], sum[kCount], step[kCount];
#pragma unroll
  for (int n = 0; n < kCount; ++n) largest[n] = fmaxf(fabsf(x[n].x), fabsf(x[n].y));
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {  // as warp_max, groups side by side
#pragma unroll
    for (int n = 0; n < kCount; ++n)
      largest[n] = fmaxf(largest[n], __shfl_xor_sync(kAllLanes, largest[n], distance));
  }
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const bool all_finite = __ballot_sync(kAllLanes, fabsf(x[n].x) <= 3.4028234e38f &&
                                                         fabsf(x[n].y) <= 3.4028234e38f) == kAllLanes;
    // Powers of two by their exponents, kept where the reciprocal is a normal number too.
    const uint32_t exponent = min(max(__float_as_uint(largest[n]) >> 23, 16u), 240u);
    const float inverse = __uint_as_float((254u + 9u - exponent) << 23);
    step[n] = all_finite ? __uint_as_float((exponent - 9u) << 23) : __uint_as_float(0x7fffffffu);
    pair[n] = f16_pair(x[n].x * inverse, x[n].y * inverse);
    sum[n] = f16_value(uint16_t(pair[n])) + f16_value(uint16_t(pair[n] >> 16));
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {  // as warp_sum
#pragma unroll
    for (int n = 0; n < kCount; ++n) sum[n] += __shfl_xor_sync(kAllLanes, sum[n], distance);
  }
#pragma unroll
  for (int n = 0; n < kCount; ++n) stats[n] = make_float2(step[n], step[n] * sum[n]);
}

// A warp writes one group of one row: lane l has columns 2 l and 2 l + 1 of it.
__device__ __forceinline__ void store_group(const ActivationRows& out, int row, int group, float first,
                                            float second) {
  const int lane = lane_id();
  const int64_t at = (int64_t(row) * out.groups + group) * kGroupColumns + 2 * lane;
  if (out.bf16 != nullptr) *reinterpret_cast<uint32_t*>(out.bf16 + at) = bf16_pair(first, second);
  if (out.f16 == nullptr) return;
  const float2 x[1] = {make_float2(first, second)};
  uint32_t pair[1];
  float2 stats[1];
  round_to_f16(x, pair, stats);
  *reinterpret_cast<uint32_t*>(out.f16 + at) = pair[0];
  if (lane == 0) out.stats[int64_t(group) * out.stats_rows + row] = stats[0];
}

}  // namespace tandem::cuda
