// How keys and values lie in a page: bf16, head after head, each as the tensor cores take it, so that a warp
// reads 512 bytes in a row and has its operands in registers.
//
// Keys, then values of a head, 64 x `dims` each (dims: those of a head rounded up to a power of two from 32
// on; keys are zero beyond the head):
//   keys    [8 blocks of 8 keys][dims / 32][key of the block][32 dims]
//   values  [4 blocks of 16 keys][dims / 16][lane g * 4 + t][8]: of dims g, g + 8 of the 16, keys 2t, 2t + 1,
//           then 2t + 8, 2t + 9 of the block
#pragma once

#include "backend/cuda/step_table.cuh"

namespace tandem::cuda {

constexpr int kLargestHead = 256;

constexpr int padded_head(int d_head) {
  int dims = 32;
  while (dims < d_head) dims *= 2;
  return dims;
}

// Of a key or a value in the memory of a head, counted in elements.
__device__ __forceinline__ int key_index(int dims, int key, int dim) {
  return (key / 8 * (dims / 32) + dim / 32) * 256 + key % 8 * 32 + dim % 32;
}
__device__ __forceinline__ int value_index(int dims, int key, int dim) {
  return kPageTokens * dims + (key / 16 * (dims / 16) + dim / 16) * 256 + (dim % 8 * 4 + key % 8 / 2) * 8 +
         (dim % 16 / 8 * 2 + key % 16 / 8) * 2 + key % 2;
}

struct KvPages {
  std::byte* pages;
  size_t page_bytes;
  int dims;

  __device__ __forceinline__ uint16_t* head(int page, int kv_head) const {
    return reinterpret_cast<uint16_t*>(pages + size_t(page) * page_bytes) +
           int64_t(kv_head) * 2 * kPageTokens * dims;
  }
};
inline KvPages pages_of(const AttentionShape& shape, const KvLayer& cache) {
  return {cache.pages, cache.page_bytes, padded_head(shape.d_head)};
}

}  // namespace tandem::cuda
