// Vec: sixteen floats, in plain C++. The same operations, with the same results bit for bit, as vec_avx2.h
// and vec_avx512.h: kernels written on Vec sum in the same order on every instruction set.
//
// Included by kernels_portable.cc alone. No standard templates in these headers: a copy of one compiled for a
// wider instruction set could be the one that the linker keeps.
#pragma once

#include <cstdint>
#include <cstring>

namespace tandem::cpu::portable {

inline constexpr int kLanes = 16;
inline constexpr int kGemmRows = 4, kGemmVecs = 1;  // accumulators of a register tile
inline constexpr int kQueryBlock = 4;               // queries of attention that share a pass over a page
inline constexpr int kStateBlock = 1;  // state rows of the delta rule that share a pass over a key

struct Vec {
  float v[kLanes];
};

template <class F>
inline Vec make(F f) {
  Vec r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
  return r;
}
inline uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
inline float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

inline Vec zero() { return Vec{}; }
inline Vec set1(float x) {
  return make([&](int) { return x; });
}
inline Vec load(const float* p) {
  Vec r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
// The first n (0..16) floats; zeros beyond, which are not read.
inline Vec load_n(const float* p, int n) {
  return make([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store(float* p, Vec a) { std::memcpy(p, a.v, sizeof a.v); }
inline void store_n(float* p, Vec a, int n) {
  for (int i = 0; i < n && i < kLanes; ++i) p[i] = a.v[i];
}

inline Vec operator+(Vec a, Vec b) {
  return make([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec operator-(Vec a, Vec b) {
  return make([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec operator*(Vec a, Vec b) {
  return make([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec operator/(Vec a, Vec b) {
  return make([&](int i) { return a.v[i] / b.v[i]; });
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return make([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
// c - a * b, rounded once.
inline Vec fnma(Vec a, Vec b, Vec c) {
  return make([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}
// b where the two do not compare (NaN), as the x86 instructions do.
inline Vec max(Vec a, Vec b) {
  return make([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec min(Vec a, Vec b) {
  return make([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec sqrt(Vec a) {
  return make([&](int i) { return __builtin_sqrtf(a.v[i]); });
}
// a > b ? x : y, lane by lane.
inline Vec select_gt(Vec a, Vec b, Vec x, Vec y) {
  return make([&](int i) { return a.v[i] > b.v[i] ? x.v[i] : y.v[i]; });
}
// Lanes n.. become `fill`.
inline Vec keep_first(Vec a, int n, float fill) {
  return make([&](int i) { return i < n ? a.v[i] : fill; });
}
// p * 2^n for integral n in [-252, 252]; one rounding, where the result is subnormal.
inline Vec scale_pow2(Vec p, Vec n) {
  return make([&](int i) {
    const int all = n.v[i] == n.v[i] ? int(n.v[i]) : 0, half = all >> 1;
    return p.v[i] * float_of(uint32_t(half + 127) << 23) * float_of(uint32_t(all - half + 127) << 23);
  });
}
// x = mantissa * 2^exponent with mantissa in [0.5, 1), for normal positive x.
inline void split_exponent(Vec x, Vec& mantissa, Vec& exponent) {
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t u = bits_of(x.v[i]);
    exponent.v[i] = float(int(u >> 23) - 126);
    mantissa.v[i] = float_of((u & 0x7fffffu) | 0x3f000000u);
  }
}

inline float first_lane(Vec a) { return a.v[0]; }
// The one order in which lanes are added: lanes 8 apart, then 4, 2, 1.
inline float sum(Vec a) {
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
  }
  return a.v[0];
}
inline float max_lane(Vec a) {
  for (int i = 1; i < kLanes; ++i) a.v[0] = a.v[0] > a.v[i] ? a.v[0] : a.v[i];
  return a.v[0];
}
// Lane i of the result is sum(a[i]).
inline Vec sum_each(const Vec* a) {
  return make([&](int i) { return sum(a[i]); });
}
// Lane j of a[i] and lane i of a[j] change places.
inline void transpose(Vec* a) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float x = a[i].v[j];
      a[i].v[j] = a[j].v[i];
      a[j].v[i] = x;
    }
  }
}
// p holds 16 groups of four: out[t] gets element t of each.
inline void load_groups_of_4(const float* p, Vec* out) {
  for (int t = 0; t < 4; ++t) out[t] = make([&](int i) { return p[4 * i + t]; });
}

inline Vec load_bf16(const uint16_t* p) {
  return make([&](int i) { return float_of(uint32_t{p[i]} << 16); });
}
// Round to nearest, ties to even; NaN stays NaN.
inline void store_bf16(uint16_t* p, Vec a) {
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t u = bits_of(a.v[i]);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    p[i] = uint16_t(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
}
// Sixteen pairs of bf16: `first` and `second` of each.
inline void load_bf16_pairs(const uint32_t* p, Vec& first, Vec& second) {
  for (int i = 0; i < kLanes; ++i) {
    first.v[i] = float_of(p[i] << 16);
    second.v[i] = float_of(p[i] & 0xffff0000u);
  }
}

}  // namespace tandem::cpu::portable
