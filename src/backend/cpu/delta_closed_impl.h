// Gated DeltaNet, decode, closed form (DeltaForm::closed): the rows of a verify step as one chunk that leaves
// S alone. The formulas, their order of summation and the work space are those of delta_chunk_impl.h; a row's
// sums run over itself and the rows before it, so its bits do not depend on how many rows follow.
#pragma once

#include "backend/cpu/delta_chunk_impl.h"

namespace tandem::cpu::TD_ISA {

inline void record_keys_and_decays(const DeltaChunks& t, const ChunkWork& w) {
  if (t.tape_k != nullptr) {
    for (int i = 0; i < t.n_rows; ++i) {
      for (int d = 0; d < t.d_k; d += kLanes) {
        store_up_to(t.tape_k + i * t.tape_k_stride + d, load(w.k + i * w.k_stride + d), t.d_k - d);
      }
    }
  }
  if (t.tape_g != nullptr) {
    alignas(64) float g[kMaxDecodeRows] = {};
    for (int i = 0; i < t.n_rows; ++i) g[i] = t.log_decay[i * t.log_decay_stride];
    for (int i = 0; i < t.n_rows; i += kLanes) store(g + i, exp(load(g + i)));
    for (int i = 0; i < t.n_rows; ++i) t.tape_g[i * t.tape_g_stride] = g[i];
  }
}

inline void record_deltas(const DeltaChunks& t, const ChunkWork& w, int panel) {
  const float* delta = w.delta + panel * kChunkTokens * kPanel;
  for (int i = 0; i < t.n_rows; ++i) {
    for (int m = 0; m < kGemmVecs; ++m) {
      const int column = panel * kPanel + m * kLanes, left = t.n_state_rows - column;
      if (left <= 0) break;
      store_up_to(t.tape_delta + i * t.tape_delta_stride + column, load(delta + i * kPanel + m * kLanes),
                  left);
    }
  }
}

inline void delta_closed(const DeltaChunks& t) {
  const ChunkWork w = chunk_work(t);
  const int n_panels = round_up(t.n_state_rows, kPanel) / kPanel, n_rows = round_up(t.n_rows, kGemmRows);
  load_state(t, w);
  load_chunk(t, w, 0, t.n_rows, round_up(t.n_rows, kPanel));
  record_keys_and_decays(t, w);
  for (int i = 0; i < n_rows; i += kGemmRows) {
    decayed_products<false>(w, t.d_k, i, w.k, w.beta, w.a);
    decayed_products<true>(w, t.d_k, i, w.q, nullptr, w.p);
  }
  for (int panel = 0; panel < n_panels; ++panel) {
    for (int i = 0; i < n_rows; i += kGemmRows) solve_rows(t, w, 0, t.n_rows, i, panel);
    for (int i = 0; i < n_rows; i += kGemmRows) output_rows(t, w, 0, t.n_rows, i, panel);
    record_deltas(t, w, panel);
  }
}

}  // namespace tandem::cpu::TD_ISA
