// Gated DeltaNet, decode: the causal convolution and the delta rule over the tape.
//
// A state row is d_k floats; its dot products take vectors of 16 in ascending order into one running vector,
// then the lanes (vec_*.h: sum). Fold and step share their arithmetic: s <- g s, rounded; s <- fma(delta, k,
// s).
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/rowwise_impl.h"
#include "backend/cpu/vec_math.h"

namespace tandem::cpu::TD_ISA {

// One block of up to 16 channels.
inline void conv_channels(const ConvTile& t, int c, int n) {
  Vec w[kConvTaps] = {};
  if (t.n_rows > 0 && n >= kLanes && t.weight_stride == kConvTaps) {
    load_groups_of_4(t.weight + c * kConvTaps, w);
  } else if (t.n_rows > 0) {
    float packed[kLanes * kConvTaps] = {};
    for (int i = 0; i < n && i < kLanes; ++i) {
      for (int tap = 0; tap < kConvTaps; ++tap)
        packed[i * kConvTaps + tap] = t.weight[(c + i) * t.weight_stride + tap];
    }
    load_groups_of_4(packed, w);
  }
  Vec x[kConvTaps - 1];
  for (int i = 0; i < kConvTaps - 1; ++i)
    x[i] = t.window[i] != nullptr ? load_up_to(t.window[i] + c, n) : zero();
  const auto keep_window = [&](float* out) {
    for (int i = 0; i < kConvTaps - 1; ++i) store_up_to(out + i * t.window_stride + c, x[i], n);
  };
  if (t.window_before != nullptr) keep_window(t.window_before);
  for (int r = 0; r < t.n_rows; ++r) {
    const Vec m = load_up_to(t.m + r * t.m_stride + c, n);
    if (t.tape != nullptr) store_up_to(t.tape + r * t.tape_stride + c, m, n);
    const Vec u = fma(w[3], m, fma(w[2], x[2], fma(w[1], x[1], w[0] * x[0])));
    store_up_to(t.out + r * t.out_stride + c, silu(u), n);
    x[0] = x[1];
    x[1] = x[2];
    x[2] = m;
  }
  if (t.window_after != nullptr) keep_window(t.window_after);
}

inline void conv(const ConvTile& t) {
  static_assert(kConvTaps == 4);
  for (int c = 0; c < t.n_channels; c += kLanes) conv_channels(t, c, t.n_channels - c);
}

// y = x * rsqrt(sum x^2 + 1e-6) * scale, then zeros up to `padded` (a multiple of 16).
inline void unit_vector(const float* x, int n, int padded, float scale, float* y) {
  const Vec inv = set1(rsqrt(sum_squares(x, n) + 1e-6f) * scale);
  for (int i = 0; i < padded; i += kLanes) {
    const int m = n - i;
    store(y + i, m > 0 ? load_up_to(x + i, m) * inv : zero());
  }
}

inline constexpr int kStateRows = 16;  // state rows worked on at a time: one per lane of a vector of sums

// What the passes over a tile of state rows share: normalised keys and queries, decays.
struct DeltaRows {
  alignas(64) float k[kMaxDecodeRows][kMaxKeyDim];
  alignas(64) float q[kMaxDecodeRows][kMaxKeyDim];
  alignas(64) float g[kMaxDecodeRows];
  alignas(64) float state[kStateRows][kMaxKeyDim];  // already decayed for the coming token
};

// Folds the pending tokens into state row i of the tile (of which vector j is loaded here) and stores it.
inline Vec fold_vector(const DeltaTile& t, const float* deltas, float* s, int j, int n) {
  Vec a = t.fresh ? zero() : load_up_to(s + j, n);
  for (int p = 0; p < t.n_pending; ++p) {
    a = fma(set1(deltas[p * kStateRows]), load_up_to(t.fold_k[p] + j, n), set1(t.fold_g[p]) * a);
  }
  if (t.fresh || t.n_pending > 0) store_up_to(s + j, a, n);
  return a;
}

// Rows [first, first + n) of the state, n <= kStateRows: fold, store, then the tokens on the copy in `rows`.
inline void delta_tile(const DeltaTile& t, int first, int n, DeltaRows& rows) {
  const int padded = round_up(t.d_k, kLanes);
  Vec dots[kStateRows], sums[kStateRows];
  float deltas[kMaxDecodeRows * kStateRows];
  for (int p = 0; p < t.n_pending; ++p) {
    for (int i = 0; i < n; ++i) deltas[p * kStateRows + i] = t.fold_delta[p][first + i];
  }
  const bool runs = t.n_rows > 0;
  const Vec g0 = runs ? set1(rows.g[0]) : zero();
  for (int i = 0; i < kStateRows; ++i) {
    dots[i] = zero();
    if (i >= n) continue;
    float* s = t.s + int64_t{first + i} * t.d_k;
    for (int j = 0; j < t.d_k; j += kLanes) {
      const Vec a = fold_vector(t, deltas + i, s, j, t.d_k - j);
      if (!runs) continue;
      const Vec decayed = g0 * a;
      store(rows.state[i] + j, decayed);
      dots[i] = fma(decayed, load(rows.k[0] + j), dots[i]);
    }
  }
  alignas(64) float delta[kStateRows];
  for (int r = 0; r < t.n_rows; ++r) {
    const Vec prediction = sum_each(dots);
    const Vec d = set1(t.beta[r]) * (load_up_to(t.v[r] + first, n) - prediction);
    store(delta, d);
    store_up_to(t.delta[r] + first, d, n);
    const float *k = rows.k[r], *q = rows.q[r];
    if (r + 1 < t.n_rows) {
      const float* next_k = rows.k[r + 1];
      const Vec next_g = set1(rows.g[r + 1]);
      for (int i = 0; i < n; ++i) {
        const Vec di = set1(delta[i]);
        Vec dot = zero(), y = zero();
        for (int j = 0; j < padded; j += kLanes) {
          const Vec s = fma(di, load(k + j), load(rows.state[i] + j));
          y = fma(s, load(q + j), y);
          const Vec decayed = next_g * s;
          store(rows.state[i] + j, decayed);
          dot = fma(decayed, load(next_k + j), dot);
        }
        dots[i] = dot;
        sums[i] = y;
      }
    } else {
      for (int i = 0; i < n; ++i) {
        const Vec di = set1(delta[i]);
        Vec y = zero();
        for (int j = 0; j < padded; j += kLanes) {
          y = fma(fma(di, load(k + j), load(rows.state[i] + j)), load(q + j), y);
        }
        sums[i] = y;
      }
    }
    for (int i = n; i < kStateRows; ++i) sums[i] = zero();
    store_up_to(t.y[r] + first, sum_each(sums), n);
  }
}

inline void delta_step(const DeltaTile& t) {
  DeltaRows rows;
  const int padded = round_up(t.d_k, kLanes);
  const float q_scale = rsqrt(float(t.d_k));
  for (int r = 0; r < t.n_rows; r += kLanes) {
    store_up_to(rows.g + r, exp(load_up_to(t.log_decay + r, t.n_rows - r)), t.n_rows - r);
  }
  for (int r = 0; r < t.n_rows; ++r) {
    unit_vector(t.k[r], t.d_k, padded, 1.0f, rows.k[r]);
    unit_vector(t.q[r], t.d_k, padded, q_scale, rows.q[r]);
    if (t.tape_k[r] != nullptr) {
      for (int j = 0; j < t.d_k; j += kLanes) store_up_to(t.tape_k[r] + j, load(rows.k[r] + j), t.d_k - j);
    }
    if (t.tape_g[r] != nullptr) *t.tape_g[r] = rows.g[r];
  }
  for (int i = 0; i < t.n_state_rows; i += kStateRows) {
    const int left = t.n_state_rows - i;
    delta_tile(t, i, left < kStateRows ? left : kStateRows, rows);
  }
}

}  // namespace tandem::cpu::TD_ISA
