// Gated DeltaNet, prefill: the delta rule in chunks that end at absolute multiples of kChunkTokens.
//
// With G_i the sum of log decays of a chunk up to token i, and S the state before it (closed form of the
// recurrence, "Gated Delta Networks", Yang et al.):
//   A_ij = beta_i (k_i . k_j) exp(G_i - G_j), j < i;   P_ij = (q_i . k_j) exp(G_i - G_j), j <= i
//   delta_i = beta_i (v_i - exp(G_i) S k_i) - sum_{j < i} A_ij delta_j           forward substitution
//   y_i = exp(G_i) S q_i + sum_{j <= i} P_ij delta_j
//   S <- exp(G_C) S + sum_i exp(G_C - G_i) delta_i k_i^T
// All exponents are <= 0 and are formed by subtraction, so strong decay underflows to the right answer.
// Columns of delta (rows of S) are independent. Every sum runs in ascending order, one fma each, whatever the
// tiling.
#pragma once

#include "backend/cpu/delta_impl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/vec_math.h"

namespace tandem::cpu::TD_ISA {

inline constexpr int kPanel =
    kGemmVecs * kLanes;  // columns of a panel: matrices that are read along rows are cut so
using Tile = Vec[kGemmRows][kGemmVecs];

// acc += sign * a b for kGemmRows rows of a (lda apart) and one panel of b [depth, kPanel].
template <bool kNegative>
inline void multiply_add(Tile& acc, const float* a, int lda, const float* b, int depth) {
  for (int k = 0; k < depth; ++k) {
    Vec x[kGemmVecs];
    for (int n = 0; n < kGemmVecs; ++n) x[n] = load(b + k * kPanel + n * kLanes);
    for (int r = 0; r < kGemmRows; ++r) {
      const Vec w = set1(a[r * lda + k]);
      for (int n = 0; n < kGemmVecs; ++n)
        acc[r][n] = kNegative ? fnma(w, x[n], acc[r][n]) : fma(w, x[n], acc[r][n]);
    }
  }
}
inline void clear(Tile& acc) {
  for (auto& row : acc) {
    for (Vec& v : row) v = zero();
  }
}
inline void scale_rows(Tile& acc, const float* factors) {
  for (int r = 0; r < kGemmRows; ++r) {
    for (Vec& v : acc[r]) v = v * set1(factors[r]);
  }
}

// Buffers of a chunk, in the order of DeltaChunks::work. Row counts are padded to kChunkTokens with zeros.
struct ChunkWork {
  int k_stride;                  // d_k padded to 32
  float *k, *q;                  // [64, k_stride], normalised
  float* k_columns;              // [64 / kPanel] panels [d_k, kPanel]: keys across
  float* k_scaled;               // [k_stride, 64]: k_i exp(G_C - G_i), keys across
  float *a, *p;                  // [64, 64]
  float* state;                  // panels [k_stride, kPanel]: rows of S across
  float* delta;                  // panels [64, kPanel]
  float *beta, *decay, *to_end;  // [64]: beta, exp(G), exp(G_C - G)
  float *log_sum, *log_error;  // [64]: G and what rounding took from it, so that G_i - G_j is exact to an ulp
                               // after strong decays, too
};
inline ChunkWork chunk_work(const DeltaChunks& t) {
  constexpr int c = kChunkTokens;
  ChunkWork w{};
  w.k_stride = round_up(t.d_k, 32);
  const int v = round_up(t.n_state_rows, 32);
  float* at = t.work;
  const auto take = [&](int64_t n) {
    float* p = at;
    at += n;
    return p;
  };
  w.k = take(c * w.k_stride);
  w.q = take(c * w.k_stride);
  w.k_columns = take(c * w.k_stride);
  w.k_scaled = take(c * w.k_stride);
  w.a = take(c * c);
  w.p = take(c * c);
  w.state = take(int64_t{w.k_stride} * v);
  w.delta = take(int64_t{c} * v);
  w.beta = take(c);
  w.decay = take(c);
  w.to_end = take(c);
  w.log_sum = take(c);
  w.log_error = take(c);
  return w;
}

// S [n, d_k] <-> panels of its rows.
inline void load_state(const DeltaChunks& t, const ChunkWork& w) {
  for (int v = 0; v < round_up(t.n_state_rows, kPanel); v += kLanes) {
    float* panel = w.state + (v / kPanel) * w.k_stride * kPanel + v % kPanel;
    for (int d = 0; d < w.k_stride; d += kLanes) {
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const bool inside = !t.fresh && v + i < t.n_state_rows && d < t.d_k;
        block[i] = inside ? load_up_to(t.s + int64_t{v + i} * t.d_k + d, t.d_k - d) : zero();
      }
      transpose(block);
      for (int i = 0; i < kLanes; ++i) store(panel + (d + i) * kPanel, block[i]);
    }
  }
}
inline void store_state(const DeltaChunks& t, const ChunkWork& w) {
  for (int v = 0; v < t.n_state_rows; v += kLanes) {
    const float* panel = w.state + (v / kPanel) * w.k_stride * kPanel + v % kPanel;
    for (int d = 0; d < t.d_k; d += kLanes) {
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) block[i] = load(panel + (d + i) * kPanel);
      transpose(block);
      for (int i = 0; i < kLanes && v + i < t.n_state_rows; ++i) {
        store_up_to(t.s + int64_t{v + i} * t.d_k + d, block[i], t.d_k - d);
      }
    }
  }
}

