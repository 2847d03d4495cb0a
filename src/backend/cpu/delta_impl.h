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

// The inputs before row r of a tree: those of the rows that it follows, then the end of the window before the
// step.
inline void inputs_above(const ConvTile& t, int r, const float* const* before, const float** x) {
  int above = t.parents[r], tap = kConvTaps - 2;
  for (; tap >= 0 && above >= 0; --tap, above = t.parents[above]) x[tap] = t.m + above * t.m_stride;
  for (int i = kConvTaps - 2; tap >= 0; --tap, --i) x[tap] = before[i];
}

// Rows outside, channels inside: rows may lie a multiple of 4096 bytes apart, where few lines of a column fit
// in L1.
inline void conv(const ConvTile& t) {
  static_assert(kConvTaps == 4);
  static constexpr float kZeros[kMaxConvChannels] = {};
  alignas(64) float w[kConvTaps][kMaxConvChannels];
  for (int c = 0; c < t.n_channels && t.n_rows > 0; c += kLanes) {
    Vec taps[kConvTaps];
    if (t.n_channels - c >= kLanes && t.weight_stride == kConvTaps) {
      load_groups_of_4(t.weight + c * kConvTaps, taps);
    } else {
      float packed[kLanes * kConvTaps] = {};
      for (int i = 0; i < kLanes && c + i < t.n_channels; ++i) {
        for (int tap = 0; tap < kConvTaps; ++tap)
          packed[i * kConvTaps + tap] = t.weight[(c + i) * t.weight_stride + tap];
      }
      load_groups_of_4(packed, taps);
    }
    for (int tap = 0; tap < kConvTaps; ++tap) store(w[tap] + c, taps[tap]);
  }
  const float* x[kConvTaps];  // the inputs under the taps; x[3] is the row's own
  for (int i = 0; i < kConvTaps - 1; ++i) x[i] = t.window[i] != nullptr ? t.window[i] : kZeros;
  // Rows move down or come from elsewhere, so that copying in ascending order never reads what it has
  // written.
  const auto keep_window = [&](float* out) {
    for (int i = 0; i < kConvTaps - 1; ++i) {
      float* to = out + i * t.window_stride;
      for (int c = 0; c < t.n_channels; c += kLanes) {
        store_up_to(to + c, load_up_to(x[i] + c, t.n_channels - c), t.n_channels - c);
      }
      x[i] = to;
    }
  };
  if (t.window_before != nullptr) keep_window(t.window_before);
  const float* const before[kConvTaps - 1] = {x[0], x[1], x[2]};
  for (int r = 0; r < t.n_rows; ++r) {
    if (t.parents != nullptr) inputs_above(t, r, before, x);
    x[3] = t.m + r * t.m_stride;
    float* out = t.out + r * t.out_stride;
    float* tape = t.tape != nullptr ? t.tape + r * t.tape_stride : nullptr;
    for (int c = 0; c < t.n_channels; c += kLanes) {
      const int n = t.n_channels - c;
      const Vec m = load_up_to(x[3] + c, n);
      Vec u = load(w[0] + c) * load_up_to(x[0] + c, n);
      u = fma(load(w[1] + c), load_up_to(x[1] + c, n), u);
      u = fma(load(w[2] + c), load_up_to(x[2] + c, n), u);
      u = fma(load(w[3] + c), m, u);
      store_up_to(out + c, silu(u), n);
      if (tape != nullptr) store_up_to(tape + c, m, n);
    }
    for (int i = 0; i < kConvTaps - 1; ++i) x[i] = x[i + 1];
  }
  if (t.window_after != nullptr) keep_window(t.window_after);
}

// y = x * rsqrt(sum x^2 + 1e-6) * scale, then zeros up to `padded` (a multiple of 16).
inline void unit_vector(const float* x, int n, int padded, float scale, float* y) {
  const Vec inv = set1(rsqrt(sum_squares(x, n) + 1e-6f) * scale);
  for (int i = 0; i < padded; i += kLanes) {
    const int m = n - i;
    store(y + i, m > 0 ? load_up_to(x + i, m) * inv : zero());
  }
}

// What the passes over a tile of state rows share: normalised keys and queries, decays.
struct DeltaRows {
  alignas(64) float k[kMaxDecodeRows][kMaxKeyDim];
  alignas(64) float q[kMaxDecodeRows][kMaxKeyDim];
  alignas(64) float g[kMaxDecodeRows];
  alignas(64) float state[kStateRows][kMaxKeyDim];  // already decayed for the coming token
  // Of a tree: the depth at which what a token leaves is kept for its later children, and the depth to go
  // back to before a token that does not follow the one before it; else -1.
  int8_t keep[kMaxDecodeRows], back[kMaxDecodeRows];
};

