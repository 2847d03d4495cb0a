// Greedy choice: the highest of a row of logits.
//
// Blocks take parts of a row, the last of them to arrive the best of theirs. A maximum is the same in any
// order, so how many blocks there are is a matter of time alone.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/delta.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksOnProcessor = 4;
constexpr int kSmallestPart = 2048;  // logits of a block at least

// A logit and its token as one number: the higher, the better; of equal logits the first token.
struct Best {
  uint32_t value;  // ordered as the logit is
  uint32_t token;  // the complement of the id
};
constexpr Best kNone{0, 0};
// What no logit reaches: one of them is NaN or infinite.
constexpr uint32_t kNoNumber = 0xffffffffu;

__device__ __forceinline__ bool is_better(Best a, Best b) {
  return a.value != b.value ? a.value > b.value : a.token > b.token;
}

__device__ __forceinline__ Best best_of_warp(Best b) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Best other{__shfl_xor_sync(kAllLanes, b.value, distance),
                     __shfl_xor_sync(kAllLanes, b.token, distance)};
    if (is_better(other, b)) b = other;
  }
  return b;
}

// Thread 0 gets the best of the block.
__device__ __forceinline__ Best best_of_block(Best b) {
  __shared__ Best of_warp[kThreads / kWarp];
  b = best_of_warp(b);
  if (lane_id() == 0) of_warp[warp_id()] = b;
  __syncthreads();
  if (warp_id() == 0) b = best_of_warp(of_warp[lane_id() % (kThreads / kWarp)]);
  return b;
}

// The best of what a thread has seen, tokens ascending.
struct Seen {
  float value = -INFINITY;
  int id = 0;
  bool finite = true;

  __device__ __forceinline__ void add(float x, int i) {
    finite = finite && fabsf(x) < INFINITY;
    if (x > value) {
      value = x;
      id = i;
    }
  }
  __device__ __forceinline__ Best best() const {
    if (!finite) return {kNoNumber, 0};
    if (value == -INFINITY) return kNone;
    const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 becomes 0
    return {bits >> 31 ? ~bits : bits | 0x80000000u, ~uint32_t(id)};
  }
};

struct GreedyArgs {
  Rows logits;
  int n, part;  // logits of a row, and of a block: a multiple of 4
  bool whole_vectors;
  uint2* partials;       // [rows, blocks of a row]
  unsigned* counters;    // [rows]
  const int32_t* names;  // or null
  int32_t* ids;
  int64_t ids_stride;
};
// Blocks x of row y.
__global__ void __launch_bounds__(kThreads) choose_greedy_kernel(const __grid_constant__ GreedyArgs a) {
  wait_for_inputs();
  const int row = int(blockIdx.y), n_blocks = int(gridDim.x);
  const float* x = a.logits.row(row);
  const int first = int(blockIdx.x) * a.part, end = min(first + a.part, a.n);
  Seen seen;
  int scalar_from = first;
  if (a.whole_vectors) {
    scalar_from = first + (end - first) / 4 * 4;
#pragma unroll 4
    for (int i = first + 4 * int(threadIdx.x); i + 3 < end; i += 4 * kThreads) {
      const float4 v = *reinterpret_cast<const float4*>(x + i);
      seen.add(v.x, i);
      seen.add(v.y, i + 1);
      seen.add(v.z, i + 2);
      seen.add(v.w, i + 3);
    }
  }
  for (int i = scalar_from + int(threadIdx.x); i < end; i += kThreads) seen.add(x[i], i);
  Best best = best_of_block(seen.best());
  uint2* partials = a.partials + int64_t(row) * n_blocks;
  if (threadIdx.x == 0) partials[blockIdx.x] = {best.value, best.token};
  if (!last_arrival(a.counters + row, unsigned(n_blocks))) return;
  best = kNone;
  for (int i = int(threadIdx.x); i < n_blocks; i += kThreads) {
    const uint2 p = __ldcg(partials + i);
    if (is_better({p.x, p.y}, best)) best = {p.x, p.y};
  }
  best = best_of_block(best);
  if (threadIdx.x != 0) return;
  int32_t id = best.value == kNoNumber ? -1 : int32_t(~best.token);
  if (id >= 0 && a.names != nullptr) id = a.names[id];
  a.ids[row * a.ids_stride] = id;
}

int blocks_of_row(int n, int rows, int n_sms) {
  const int at_most = std::max(1, (kBlocksOnProcessor * n_sms + rows - 1) / rows);
  return std::min((n + kSmallestPart - 1) / kSmallestPart, at_most);
}

}  // namespace

void CudaBackend::reserve_choice(int max_rows) {
  // Blocks of all rows: the most on the card, and up to one more for each row.
  const size_t blocks = size_t(kBlocksOnProcessor * card_->info().n_sms + max_rows);
  partials_.need(blocks * sizeof(uint2), true);
  counters_.need(size_t(max_rows) * sizeof(unsigned), true);
}

void CudaBackend::do_choose_greedy(View logits, int n, View names, MutView ids) {
  const int rows = logits.rows, blocks = blocks_of_row(n, rows, card_->info().n_sms);
  const int part = ((n + blocks - 1) / blocks + 3) / 4 * 4;
  const size_t all_blocks = size_t(blocks) * size_t(rows);
  card_->launch(
      choose_greedy_kernel, {unsigned(blocks), unsigned(rows)}, kThreads, 0,
      GreedyArgs{.logits = rows_of(logits),
                 .n = n,
                 .part = part,
                 .whole_vectors = aligned16(logits.data, logits.stride),
                 .partials = reinterpret_cast<uint2*>(partials_.need(all_blocks * sizeof(uint2), may_grow())),
                 .counters =
                     reinterpret_cast<unsigned*>(counters_.need(size_t(rows) * sizeof(unsigned), may_grow())),
                 .names = static_cast<const int32_t*>(names.data),
                 .ids = static_cast<int32_t*>(ids.data),
                 .ids_stride = ids.stride});
}

}  // namespace tandem::cuda