// Normalised keys and queries, gates and their sums for tokens [first, first + n) of the step, and nothing in
// the chunk's places after them up to n_filled, a multiple of kPanel.
inline void load_chunk(const DeltaChunks& t, const ChunkWork& w, int first, int n, int n_filled) {
  const float q_scale = rsqrt(float(t.d_k));
  float sum = 0, error = 0;
  for (int i = 0; i < n_filled; ++i) {
    float *k = w.k + i * w.k_stride, *q = w.q + i * w.k_stride;
    if (i < n) {
      const int64_t row = first + i;
      unit_vector(t.k + row * t.row_stride, t.d_k, w.k_stride, 1.0f, k);
      unit_vector(t.q + row * t.row_stride, t.d_k, w.k_stride, q_scale, q);
      w.beta[i] = t.beta[row * t.beta_stride];
      const float l = t.log_decay[row * t.log_decay_stride], next = sum + l, part = next - sum;
      error += (sum - (next - part)) + (l - part);
      sum = next;
    } else {
      for (int d = 0; d < w.k_stride; d += kLanes) {
        store(k + d, zero());
        store(q + d, zero());
      }
      w.beta[i] = 0;
    }
    w.log_sum[i] = sum;
    w.log_error[i] = error;
  }
  for (int i = 0; i < n_filled; i += kLanes) {
    store(w.decay + i, exp(load(w.log_sum + i)));
    store(w.to_end + i, exp((set1(sum) - load(w.log_sum + i)) + (set1(error) - load(w.log_error + i))));
  }
  for (int i = 0; i < n_filled; i += kLanes) {
    float* columns = w.k_columns + (i / kPanel) * w.k_stride * kPanel + i % kPanel;
    const Vec to_end = load(w.to_end + i);
    for (int d = 0; d < w.k_stride; d += kLanes) {
      Vec block[kLanes];
      for (int j = 0; j < kLanes; ++j) block[j] = load(w.k + (i + j) * w.k_stride + d);
      transpose(block);
      for (int j = 0; j < kLanes; ++j) {
        store(columns + (d + j) * kPanel, block[j]);
        store(w.k_scaled + (d + j) * kChunkTokens + i, block[j] * to_end);
      }
    }
  }
}

// A and P: products of `rows` with the keys, times exp(G_i - G_j), zero above the diagonal. Rows from
// `first`.
template <bool kDiagonal>
inline void decayed_products(const ChunkWork& w, int d_k, int first, const float* rows, const float* factor,
                             float* out) {
  for (int j = 0; j < first + kGemmRows; j += kPanel) {
    Tile acc;
    clear(acc);
    multiply_add<false>(acc, rows + first * w.k_stride, w.k_stride,
                        w.k_columns + (j / kPanel) * w.k_stride * kPanel, d_k);
    for (int r = 0; r < kGemmRows; ++r) {
      const int i = first + r, visible = i + (kDiagonal ? 1 : 0);
      const Vec sum = set1(w.log_sum[i]), error = set1(w.log_error[i]);
      for (int n = 0; n < kGemmVecs; ++n) {
        const int column = j + n * kLanes;
        const Vec between = (sum - load(w.log_sum + column)) + (error - load(w.log_error + column));
        const Vec exponent = keep_first(between, visible - column, 0.0f);
        Vec x = acc[r][n] * exp(exponent);
        if (factor != nullptr) x = set1(factor[i]) * x;
        store(out + i * kChunkTokens + column, keep_first(x, visible - column, 0.0f));
      }
    }
  }
}