inline void plan_tree(const DeltaTile& t, DeltaRows& rows) {
  int8_t depth[kMaxDecodeRows];
  depth[0] = 0;
  rows.keep[0] = rows.back[0] = -1;
  for (int r = 1; r < t.n_rows; ++r) {
    const int parent = t.parents[r];
    rows.keep[r] = rows.back[r] = -1;
    depth[r] = int8_t(depth[parent] + 1);
    if (parent != r - 1) rows.keep[parent] = rows.back[r] = depth[parent];
  }
}

// Vectors j, j + 16, .. (N of them; the last has n_last lanes) of R state rows: folds what is pending and
// stores it.
template <int R, int N>
inline void fold_block(const DeltaTile& t, const float* deltas, float* s, int j, int n_last, Vec (&a)[R][N]) {
  const auto lanes = [&](int n) { return n + 1 < N ? kLanes : n_last; };
  for (int i = 0; i < R; ++i) {
    for (int n = 0; n < N; ++n)
      a[i][n] = t.fresh ? zero() : load_up_to(s + i * t.d_k + j + n * kLanes, lanes(n));
  }
  for (int p = 0; p < t.n_pending; ++p) {
    const Vec g = set1(t.fold_g[p]);
    Vec k[N];
    for (int n = 0; n < N; ++n) k[n] = load_up_to(t.fold_k[p] + j + n * kLanes, lanes(n));
    for (int i = 0; i < R; ++i) {
      const Vec delta = set1(deltas[p * kStateRows + i]);
      for (int n = 0; n < N; ++n) a[i][n] = fma(delta, k[n], g * a[i][n]);
    }
  }
  if (!t.fresh && t.n_pending == 0) return;
  for (int i = 0; i < R; ++i) {
    for (int n = 0; n < N; ++n) store_up_to(s + i * t.d_k + j + n * kLanes, a[i][n], lanes(n));
  }
}

// R state rows from row i of the tile on: fold, then the copy that the tokens run on, decayed for the first
// token, and its products with the first key.
template <int R>
inline void load_rows(const DeltaTile& t, const float* deltas, float* s, int i, DeltaRows& rows, Vec* dots) {
  const bool runs = t.n_rows > 0;
  const Vec g = runs ? set1(rows.g[0]) : zero();
  Vec dot[R];
  for (int r = 0; r < R; ++r) dot[r] = zero();
  const auto use = [&](const auto& a, int j) {
    constexpr int n_vecs = sizeof(a[0]) / sizeof(Vec);
    if (!runs) return;
    for (int n = 0; n < n_vecs; ++n) {
      const Vec k = load(rows.k[0] + j + n * kLanes);
      for (int r = 0; r < R; ++r) {
        const Vec decayed = g * a[r][n];
        store(rows.state[i + r] + j + n * kLanes, decayed);
        dot[r] = fma(decayed, k, dot[r]);
      }
    }
  };
  int j = 0;
  for (; j + 2 * kLanes <= t.d_k; j += 2 * kLanes) {
    Vec a[R][2];
    fold_block<R, 2>(t, deltas + i, s, j, kLanes, a);
    use(a, j);
  }
  for (; j < t.d_k; j += kLanes) {
    Vec a[R][1];
    fold_block<R, 1>(t, deltas + i, s, j, t.d_k - j, a);
    use(a, j);
  }
  for (int r = 0; r < R; ++r) dots[i + r] = dot[r];
}

