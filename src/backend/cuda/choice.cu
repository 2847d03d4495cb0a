// Choices: the highest logits of a row.
//
// Blocks take parts of a row, the last of them to arrive the best of theirs. What is highest is so in any
// order: how many blocks there are is a matter of time alone.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/delta.cuh"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksOnProcessor = 4;
constexpr int kSmallestPart = 2048;  // logits of a block at least

// A logit and its token as one number: the higher, the better; of equal logits the first token. All are
// different, and none is 0.
using Key = unsigned long long;
constexpr Key kNone = 0;
constexpr uint32_t kNoNumber = 0xffffffffu;  // its upper half where the logit is NaN or infinite: the best

__device__ __forceinline__ Key key_of(float logit, int id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return Key{fabsf(logit) < INFINITY ? ordered : kNoNumber} << 32 | uint32_t(~id);
}
__device__ __forceinline__ bool is_number(Key key) { return uint32_t(key >> 32) != kNoNumber; }
__device__ __forceinline__ int32_t token_of(Key key) { return int32_t(~uint32_t(key)); }
__device__ __forceinline__ float logit_of(Key key) {
  const uint32_t ordered = uint32_t(key >> 32);
  return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}
__device__ __forceinline__ Key higher(Key a, Key b) { return a > b ? a : b; }

__device__ __forceinline__ Key highest_of_warp(Key key) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const uint32_t upper = __shfl_xor_sync(kAllLanes, uint32_t(key >> 32), distance);
    const uint32_t lower = __shfl_xor_sync(kAllLanes, uint32_t(key), distance);
    key = higher(key, Key{upper} << 32 | lower);
  }
  return key;
}

// Thread 0 gets the highest of the block.
__device__ __forceinline__ Key highest_of_block(Key key) {
  __shared__ Key of_warp[kThreads / kWarp];
  key = highest_of_warp(key);
  if (lane_id() == 0) of_warp[warp_id()] = key;
  __syncthreads();
  if (warp_id() == 0) key = highest_of_warp(of_warp[lane_id() % (kThreads / kWarp)]);
  return key;
}

struct GreedyArgs {
  Rows logits;
  int n, part;  // logits of a row, and of a block: a multiple of 4
  bool whole_vectors;
  Key* partials;         // [rows, blocks of a row]
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
  Key best = kNone;
  int scalar_from = first;
  if (a.whole_vectors) {
    scalar_from = first + (end - first) / 4 * 4;
#pragma unroll 4
    for (int i = first + 4 * int(threadIdx.x); i + 3 < end; i += 4 * kThreads) {
      const float4 v = *reinterpret_cast<const float4*>(x + i);
      best = higher(best, higher(higher(key_of(v.x, i), key_of(v.y, i + 1)),
                                 higher(key_of(v.z, i + 2), key_of(v.w, i + 3))));
    }
  }
  for (int i = scalar_from + int(threadIdx.x); i < end; i += kThreads) best = higher(best, key_of(x[i], i));
  best = highest_of_block(best);
  Key* partials = a.partials + int64_t(row) * n_blocks;
  if (threadIdx.x == 0) partials[blockIdx.x] = best;
  if (!last_arrival(a.counters + row, unsigned(n_blocks))) return;
  best = kNone;
  for (int i = int(threadIdx.x); i < n_blocks; i += kThreads) best = higher(best, __ldcg(partials + i));
  best = highest_of_block(best);
  if (threadIdx.x != 0) return;
  const int32_t id = token_of(best);
  a.ids[row * a.ids_stride] = !is_number(best) ? -1 : a.names != nullptr ? a.names[id] : id;
}

// The best of many keys, by a block. Of what a thread sees the highest is taken aside; the kBest-th of these
// is a bound that so many keys reach, and few others: those are sorted. Keys being different, at most kBest
// threads see any of them.
constexpr int kBest = Backend::kMostBest;
constexpr int kMostOfThread = 64;  // keys that a thread may see
constexpr int kSortedKeys = kBest * kMostOfThread;

// Sorts n keys, a power of two, the highest first.
__device__ __forceinline__ void sort_keys(Key* keys, int n) {
  for (int size = 2; size <= n; size *= 2) {
    for (int apart = size / 2; apart > 0; apart /= 2) {
      __syncthreads();
      for (int i = int(threadIdx.x); i < n / 2; i += kThreads) {
        const int low = 2 * i - (i & (apart - 1)), high = low + apart;
        const Key x = keys[low], y = keys[high];
        if ((x < y) == ((low & size) == 0)) {
          keys[low] = y;
          keys[high] = x;
        }
      }
    }
  }
  __syncthreads();
}

// visit(f): f(key) for each key that this thread sees. Leaves the best in keys[0, kBest), the highest first.
template <class Visit>
__device__ __forceinline__ void select_best(Key* keys, Visit&& visit) {
  __shared__ int n_kept;
  Key highest = kNone;
  visit([&](Key key) { highest = higher(highest, key); });
  keys[threadIdx.x] = highest;
  if (threadIdx.x == 0) n_kept = 0;
  sort_keys(keys, kThreads);
  const Key bound = higher(keys[kBest - 1], kNone + 1);
  __syncthreads();
  visit([&](Key key) {
    if (key >= bound) keys[atomicAdd(&n_kept, 1)] = key;
  });
  __syncthreads();
  const int n = n_kept;
  int size = kBest;
  while (size < n) size *= 2;
  for (int i = n + int(threadIdx.x); i < size; i += kThreads) keys[i] = kNone;
  sort_keys(keys, size);
}

