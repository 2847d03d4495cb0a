// exp, log1p and what is made of them, on Vec: one function each, so that the body and the tail of every loop
// agree. Included after one of vec_*.h, which gives Vec, with TD_ISA naming its namespace.
#pragma once

namespace tandem::cpu::TD_ISA {

// e^x within 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, polynomial in r (Cephes expf). Underflows gradually to
// 0, overflows to infinity; NaN stays NaN.
inline Vec exp(Vec x) {
  constexpr float kRound =
      12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
  x = max(set1(-104.0f), x);
  x = min(set1(89.0f), x);
  const Vec n = fma(x, set1(1.44269504088896341f), set1(kRound)) - set1(kRound);
  Vec r = fma(n, set1(-0.693147182464599609375f), x);
  r = fma(n, set1(1.904654323148236017e-9f), r);
  Vec p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r) + set1(1.0f);
  return scale_pow2(p, n);
}

// Natural logarithm of normal positive x within 2 ulp (Cephes logf).
inline Vec log(Vec x) {
  Vec m, e;
  split_exponent(x, m, e);
  // m in [sqrt(1/2), sqrt(2))
  const Vec low = set1(0.70710678118654752f);
  e = select_gt(low, m, e - set1(1.0f), e);
  m = select_gt(low, m, m + m, m) - set1(1.0f);
  Vec p = set1(7.0376836292e-2f);
  p = fma(p, m, set1(-1.1514610310e-1f));
  p = fma(p, m, set1(1.1676998740e-1f));
  p = fma(p, m, set1(-1.2420140846e-1f));
  p = fma(p, m, set1(1.4249322787e-1f));
  p = fma(p, m, set1(-1.6668057665e-1f));
  p = fma(p, m, set1(2.0000714765e-1f));
  p = fma(p, m, set1(-2.4999993993e-1f));
  p = fma(p, m, set1(3.3333331174e-1f));
  const Vec m2 = m * m;
  Vec y = m * m2 * p;
  y = fma(e, set1(-2.12194440e-4f), y);
  y = fma(m2, set1(-0.5f), y);
  return fma(e, set1(0.693359375f), m + y);
}

// log(1 + x) for x >= 0; the second term gives back what rounding 1 + x took.
inline Vec log1p(Vec x) {
  const Vec u = set1(1.0f) + x;
  return log(u) + (x - (u - set1(1.0f))) / u;
}

inline Vec softplus(Vec x) {
  const Vec limit = set1(20.0f);
  return select_gt(x, limit, x, log1p(exp(min(limit, x))));
}

inline Vec sigmoid(Vec x) { return set1(1.0f) / (set1(1.0f) + exp(zero() - x)); }
inline Vec silu(Vec x) { return x / (set1(1.0f) + exp(zero() - x)); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

}  // namespace tandem::cpu::TD_ISA
