// What the kernels of softmax attention have in common: a tile of queries of one KV head of a sequence
// against its keys and values, in prefill (attend_tile.cuh) and in decode steps (attend_rows.cuh).
#pragma once

#include "backend/cuda/activations.cuh"
#include "backend/cuda/kv_pages.cuh"

namespace tandem::cuda {

constexpr float kNoScore = -__builtin_huge_valf();

struct AttendArgs {
  StepTable table;
  Rows q, gate;  // gate: data may be null
  MutRows out;
  ActivationRows rounded;  // of a decode step, instead of `out`; groups: 0: none
  KvPages cache;
  int n_heads, n_kv_heads, d;
  float scale;
  int bidirectional, window;
  int q_aligned;          // whether four queries' dimensions may be read at once
  int n_tiles;            // of queries of a KV head of the longest sequence
  int n_rows;             // of the step
  int first_seq, n_seqs;  // the sequences that are done now
  int n_chunks;           // of keys in a decode step
  int base_is_first_row;  // partials count rows from the first of first_seq, else from row 0
  float* partials;        // [row, head, chunk]: sums [dims], highest score, sum of weights, 2 unused
};

// Chunks of keys of a decode step: 128 positions each up to 16k, 1024 up to 64k, 2048 beyond: enough of them
// to go round, few enough to merge.
__host__ __device__ __forceinline__ int chunk_begin(int chunk) {
  return chunk < 128   ? chunk * 128
         : chunk < 176 ? 16384 + (chunk - 128) * 1024
                       : 65536 + (chunk - 176) * 2048;
}
__host__ __device__ __forceinline__ int chunk_of(int position) {
  return position < 16384   ? position / 128
         : position < 65536 ? 128 + (position - 16384) / 1024
                            : 176 + (position - 65536) / 2048;
}
__host__ __device__ __forceinline__ int partial_stride(int dims) { return dims + 4; }

// key_range() of backend.h.
struct Keys {
  int first, end;
};
__device__ __forceinline__ Keys keys_of(const AttendArgs& a, const SeqEntry& seq, int t) {
  const int position = position_of(seq, t);
  Keys keys{0, a.bidirectional ? seq.start + seq.n_rows : position + 1};
  if (a.window > 0) {
    keys.first = max(0, position - a.window + 1);
    keys.end = min(keys.end, position + a.window);
  }
  return keys;
}

__device__ __forceinline__ float* partial_of(const AttendArgs& a, int row, int head, int chunk) {
  const int base = a.base_is_first_row ? a.table.seqs[a.first_seq].first_row : 0;
  return a.partials +
         ((int64_t(row - base) * a.n_heads + head) * a.n_chunks + chunk) * partial_stride(a.cache.dims);
}

// Splits a pair of fp32 in two pairs of bf16 that sum to it.
__device__ __forceinline__ void split_pair(float x, float y, uint32_t& high, uint32_t& low) {
  high = bf16_pair(x, y);
  low = bf16_pair(x - bf16_low(high), y - bf16_high(high));
}

__device__ __forceinline__ uint32_t first_of_pair(uint32_t pair, int n) {  // the first n of the pair, else 0
  return n >= 2 ? pair : n == 1 ? pair & 0xffffu : 0u;
}

__device__ __forceinline__ void put_output(const AttendArgs& a, int row, int column, float sum,
                                           float inverse) {
  float y = sum * inverse;
  if (a.gate.data != nullptr) y *= sigmoid(a.gate.row(row)[column]);
  a.out.row(row)[column] = y;
}

}  // namespace tandem::cuda