struct BestArgs {
  Rows logits;
  int n, part;         // logits of a row, and of a block
  Key* partials;       // [rows, blocks of a row, kBest]
  unsigned* counters;  // [rows]
  int k;
  MutRows values;
  int32_t* ids;
  int64_t ids_stride;
};
// Blocks x of row y.
__global__ void __launch_bounds__(kThreads) choose_best_kernel(const __grid_constant__ BestArgs a) {
  wait_for_inputs();
  Key* keys = reinterpret_cast<Key*>(shared_memory());
  const int row = int(blockIdx.y), n_blocks = int(gridDim.x), thread = int(threadIdx.x);
  const float* x = a.logits.row(row);
  const int first = int(blockIdx.x) * a.part, end = min(first + a.part, a.n);
  select_best(keys, [&](auto&& see) {
#pragma unroll 8
    for (int i = first + thread; i < end; i += kThreads) see(key_of(x[i], i));
  });
  Key* partials = a.partials + int64_t(row) * n_blocks * kBest;
  if (thread < kBest) partials[int64_t(blockIdx.x) * kBest + thread] = keys[thread];
  if (!last_arrival(a.counters + row, unsigned(n_blocks))) return;
  // A thread sees neighbours: the bests of the blocks' lists are with different threads.
  const int n_keys = n_blocks * kBest, of_thread = (n_keys + kThreads - 1) / kThreads;
  select_best(keys, [&](auto&& see) {
    const int last = min((thread + 1) * of_thread, n_keys);
    for (int i = thread * of_thread; i < last; ++i) see(__ldcg(partials + i));
  });
  if (thread >= a.k) return;
  a.values.row(row)[thread] = logit_of(keys[thread]);
  a.ids[row * a.ids_stride + thread] = thread == 0 && !is_number(keys[0]) ? -1 : token_of(keys[thread]);
}

int blocks_of_row(int n, int rows, int n_sms) {
  const int at_most = std::max(1, (kBlocksOnProcessor * n_sms + rows - 1) / rows);
  return std::min((n + kSmallestPart - 1) / kSmallestPart, at_most);
}

// Blocks see at most kMostOfThread logits a thread, and the last one as many of their keys.
constexpr int kMostBlocks = kMostOfThread * kThreads / kBest;
int best_blocks_of_row(int n, int rows, int n_sms) {
  constexpr int kMostOfBlock = kMostOfThread * kThreads;
  return std::min(std::max(blocks_of_row(n, rows, n_sms), (n + kMostOfBlock - 1) / kMostOfBlock),
                  kMostBlocks);
}

}  // namespace

void CudaBackend::reserve_choice(const Reserve& largest) {
  const int rows = largest.max_rows, n_sms = card_->info().n_sms;
  int widest = 1;
  for (const Weight* w : largest.weights) widest = std::max(widest, w->n());
  size_t keys = 0;  // few rows have many blocks each
  for (int r = 1; r <= rows; ++r) {
    keys = std::max({keys, size_t(r) * size_t(blocks_of_row(widest, r, n_sms)),
                     size_t(r) * size_t(best_blocks_of_row(widest, r, n_sms)) * kBest});
  }
  partials_.need(keys * sizeof(Key), true);
  counters_.need(size_t(rows) * sizeof(unsigned), true);
}

void CudaBackend::do_choose_greedy(View logits, int n, View names, MutView ids) {
  const int rows = logits.rows, blocks = blocks_of_row(n, rows, card_->info().n_sms);
  card_->launch(choose_greedy_kernel, {unsigned(blocks), unsigned(rows)}, kThreads, 0,
                GreedyArgs{.logits = rows_of(logits),
                           .n = n,
                           .part = ((n + blocks - 1) / blocks + 3) / 4 * 4,
                           .whole_vectors = aligned16(logits.data, logits.stride),
                           .partials = choice_keys(size_t(rows) * size_t(blocks)),
                           .counters = choice_counters(rows),
                           .names = static_cast<const int32_t*>(names.data),
                           .ids = static_cast<int32_t*>(ids.data),
                           .ids_stride = ids.stride});
}

void CudaBackend::do_choose_best(View logits, int n, MutView values, MutView ids) {
  const int rows = logits.rows, blocks = best_blocks_of_row(n, rows, card_->info().n_sms);
  const int part = (n + blocks - 1) / blocks;
  TD_CHECK(part <= kMostOfThread * kThreads, "the best of %d logits", n);
  card_->launch(choose_best_kernel, {unsigned(blocks), unsigned(rows)}, kThreads, kSortedKeys * sizeof(Key),
                BestArgs{.logits = rows_of(logits),
                         .n = n,
                         .part = part,
                         .partials = choice_keys(size_t(rows) * size_t(blocks) * kBest),
                         .counters = choice_counters(rows),
                         .k = ids.cols,
                         .values = rows_of(values),
                         .ids = static_cast<int32_t*>(ids.data),
                         .ids_stride = ids.stride});
}

unsigned long long* CudaBackend::choice_keys(size_t n) {
  return reinterpret_cast<Key*>(partials_.need(n * sizeof(Key), may_grow()));
}
unsigned* CudaBackend::choice_counters(int rows) {
  return reinterpret_cast<unsigned*>(counters_.need(size_t(rows) * sizeof(unsigned), may_grow()));
}

}  // namespace tandem::cuda
