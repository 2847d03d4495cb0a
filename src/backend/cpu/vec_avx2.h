// Vec: sixteen floats in two 256-bit registers. See vec_portable.h for what each operation means.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tandem::cpu::avx2 {

inline constexpr int kLanes = 16;
inline constexpr int kGemmRows = 4, kGemmVecs = 1;
inline constexpr int kQueryBlock = 4;
inline constexpr int kStateBlock = 2;

struct Vec {
  __m256 lo, hi;
};

inline __m256i first_lanes(int n) {  // of eight
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Vec load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
inline void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline void store_n(float* p, Vec a, int n) {
  _mm256_maskstore_ps(p, first_lanes(n), a.lo);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), a.hi);
}

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec fnma(Vec a, Vec b, Vec c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
inline Vec select_gt(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}
inline Vec keep_first(Vec a, int n, float fill) {
  const __m256 f = _mm256_set1_ps(fill);
  return {_mm256_blendv_ps(f, a.lo, _mm256_castsi256_ps(first_lanes(n))),
          _mm256_blendv_ps(f, a.hi, _mm256_castsi256_ps(first_lanes(n - 8)))};
}
inline Vec scale_pow2(Vec p, Vec n) {
  const auto eight = [](__m256 x, __m256 count) {  // two factors: the exponent of one may not hold all of n
    const __m256i all = _mm256_cvtps_epi32(count), half = _mm256_srai_epi32(all, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(all, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
  };
  return {eight(p.lo, n.lo), eight(p.hi, n.hi)};
}
inline void split_exponent(Vec x, Vec& mantissa, Vec& exponent) {
  const auto eight = [](__m256 a, __m256& m, __m256& e) {
    const __m256i u = _mm256_castps_si256(a);
    e = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(u, 23), _mm256_set1_epi32(126)));
    m = _mm256_castsi256_ps(
        _mm256_or_si256(_mm256_and_si256(u, _mm256_set1_epi32(0x7fffff)), _mm256_set1_epi32(0x3f000000)));
  };
  eight(x.lo, mantissa.lo, exponent.lo);
  eight(x.hi, mantissa.hi, exponent.hi);
}

inline float first_lane(Vec a) { return _mm256_cvtss_f32(a.lo); }
inline float sum(Vec a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_lane(Vec a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline Vec sum_each(const Vec* a) {
  const auto eight_rows = [](const Vec* r) {
    __m256 x[4];
    for (int i = 0; i < 4;
         ++i) {  // lanes 8 apart, then 4 apart: x[i] holds 4 lanes of row i, then of row i + 4
      const __m256 p = _mm256_add_ps(r[i].lo, r[i].hi), q = _mm256_add_ps(r[i + 4].lo, r[i + 4].hi);
      x[i] = _mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31));
    }
    const auto halves = [](__m256 p, __m256 q) {  // 2 apart
      return _mm256_add_ps(_mm256_shuffle_ps(p, q, 0x44), _mm256_shuffle_ps(p, q, 0xee));
    };
    const __m256 y0 = halves(x[0], x[1]), y1 = halves(x[2], x[3]);
    return _mm256_add_ps(_mm256_shuffle_ps(y0, y1, 0x88), _mm256_shuffle_ps(y0, y1, 0xdd));
  };
  return {eight_rows(a), eight_rows(a + 8)};
}
inline void transpose_eight(__m256* a) {
  __m256 x[8], y[8];
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
    x[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    y[4 * i + 0] = _mm256_shuffle_ps(x[4 * i], x[4 * i + 2], 0x44);
    y[4 * i + 1] = _mm256_shuffle_ps(x[4 * i], x[4 * i + 2], 0xee);
    y[4 * i + 2] = _mm256_shuffle_ps(x[4 * i + 1], x[4 * i + 3], 0x44);
    y[4 * i + 3] = _mm256_shuffle_ps(x[4 * i + 1], x[4 * i + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    a[c] = _mm256_permute2f128_ps(y[c], y[4 + c], 0x20);
    a[4 + c] = _mm256_permute2f128_ps(y[c], y[4 + c], 0x31);
  }
}
inline void transpose(Vec* a) {
  __m256 block[4][8];  // upper left, upper right, lower left, lower right
  for (int i = 0; i < 8; ++i) {
    block[0][i] = a[i].lo;
    block[1][i] = a[i].hi;
    block[2][i] = a[8 + i].lo;
    block[3][i] = a[8 + i].hi;
  }
  for (auto& b : block) transpose_eight(b);
  for (int i = 0; i < 8; ++i) {
    a[i] = {block[0][i], block[2][i]};
    a[8 + i] = {block[1][i], block[3][i]};
  }
}
inline void load_groups_of_4(const float* p, Vec* out) {
  const auto eight = [](const float* q, __m256* t) {
    const __m256 a = _mm256_loadu_ps(q), b = _mm256_loadu_ps(q + 8), c = _mm256_loadu_ps(q + 16),
                 d = _mm256_loadu_ps(q + 24);
    // Groups 0, 2, 4, 6 in the low halves, 1, 3, 5, 7 in the high ones; then a 4 x 4 transpose in each half.
    const __m256 ac_lo = _mm256_unpacklo_ps(a, b), ac_hi = _mm256_unpackhi_ps(a, b);
    const __m256 bd_lo = _mm256_unpacklo_ps(c, d), bd_hi = _mm256_unpackhi_ps(c, d);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    t[0] = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(ac_lo, bd_lo, 0x44), order);
    t[1] = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(ac_lo, bd_lo, 0xee), order);
    t[2] = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(ac_hi, bd_hi, 0x44), order);
    t[3] = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(ac_hi, bd_hi, 0xee), order);
  };
  __m256 lo[4], hi[4];
  eight(p, lo);
  eight(p + 32, hi);
  for (int t = 0; t < 4; ++t) out[t] = {lo[t], hi[t]};
}

inline Vec load_bf16(const uint16_t* p) {
  const auto eight = [](const uint16_t* q) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  };
  return {eight(p), eight(p + 8)};
}
inline void store_bf16(uint16_t* p, Vec a) {
  const auto rounded = [](__m256 x) {
    const __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i r =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i nan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(r, nan, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  };
  const __m256i both = _mm256_packus_epi32(rounded(a.lo), rounded(a.hi));  // quads 0 2 1 3
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(both, 0xd8));
}
inline void load_bf16_pairs(const uint32_t* p, Vec& first, Vec& second) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8));
  const __m256i high = _mm256_set1_epi32(int(0xffff0000u));
  first = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  second = {_mm256_castsi256_ps(_mm256_and_si256(a, high)), _mm256_castsi256_ps(_mm256_and_si256(b, high))};
}

}  // namespace tandem::cpu::avx2
