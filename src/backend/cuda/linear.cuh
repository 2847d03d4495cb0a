// The inner loop of every matrix product: records of weights (weight.h) against rows of bf16 activations.
#pragma once

#include "backend/cuda/weight.h"

namespace tandem::cuda {

// Registers of one record as it comes from memory: codes or values, scales.
template <LinearFormat F>
struct Record {
  static constexpr int kWords = is_affine4(F) ? 1 : is_affine8(F) ? 2 : 4;
  uint4 words[kWords];
  uint4 scales[is_wide(F) ? 2 : 1];  // narrow: .x, .y alone; dense: not used

  __device__ __forceinline__ void load(const std::byte* record) {
    const int lane = lane_id();
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = stream_load(record + i * 512 + lane * 16);
    const std::byte* pairs = record + code_bytes(F);
    if constexpr (is_wide(F)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) scales[half] = stream_load(pairs + half * 128 + lane / 4 * 16);
    } else if constexpr (is_affine(F)) {
      const uint2 s = __ldg(reinterpret_cast<const uint2*>(pairs + lane / 4 * 8));
      scales[0].x = s.x;
      scales[0].y = s.y;
    }
  }
};

// Two 8-bit codes in bytes 0 and 2 -> c - 128 as a pair of bf16, exactly: 0x4300 | low 7 bits is 128 + low 7;
// adding -256 or -128 by the top bit gives c - 128.
__device__ __forceinline__ uint32_t codes8_signed(uint32_t w) {
  return add_bf16_pairs(and_or(w, 0x007f007fu, 0x43004300u), and_xor(w, 0x00800080u, 0xc380c380u));
}

// What a code lacks to be what the tensor cores multiply: 8-bit operands are c - 128, 4-bit ones c + 128.
constexpr float code_offset(LinearFormat f) { return is_affine8(f) ? 128.0f : -128.0f; }

// The A operand of step j.
template <LinearFormat F>
__device__ __forceinline__ void operand(const Record<F>& r, int j, uint32_t (&a)[4]) {
  if constexpr (F == LinearFormat::bf16) {
    a[0] = r.words[j].x;
    a[1] = r.words[j].y;
    a[2] = r.words[j].z;
    a[3] = r.words[j].w;
  } else if constexpr (is_affine8(F)) {
    const uint4& w = r.words[j / 2];
    const uint32_t first = j % 2 == 0 ? w.x : w.z, second = j % 2 == 0 ? w.y : w.w;
    a[0] = codes8_signed(first);
    a[1] = codes8_signed(first >> 8);
    a[2] = codes8_signed(second);
    a[3] = codes8_signed(second >> 8);
  } else {
    const uint32_t w = j == 0 ? r.words[0].x : j == 1 ? r.words[0].y : j == 2 ? r.words[0].z : r.words[0].w;
    a[0] = and_or(w, 0x000f000fu, 0x43004300u);
    a[2] = and_or(w >> 4, 0x000f000fu, 0x43004300u);
    a[1] = and_or(w >> 8, 0x000f000fu, 0x43004300u);
    a[3] = and_or(w >> 12, 0x000f000fu, 0x43004300u);
  }
}

// A lane's part of 8 activation rows and one group: B of steps 0..3.
struct Activations {
  uint32_t b[4][2];

  // `row` points to the first column of the group in the row of this lane's g; null: a row of zeros.
  __device__ __forceinline__ void load(const uint16_t* row) {
    const int t = lane_id() % 4;
    uint4 first = make_uint4(0, 0, 0, 0), second = first;
    if (row != nullptr) {
      first = *reinterpret_cast<const uint4*>(row + t * 8);
      second = *reinterpret_cast<const uint4*>(row + 32 + t * 8);
    }
    b[0][0] = first.x;
    b[0][1] = first.y;
    b[1][0] = first.z;
    b[1][1] = first.w;
    b[2][0] = second.x;
    b[2][1] = second.y;
    b[3][0] = second.z;
    b[3][1] = second.w;
  }
};

// Adds the products of `kTiles` records with `kColumns` times 8 rows to acc. Per group of 32 or 64 columns
// one exact-operand sum, then acc = fma(scale, sum of (code - offset) x, fma(bias + offset scale, sum of x,
// acc)).
template <LinearFormat F, int kTiles, int kColumns>
__device__ __forceinline__ void multiply_group(const Record<F> (&records)[kTiles],
                                               const Activations (&x)[kColumns],
                                               float (&acc)[kTiles][kColumns][4]) {
  if constexpr (!is_affine(F)) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        uint32_t a[4];
        operand(records[r], j, a);
#pragma unroll
        for (int n = 0; n < kColumns; ++n) mma_bf16(acc[r][n], a, x[n].b[j][0], x[n].b[j][1]);
      }
    }
  } else {
    constexpr int kHalves = is_wide(F) ? 2 : 1, kSteps = 4 / kHalves;
    const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float sums[kColumns][4] = {};
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int j = half * kSteps; j < (half + 1) * kSteps; ++j) {
          mma_bf16(sums[n], ones, x[n].b[j][0], x[n].b[j][1]);
        }
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        float part[kColumns][4] = {};
#pragma unroll
        for (int j = half * kSteps; j < (half + 1) * kSteps; ++j) {
          uint32_t a[4];
          operand(records[r], j, a);
#pragma unroll
          for (int n = 0; n < kColumns; ++n) mma_bf16(part[n], a, x[n].b[j][0], x[n].b[j][1]);
        }
        float scale[2], bias[2];  // of rows g, g + 8
        if constexpr (is_wide(F)) {
          const uint4& s = records[r].scales[half];
          scale[0] = __uint_as_float(s.x);
          bias[0] = __uint_as_float(s.y);
          scale[1] = __uint_as_float(s.z);
          bias[1] = __uint_as_float(s.w);
        } else {
          const uint4& s = records[r].scales[0];
          scale[0] = bf16_low(s.x);
          bias[0] = bf16_high(s.x);
          scale[1] = bf16_low(s.y);
          bias[1] = bf16_high(s.y);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float shifted = fmaf(scale[i / 2], code_offset(F), bias[i / 2]);
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            acc[r][n][i] = fmaf(scale[i / 2], part[n][i], fmaf(shifted, sums[n][i % 2], acc[r][n][i]));
          }
        }
      }
    }
  }
}

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The binary tree over 8 values, neighbours first.
template <class Load>
__device__ __forceinline__ float4 tree8(Load&& load) {
  return add4(add4(add4(load(0), load(1)), add4(load(2), load(3))),
              add4(add4(load(4), load(5)), add4(load(6), load(7))));
}

}  // namespace tandem::cuda