// R rows of the copy through token `token`: the update, y, and (unless no token follows it at once) the decay
// for the next token and the products with its key. `kept` gets the updated rows if kKeep.
template <int R, bool kLast, bool kKeep>
inline void run_rows(DeltaRows& rows, int token, int padded, const float* delta, int i, float* kept,
                     Vec* dots, Vec* sums) {
  const float *k = rows.k[token], *q = rows.q[token], *next_k = kLast ? nullptr : rows.k[token + 1];
  const Vec next_g = kLast ? zero() : set1(rows.g[token + 1]);
  Vec d[R], y[R], dot[R];
  for (int r = 0; r < R; ++r) {
    d[r] = set1(delta[i + r]);
    y[r] = dot[r] = zero();
  }
  for (int j = 0; j < padded; j += kLanes) {
    const Vec kj = load(k + j), qj = load(q + j), next = kLast ? zero() : load(next_k + j);
    for (int r = 0; r < R; ++r) {
      float* at = rows.state[i + r] + j;
      const Vec s = fma(d[r], kj, load(at));
      y[r] = fma(s, qj, y[r]);
      if constexpr (kKeep) store(kept + (i + r) * padded + j, s);
      if constexpr (!kLast) {
        const Vec decayed = next_g * s;
        store(at, decayed);
        dot[r] = fma(decayed, next, dot[r]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    sums[i + r] = y[r];
    dots[i + r] = dot[r];
  }
}

// R rows of the copy back to what a token left, decayed for token `token`, and the products with its key.
template <int R>
inline void go_back(DeltaRows& rows, int token, int padded, const float* kept, int i, Vec* dots) {
  const Vec g = set1(rows.g[token]);
  Vec dot[R];
  for (int r = 0; r < R; ++r) dot[r] = zero();
  for (int j = 0; j < padded; j += kLanes) {
    const Vec k = load(rows.k[token] + j);
    for (int r = 0; r < R; ++r) {
      const Vec decayed = g * load(kept + (i + r) * padded + j);
      store(rows.state[i + r] + j, decayed);
      dot[r] = fma(decayed, k, dot[r]);
    }
  }
  for (int r = 0; r < R; ++r) dots[i + r] = dot[r];
}

// Calls f.operator()<R>(i) for rows [0, n) in blocks of kStateBlock, then one by one.
template <class F>
inline void for_state_rows(int n, F f) {
  int i = 0;
  for (; i + kStateBlock <= n; i += kStateBlock) f.template operator()<kStateBlock>(i);
  for (; i < n; ++i) f.template operator()<1>(i);
}

// Rows [first, first + n) of the state, n <= kStateRows: fold, store, then the tokens on the copy in `rows`.
template <bool kTree>
inline void delta_tile(const DeltaTile& t, int first, int n, DeltaRows& rows) {
  const int padded = round_up(t.d_k, kLanes);
  Vec dots[kStateRows], sums[kStateRows];
  float deltas[kMaxDecodeRows * kStateRows];
  for (int p = 0; p < t.n_pending; ++p) {
    for (int i = 0; i < n; ++i) deltas[p * kStateRows + i] = t.fold_delta[p][first + i];
  }
  for (int i = n; i < kStateRows; ++i) dots[i] = sums[i] = zero();
  float* s = t.s + int64_t{first} * t.d_k;
  for_state_rows(n, [&]<int R>(int i) { load_rows<R>(t, deltas, s + int64_t{i} * t.d_k, i, rows, dots); });
  alignas(64) float delta[kStateRows];
  for (int r = 0; r < t.n_rows; ++r) {
    bool last = r + 1 == t.n_rows;  // no token follows at once
    float* keep = nullptr;
    if constexpr (kTree) {
      last = last || rows.back[r + 1] >= 0;
      if (rows.keep[r] >= 0) keep = t.kept + rows.keep[r] * kStateRows * padded;
      if (rows.back[r] >= 0) {
        const float* kept = t.kept + rows.back[r] * kStateRows * padded;
        for_state_rows(n, [&]<int R>(int i) { go_back<R>(rows, r, padded, kept, i, dots); });
      }
    }
    const Vec prediction = sum_each(dots);
    const Vec d = set1(t.beta[r]) * (load_up_to(t.v[r] + first, n) - prediction);
    store(delta, d);
    store_up_to(t.delta[r] + first, d, n);
    const auto run = [&]<bool kLast, bool kKeep>() {
      for_state_rows(
          n, [&]<int R>(int i) { run_rows<R, kLast, kKeep>(rows, r, padded, delta, i, keep, dots, sums); });
    };
    if (last) {
      run.template operator()<true, false>();
    } else if (kTree && keep != nullptr) {  // a token with later children has one that follows at once
      run.template operator()<false, kTree>();
    } else {
      run.template operator()<false, false>();
    }
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
  if (t.parents != nullptr) plan_tree(t, rows);
  for (int i = 0; i < t.n_state_rows; i += kStateRows) {
    const int left = t.n_state_rows - i, n = left < kStateRows ? left : kStateRows;
    if (t.parents != nullptr) {
      delta_tile<true>(t, i, n, rows);
    } else {
      delta_tile<false>(t, i, n, rows);
    }
  }
}

}  // namespace tandem::cpu::TD_ISA
