// A step as kernels see it: in device memory at addresses that do not change, so that a recorded step reads
// the step of the day. Host side: step_stage.h.
#pragma once

#include "backend/cuda/gpu.cuh"
#include "backend/memory.h"
#include "backend/step.h"

namespace tandem::cuda {

// One sequence of a step (SeqStep).
struct SeqEntry {
  int32_t first_row, n_rows, start;
  int32_t slot, tape, n_pending;
  int32_t first_page;  // index into StepTable::pages
  int32_t is_tree;
  uint8_t pending[kMaxDecodeRows];
  int8_t parents[kMaxDecodeRows];  // of a tree; else not written
  uint8_t depth[kMaxDecodeRows];   // likewise
};

struct StepTable {
  const SeqEntry* seqs;
  const int32_t* row_seq;  // [n_rows]: index of a row's sequence
  const int32_t* pages;    // page ids, sequence after sequence
  const int32_t* ids;      // [n_rows]: tokens to embed, where the step was given some
};

// Position of row t of `seq`.
__device__ __forceinline__ int position_of(const SeqEntry& seq, int t) {
  return seq.start + (seq.is_tree ? int(seq.depth[t]) : t);
}
__device__ __forceinline__ int parent_of(const SeqEntry& seq, int t) {
  return seq.is_tree ? int(seq.parents[t]) : t - 1;
}

// fp32 rows. Nothing may be assumed of their alignment beyond 4 bytes, unless the host checked (aligned16).
struct Rows {
  const float* data;
  int64_t stride;
  __device__ __forceinline__ const float* row(int r) const { return data + r * stride; }
};
struct MutRows {
  float* data;
  int64_t stride;
  __device__ __forceinline__ float* row(int r) const { return data + r * stride; }
};
inline Rows rows_of(View v) { return {static_cast<const float*>(v.data), v.stride}; }
inline MutRows rows_of(MutView v) { return {static_cast<float*>(v.data), v.stride}; }

}  // namespace tandem::cuda
