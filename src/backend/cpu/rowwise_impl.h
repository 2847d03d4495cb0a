// Norms, gates, rotation, the convolution of blocks and the weights of a mixture: kernels over one row.
// Sums: four running vectors take vectors 0, 1, 2, 3, 0, ... of the row; then (s0 + s1) + (s2 + s3), then the
// lanes.
#pragma once

#include <cstring>
#include <limits>

#include "backend/cpu/kernels.h"
#include "backend/cpu/vec_math.h"

namespace tandem::cpu::TD_ISA {

inline Vec load_up_to(const float* p, int n) { return n >= kLanes ? load(p) : load_n(p, n); }
inline void store_up_to(float* p, Vec a, int n) {
  if (n >= kLanes) {
    store(p, a);
  } else {
    store_n(p, a, n);
  }
}

inline float sum_squares(const float* x, int n) {
  Vec s[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Vec a = load(x + i + j * kLanes);
      s[j] = fma(a, a, s[j]);
    }
  }
  for (int j = 0; i < n; ++j, i += kLanes) {
    const Vec a = load_up_to(x + i, n - i);
    s[j] = fma(a, a, s[j]);
  }
  return sum((s[0] + s[1]) + (s[2] + s[3]));
}

inline void rms_norm(const float* x, const float* gain, float eps, int n, float* y) {
  const Vec inv = set1(rsqrt(sum_squares(x, n) / float(n) + eps));
  for (int i = 0; i < n; i += kLanes) {
    store_up_to(y + i, load_up_to(x + i, n - i) * inv * load_up_to(gain + i, n - i), n - i);
  }
}

inline void silu_mul(const float* gate, const float* up, int n, float* y) {
  for (int i = 0; i < n; i += kLanes) {
    store_up_to(y + i, silu(load_up_to(gate + i, n - i)) * load_up_to(up + i, n - i), n - i);
  }
}

inline void gated_norm(const float* o, const float* z, const float* gain, float eps, int n, float* y) {
  const Vec inv = set1(rsqrt(sum_squares(o, n) / float(n) + eps));
  for (int i = 0; i < n; i += kLanes) {
    const Vec normed = load_up_to(o + i, n - i) * inv * load_up_to(gain + i, n - i);
    store_up_to(y + i, normed * silu(load_up_to(z + i, n - i)), n - i);
  }
}

// Taps from the newest row back: a product, then a chain of fma.
inline void block_conv(const BlockConvRow& r) {
  const int groups = r.n / r.group;
  for (int g = 0; g < groups; ++g) {
    const int end = (g + 1) * r.group;
    for (int c = g * r.group; c < end; c += kLanes) {
      const int m = end - c;
      Vec sum = (load_up_to(r.base + c, m) + set1(r.dynamic[g])) * load_up_to(r.x + c, m);
      for (int t = 1; t < r.n_taps; ++t) {
        const Vec w = load_up_to(r.base + t * r.base_stride + c, m) + set1(r.dynamic[t * groups + g]);
        sum = fma(w, load_up_to(r.x - t * r.x_stride + c, m), sum);
      }
      if (r.residual != nullptr) sum = load_up_to(r.residual + c, m) + sum;
      store_up_to(r.y + c, sum, m);
    }
  }
}

inline void rotate(float* x, const float* angles, int n) {
  const int half = n / 2;
  for (int i = 0; i < half; i += kLanes) {
    const Vec a = load_up_to(x + i, half - i), b = load_up_to(x + half + i, half - i);
    const Vec c = load_up_to(angles + i, half - i), s = load_up_to(angles + half + i, half - i);
    store_up_to(x + i, fnma(b, s, a * c), half - i);
    store_up_to(x + half + i, fma(b, c, a * s), half - i);
  }
}

inline void delta_gates(const float* b, const float* a, const float* a_log, const float* dt_bias, int n,
                        float* beta, float* log_decay) {
  for (int i = 0; i < n; i += kLanes) {
    const int m = n - i;
    store_up_to(beta + i, sigmoid(load_up_to(b + i, m)), m);
    const Vec rate = softplus(load_up_to(a + i, m) + load_up_to(dt_bias + i, m));
    store_up_to(log_decay + i, (zero() - exp(load_up_to(a_log + i, m))) * rate, m);
  }
}

inline float sigmoid_of(float x) { return first_lane(sigmoid(set1(x))); }

inline void route_weights(const float* logits, int n_all, const int32_t* ids, int n_chosen, float* weights) {
  float highest = logits[ids[0]];
  for (int i = 1; i < n_chosen; ++i) highest = highest > logits[ids[i]] ? highest : logits[ids[i]];
  float total = 0;
  if (n_all > 0) {
    Vec s = zero();
    for (int i = 0; i < n_all; i += kLanes) {
      s = s + keep_first(exp(load_up_to(logits + i, n_all - i) - set1(highest)), n_all - i, 0.0f);
    }
    total = sum(s);
  }
  for (int i = 0; i < n_chosen; ++i) {
    weights[i] = first_lane(exp(set1(logits[ids[i]] - highest)));
    if (n_all == 0) total += weights[i];
  }
  for (int i = 0; i < n_chosen; ++i) weights[i] /= total;
}

inline void mix_experts(const float* const* parts, const float* weights, int n_parts, int n_slices,
                        int64_t slice_stride, int n, float* residual) {
  for (int c = 0; c < n; c += kLanes) {
    const int m = n - c;
    Vec slice[8];
    for (int s = 0; s < n_slices; ++s) {
      slice[s] = zero();
      for (int i = 0; i < n_parts; ++i) {
        slice[s] = fma(set1(weights[i]), load_up_to(parts[i] + s * slice_stride + c, m), slice[s]);
      }
    }
    for (int step = 1; step < n_slices; step *= 2) {
      for (int s = 0; s < n_slices; s += 2 * step) slice[s] = slice[s] + slice[s + step];
    }
    store_up_to(residual + c, load_up_to(residual + c, m) + slice[0], m);
  }
}

// As integers with the sign folded, floats compare in their order (but for -0 < +0, which the search by value
// puts right): one pass without branches, which the compiler turns into vectors.
inline int highest(const float* x, int n) {
  int32_t most = std::numeric_limits<int32_t>::min(), not_finite = 0;
  for (int i = 0; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    const int32_t ordered = bits ^ ((bits >> 31) & 0x7fffffff);
    most = ordered > most ? ordered : most;
    not_finite |= -int32_t((bits & 0x7f800000) == 0x7f800000);
  }
  if (not_finite != 0) return -1;
  const int32_t bits = most ^ ((most >> 31) & 0x7fffffff);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  int i = 0;
  while (x[i] != value) ++i;
  return i;
}

}  // namespace tandem::cpu::TD_ISA