// delta for rows [first, first + kGemmRows) of the chunk and one panel of columns.
inline void solve_rows(const DeltaChunks& t, const ChunkWork& w, int token, int n, int first, int panel) {
  const float* state = w.state + panel * w.k_stride * kPanel;
  float* delta = w.delta + panel * kChunkTokens * kPanel;
  Tile acc;
  clear(acc);
  multiply_add<false>(acc, w.k + first * w.k_stride, w.k_stride, state, t.d_k);
  for (int r = 0; r < kGemmRows; ++r) {
    const int i = first + r;
    for (int m = 0; m < kGemmVecs; ++m) {
      const int column = panel * kPanel + m * kLanes, left = t.n_state_rows - column;
      const Vec v =
          i < n && left > 0 ? load_up_to(t.v + int64_t{token + i} * t.row_stride + column, left) : zero();
      acc[r][m] = set1(w.beta[i]) * fnma(set1(w.decay[i]), acc[r][m], v);
    }
  }
  multiply_add<true>(acc, w.a + first * kChunkTokens, kChunkTokens, delta, first);
  for (int r = 0; r < kGemmRows; ++r) {
    for (int earlier = 0; earlier < r; ++earlier) {
      const Vec a = set1(w.a[(first + r) * kChunkTokens + first + earlier]);
      for (int m = 0; m < kGemmVecs; ++m) acc[r][m] = fnma(a, acc[earlier][m], acc[r][m]);
    }
    for (int m = 0; m < kGemmVecs; ++m) store(delta + (first + r) * kPanel + m * kLanes, acc[r][m]);
  }
}

inline void output_rows(const DeltaChunks& t, const ChunkWork& w, int token, int n, int first, int panel) {
  Tile acc;
  clear(acc);
  multiply_add<false>(acc, w.q + first * w.k_stride, w.k_stride, w.state + panel * w.k_stride * kPanel,
                      t.d_k);
  scale_rows(acc, w.decay + first);
  multiply_add<false>(acc, w.p + first * kChunkTokens, kChunkTokens, w.delta + panel * kChunkTokens * kPanel,
                      first + kGemmRows);
  for (int r = 0; r < kGemmRows && first + r < n; ++r) {
    for (int m = 0; m < kGemmVecs; ++m) {
      const int column = panel * kPanel + m * kLanes, left = t.n_state_rows - column;
      if (left > 0) store_up_to(t.y + int64_t{token + first + r} * t.y_stride + column, acc[r][m], left);
    }
  }
}

inline void advance_state(const ChunkWork& w, int n_rows, int d, int panel) {
  float* state = w.state + (panel * w.k_stride + d) * kPanel;
  const Vec decay = set1(w.decay[kChunkTokens - 1]);
  Tile acc;
  for (int r = 0; r < kGemmRows; ++r) {
    for (int m = 0; m < kGemmVecs; ++m) acc[r][m] = load(state + r * kPanel + m * kLanes) * decay;
  }
  multiply_add<false>(acc, w.k_scaled + d * kChunkTokens, kChunkTokens,
                      w.delta + panel * kChunkTokens * kPanel, n_rows);
  for (int r = 0; r < kGemmRows; ++r) {
    for (int m = 0; m < kGemmVecs; ++m) store(state + r * kPanel + m * kLanes, acc[r][m]);
  }
}

inline void delta_chunks(const DeltaChunks& t) {
  const ChunkWork w = chunk_work(t);
  const int n_panels = round_up(t.n_state_rows, kPanel) / kPanel;
  load_state(t, w);
  for (int token = 0; token < t.n_rows;) {
    const int to_border = kChunkTokens - (t.start + token) % kChunkTokens;
    const int n = t.n_rows - token < to_border ? t.n_rows - token : to_border;
    const int n_rows = round_up(n, kGemmRows);
    load_chunk(t, w, token, n, kChunkTokens);
    for (int i = 0; i < n_rows; i += kGemmRows) {
      decayed_products<false>(w, t.d_k, i, w.k, w.beta, w.a);
      decayed_products<true>(w, t.d_k, i, w.q, nullptr, w.p);
    }
    for (int panel = 0; panel < n_panels; ++panel) {
      for (int i = 0; i < n_rows; i += kGemmRows) solve_rows(t, w, token, n, i, panel);
      for (int i = 0; i < n_rows; i += kGemmRows) output_rows(t, w, token, n, i, panel);
      for (int d = 0; d < t.d_k; d += kGemmRows) advance_state(w, n_rows, d, panel);
    }
    token += n;
  }
  store_state(t, w);
}

}  // namespace tandem::cpu::TD_ISA
