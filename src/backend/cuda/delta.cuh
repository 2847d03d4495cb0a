// What the kernels of a Gated DeltaNet layer share: where a slot's state, window and tape rows lie.
#pragma once

#include "backend/cuda/step_table.cuh"

namespace tandem::cuda {

constexpr int kWindow = kConvTaps - 1;  // inputs before a row that the convolution sees

// DeltaShape's sums, for the device.
__device__ __forceinline__ int key_dim(const DeltaShape& s) { return s.n_k_heads * s.d_k; }
__device__ __forceinline__ int value_dim(const DeltaShape& s) { return s.n_v_heads * s.d_v; }
__device__ __forceinline__ int conv_dim(const DeltaShape& s) { return 2 * key_dim(s) + value_dim(s); }

// Index of a row of one of a slot's two tapes.
__device__ __forceinline__ int64_t tape_row(const DeltaState& state, const SeqEntry& seq, int tape, int row) {
  return (int64_t{seq.slot} * 2 + tape) * state.tape_rows + row;
}
__device__ __forceinline__ int64_t pending_row(const DeltaState& state, const SeqEntry& seq, int i) {
  return tape_row(state, seq, seq.tape, seq.pending[i]);
}

// S of a slot's value head: [d_v, d_k].
__device__ __forceinline__ float* state_of(const DeltaShape& shape, const DeltaState& state,
                                           const SeqEntry& seq, int h) {
  return state.s + (int64_t{seq.slot} * shape.n_v_heads + h) * (int64_t{shape.d_v} * shape.d_k);
}
__device__ __forceinline__ float* window_of(const DeltaShape& shape, const DeltaState& state,
                                            const SeqEntry& seq) {
  return state.conv + int64_t{seq.slot} * kWindow * conv_dim(shape);
}

// The most rows that a sequence of the step has.
inline int most_rows(const Step& step) {
  int most = 0;
  for (const SeqStep& seq : step.seqs) most = seq.n_rows > most ? seq.n_rows : most;
  return most;
}

// Whether float4 may be read: the data and every row.
inline bool aligned16(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0;
}

}  // namespace tandem::cuda
