// Vec: sixteen floats in one 512-bit register. See vec_portable.h for what each operation means.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tandem::cpu::avx512 {

inline constexpr int kLanes = 16;
inline constexpr int kGemmRows = 8, kGemmVecs = 2;
inline constexpr int kQueryBlock = 8;
inline constexpr int kStateBlock = 4;

struct Vec {
  __m512 v;
};

inline __mmask16 first_lanes(int n) { return n >= kLanes ? __mmask16(0xffff) : __mmask16((1u << n) - 1u); }

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void store_n(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
inline Vec select_gt(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), y.v, x.v)};
}
inline Vec keep_first(Vec a, int n, float fill) {
  return {_mm512_mask_blend_ps(first_lanes(n < 0 ? 0 : n), _mm512_set1_ps(fill), a.v)};
}
inline Vec scale_pow2(Vec p, Vec n) { return {_mm512_scalef_ps(p.v, n.v)}; }
inline void split_exponent(Vec x, Vec& mantissa, Vec& exponent) {
  const __m512i u = _mm512_castps_si512(x.v);
  exponent.v = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(u, 23), _mm512_set1_epi32(126)));
  mantissa.v = _mm512_castsi512_ps(
      _mm512_or_si512(_mm512_and_si512(u, _mm512_set1_epi32(0x7fffff)), _mm512_set1_epi32(0x3f000000)));
}

inline float first_lane(Vec a) { return _mm512_cvtss_f32(a.v); }
inline float sum(Vec a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_lane(Vec a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline Vec sum_each(const Vec* a) {
  __m512 x[8], y[4];
  for (int i = 0; i < 8; ++i) {  // lanes 8 apart: x[i] holds 8 lanes of row 2i, then 8 of row 2i + 1
    const __m512 p = a[2 * i].v, q = a[2 * i + 1].v;
    x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x44), _mm512_shuffle_f32x4(p, q, 0xee));
  }
  for (int i = 0; i < 4; ++i) {  // 4 apart: y[i] holds 4 lanes of each of rows 4i .. 4i + 3
    y[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xdd));
  }
  const auto halves = [](__m512 p, __m512 q) {  // 2 apart
    return _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x44), _mm512_shuffle_ps(p, q, 0xee));
  };
  const __m512 z0 = halves(y[0], y[1]), z1 = halves(y[2], y[3]);
  // 1 apart: lane 4 i + m is row 4 m + i.
  const __m512 r = _mm512_add_ps(_mm512_shuffle_ps(z0, z1, 0x88), _mm512_shuffle_ps(z0, z1, 0xdd));
  return {_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), r)};
}
inline void transpose(Vec* a) {
  __m512 x[16], y[16];
  for (int i = 0; i < 8; ++i) {
    x[2 * i] = _mm512_unpacklo_ps(a[2 * i].v, a[2 * i + 1].v);
    x[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i].v, a[2 * i + 1].v);
  }
  for (int i = 0; i < 4; ++i) {  // y[4 i + c]: column c of every quad of lanes, rows 4 i .. 4 i + 3
    y[4 * i + 0] = _mm512_shuffle_ps(x[4 * i], x[4 * i + 2], 0x44);
    y[4 * i + 1] = _mm512_shuffle_ps(x[4 * i], x[4 * i + 2], 0xee);
    y[4 * i + 2] = _mm512_shuffle_ps(x[4 * i + 1], x[4 * i + 3], 0x44);
    y[4 * i + 3] = _mm512_shuffle_ps(x[4 * i + 1], x[4 * i + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    const __m512 lo = _mm512_shuffle_f32x4(y[c], y[4 + c], 0x88);       // quads 0, 2 of rows 0..7
    const __m512 hi = _mm512_shuffle_f32x4(y[8 + c], y[12 + c], 0x88);  // of rows 8..15
    const __m512 lo2 = _mm512_shuffle_f32x4(y[c], y[4 + c], 0xdd);      // quads 1, 3
    const __m512 hi2 = _mm512_shuffle_f32x4(y[8 + c], y[12 + c], 0xdd);
    a[c].v = _mm512_shuffle_f32x4(lo, hi, 0x88);
    a[8 + c].v = _mm512_shuffle_f32x4(lo, hi, 0xdd);
    a[4 + c].v = _mm512_shuffle_f32x4(lo2, hi2, 0x88);
    a[12 + c].v = _mm512_shuffle_f32x4(lo2, hi2, 0xdd);
  }
}
inline void load_groups_of_4(const float* p, Vec* out) {
  const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16), c = _mm512_loadu_ps(p + 32),
               d = _mm512_loadu_ps(p + 48);
  for (int t = 0; t < 4; ++t) {
    const __m512i at = _mm512_add_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28), _mm512_set1_epi32(t));
    const __m512 lo = _mm512_permutex2var_ps(a, at, b), hi = _mm512_permutex2var_ps(c, at, d);
    out[t].v = _mm512_mask_blend_ps(0xff00, lo, hi);
  }
}

inline Vec load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
inline void store_bf16(uint16_t* p, Vec a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __m512i nan = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  const __m512i r = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), rounded, nan);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
}
inline void load_bf16_pairs(const uint32_t* p, Vec& first, Vec& second) {
  const __m512i u = _mm512_loadu_si512(p);
  first.v = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
  second.v = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(int(0xffff0000u))));
}

}  // namespace tandem::cpu::avx512
