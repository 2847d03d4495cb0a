// The loop over columns that every dense AVX-512 kernel shares. Only for files compiled with AVX-512.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "backend/cpu/linear_kernels.h"

namespace tandem::cpu::avx512 {

constexpr int kLanes = 16;
constexpr int kVectors = kTile / kLanes;

[[gnu::always_inline]] inline void ask(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

// Two rounded activations (or one and a zero) in every lane.
template <int kColumns>
[[gnu::always_inline]] inline __m512i activation_pair(const uint16_t* x) {
  if (kColumns == 1) return _mm512_set1_epi32(*x);
  int32_t pair;
  memcpy(&pair, x, 4);
  return _mm512_set1_epi32(pair);
}

// Work      kTiles x kRows x 32 fp32 sums in registers; two columns cost 2 weight vectors per tile and, for
// each row,
//           one activation and 2 kTiles (bf16 dot products) or 4 kTiles (fma) products
// Bound     few rows: memory (4,096 bytes per bf16 step and tile); many: the products, one a cycle
template <int kRows, int kTiles, class Columns>
void dense_steps(const DenseSteps<typename Columns::Value>& a) {
  const typename Columns::Value* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = a.x[r];
  const std::byte* w[kTiles];
  for (int i = 0; i < kTiles; ++i) w[i] = a.w[i];
  for (int first = 0; first < a.n_columns; first += kStep) {
    const int n = a.n_columns - first < kStep ? a.n_columns - first : kStep;
    const int64_t ahead = a.ahead;
    __m512 part[kTiles][kRows][kVectors];
#pragma GCC unroll 2
    for (int i = 0; i < kTiles; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) part[i][r][v] = _mm512_setzero_ps();
      }
    }
    int c = 0;
    for (; c + 2 <= n; c += 2) {
#pragma GCC unroll 2
      for (int i = 0; i < kTiles; ++i) {
        if (ahead != 0) {
          ask(w[i] + ahead);
          ask(w[i] + ahead + 64);
        }
        Columns::template add<kRows, 2>(w[i], x, first + c, part[i]);
      }
    }
    if (c < n) {
#pragma GCC unroll 2
      for (int i = 0; i < kTiles; ++i) Columns::template add<kRows, 1>(w[i], x, first + c, part[i]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < kTiles; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          float* acc = a.acc[i] + r * kTile + v * kLanes;
          _mm512_storeu_ps(acc, _mm512_add_ps(_mm512_loadu_ps(acc), part[i][r][v]));
        }
      }
    }
  }
}

}  // namespace tandem::cpu::avx512
