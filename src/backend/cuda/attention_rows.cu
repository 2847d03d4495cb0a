// Softmax attention of decode steps: a kernel over chunks of keys, and one that merges them.
#include <algorithm>

#include "backend/cuda/attend_rows.cuh"
#include "backend/cuda/cuda.h"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kMergeThreads = 256;
constexpr int kMergeDims = kGroupColumns;  // of a block
// Steps whose partial sums do not fit in this go by some of their sequences at a time.
constexpr size_t kPartialBytes = size_t{256} << 20;

// Grid: chunks times tiles of queries, KV heads, sequences.
template <int kGroups, int kTiles, bool kTrees>
__global__ void __launch_bounds__(kRowsThreads, AttendRows<kGroups, kTiles, kTrees>::kBlocksAtOnce)
    attend_rows_kernel(const __grid_constant__ AttendArgs a) {
  using Block = AttendRows<kGroups, kTiles, kTrees>;
  const SeqEntry& seq = a.table.seqs[a.first_seq + int(blockIdx.z)];
  // The longest work first: chunks far back are larger.
  const int reversed = int(gridDim.x) - 1 - int(blockIdx.x), chunk = reversed / a.n_tiles;
  Block b(a, seq, reversed % a.n_tiles * Block::kQueries);
  const Keys range = b.range();
  const int low = max(range.first / kRowsTileKeys * kRowsTileKeys, chunk_begin(chunk));
  const int high = min(range.end, chunk_begin(chunk + 1));
  let_next_start();
  // Every sequence has blocks with keys: those wait for the kernel before for all.
  if (low >= high) return;

  // Keys and values of earlier steps were complete when this kernel could start: the kernel that writes
  // those of this one lets others start after it has waited itself (prep_kernel).
  typename Block::Tile tile = b.tile_at(low, high);
  const bool is_old = tile.end <= seq.start;
  if (is_old) {
    b.start_keys(tile);
    b.start_values(tile);
  } else {
    b.prefetch_tile(tile);
  }
  b.load_ranges();
  wait_for_inputs();
  if (!is_old) {
    b.start_keys(tile);
    b.start_values(tile);
  }
  b.load_queries();
  __syncthreads();
#pragma unroll 1
  for (int begin = low; begin < high; begin += kRowsTileKeys) {
    const typename Block::Tile next = b.tile_at(begin + kRowsTileKeys, high);
    b.add_tile(tile, next);
    tile = next;
  }
  b.store(chunk);
}

// Grid: heads times kMergeDims of their dimensions, rows. Every chunk of a row is weighed by its highest
// score against the row's; a thread has four dimensions of every n-th chunk, ascending, and the n runs are
// added ascending.
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ AttendArgs a) {
  __shared__ float of_warp[2][kMergeThreads / kWarp];
  __shared__ float4 of_thread[kMergeThreads];
  let_next_start();
  const int row = int(blockIdx.y) + (a.base_is_first_row ? a.table.seqs[a.first_seq].first_row : 0);
  const bool is_row = row < a.n_rows && a.table.row_seq[row] < a.first_seq + a.n_seqs;
  const SeqEntry& seq = a.table.seqs[is_row ? a.table.row_seq[row] : 0];
  const Keys keys = is_row ? keys_of(a, seq, row - seq.first_row) : Keys{0, 1};
  const int first = chunk_of(keys.first), last = chunk_of(keys.end - 1);
  const int dims = a.cache.dims, of_block = min(dims, kMergeDims), parts = dims / of_block;
  const int head = int(blockIdx.x) / parts, first_dim = int(blockIdx.x) % parts * of_block;
  const int thread = int(threadIdx.x);
  wait_for_inputs();
  if (!is_row) return;
  auto* weights = reinterpret_cast<float*>(shared_memory());

  // What is known where is loaded at once: one trip to memory, not three.
  const int columns = of_block / 4, runs = kMergeThreads / columns, run = thread / columns;
  const int column = thread % columns;
  const int begin = first + (run - first % runs + runs) % runs;  // the first chunk that is `run` modulo runs
  const auto sums_of = [&](int c) {
    return reinterpret_cast<const float4*>(partial_of(a, row, head, c) + first_dim)[column];
  };
  // Highest score and sum of weights.
  const auto scores_of = [&](int c) {
    return *reinterpret_cast<const float2*>(partial_of(a, row, head, c) + dims);
  };
  constexpr int kEarly = 8;
  float4 early[kEarly];
  float2 own = make_float2(kNoScore, 0);  // of chunk `thread`
  if (thread >= first && thread <= last) own = scores_of(thread);
#pragma unroll
  for (int i = 0; i < kEarly; ++i) {
    early[i] = make_float4(0, 0, 0, 0);
    if (begin + i * runs <= last) early[i] = sums_of(begin + i * runs);
  }
  // A lane of the first warp writes two dimensions.
  const int dim = first_dim + 2 * thread, at = head * a.d + dim;
  const bool writes = 2 * thread < of_block && dim < a.d, writes_two = writes && dim + 1 < a.d;
  float gate[2] = {1, 1};
  if (a.gate.data != nullptr) {
    if (writes) gate[0] = sigmoid(a.gate.row(row)[at]);
    if (writes_two) gate[1] = sigmoid(a.gate.row(row)[at + 1]);
  }

  float highest = own.x;
  for (int c = thread + kMergeThreads; c <= last; c += kMergeThreads) {
    if (c >= first) highest = fmaxf(highest, scores_of(c).x);
  }
  highest = warp_max(highest);
  if (lane_id() == 0) of_warp[0][warp_id()] = highest;
  __syncthreads();
  for (int w = 0; w < kMergeThreads / kWarp; ++w) highest = fmaxf(highest, of_warp[0][w]);
  float total = 0;
  for (int c = thread; c <= last; c += kMergeThreads) {
    if (c < first) continue;
    const float2 scores = c == thread ? own : scores_of(c);
    const float weight = exp_(scores.x - highest);
    weights[c] = weight;
    total = fmaf(scores.y, weight, total);
  }
  total = warp_sum(total);
  if (lane_id() == 0) of_warp[1][warp_id()] = total;
  __syncthreads();

  float sum[4] = {};
  const auto add = [&](const float4& x, float weight) {
    sum[0] = fmaf(x.x, weight, sum[0]);
    sum[1] = fmaf(x.y, weight, sum[1]);
    sum[2] = fmaf(x.z, weight, sum[2]);
    sum[3] = fmaf(x.w, weight, sum[3]);
  };
#pragma unroll
  for (int i = 0; i < kEarly; ++i) {
    if (begin + i * runs <= last) add(early[i], weights[begin + i * runs]);
  }
#pragma unroll 8
  for (int c = begin + kEarly * runs; c <= last; c += runs) add(sums_of(c), weights[c]);
  of_thread[thread] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  __syncthreads();
  if (warp_id() != 0) return;
  total = 0;
  for (int w = 0; w < kMergeThreads / kWarp; ++w) total += of_warp[1][w];
  float2 y = make_float2(0, 0);
  if (2 * thread < of_block) {
    for (int i = 0; i < runs; ++i) {
      const float2 x = reinterpret_cast<const float2*>(of_thread + i * columns)[thread];
      y.x += x.x;
      y.y += x.y;
    }
  }
  const float inverse = 1.0f / total;
  y.x *= inverse;
  y.y *= inverse;
  if (a.gate.data != nullptr) {
    y.x *= gate[0];
    y.y *= gate[1];
  }
  if (a.rounded.groups > 0) {
    if (first_dim < a.d) {
      store_group(a.rounded, row, (head * a.d + first_dim) / kGroupColumns, y.x, y.y);
    }
    return;
  }
  if (writes) a.out.row(row)[at] = y.x;
  if (writes_two) a.out.row(row)[at + 1] = y.y;
}

// Tiles of 8 queries of a block: the fewest blocks of those that there are. Does not change what a query
// sums.
constexpr int kMostTiles = 6;
int tiles_of(int queries) {
  const int tiles = (queries + 7) / 8, blocks = (tiles + kMostTiles - 1) / kMostTiles;
  const int of_block = (tiles + blocks - 1) / blocks;
  return of_block <= 2 ? of_block : of_block <= 4 ? 4 : 6;
}

template <int kGroups, int kTiles, bool kTrees>
void launch(Card& card, dim3 grid, const AttendArgs& args) {
  card.launch(attend_rows_kernel<kGroups, kTiles, kTrees>, grid, kRowsThreads,
              sizeof(typename AttendRows<kGroups, kTiles, kTrees>::Shared), args);
}
template <int kGroups, bool kTrees>
void launch(Card& card, dim3 grid, int tiles, const AttendArgs& args) {
  if (tiles == 1) return launch<kGroups, 1, kTrees>(card, grid, args);
  if (tiles == 2) return launch<kGroups, 2, kTrees>(card, grid, args);
  if (tiles == 4) return launch<kGroups, 4, kTrees>(card, grid, args);
  launch<kGroups, 6, kTrees>(card, grid, args);
}
template <bool kTrees>
void launch(Card& card, dim3 grid, int tiles, const AttendArgs& args) {
  if (args.cache.dims == 32) return launch<1, kTrees>(card, grid, tiles, args);
  if (args.cache.dims == 64) return launch<2, kTrees>(card, grid, tiles, args);
  if (args.cache.dims == 128) return launch<4, kTrees>(card, grid, tiles, args);
  launch<8, kTrees>(card, grid, tiles, args);
}

size_t partial_bytes(const AttentionShape& shape, int n_chunks) {  // of a row
  return size_t(shape.n_heads) * size_t(n_chunks) * size_t(partial_stride(padded_head(shape.d_head))) *
         sizeof(float);
}

int n_chunks_of(int n_keys) { return chunk_of(std::max(n_keys, 1) - 1) + 1; }

}  // namespace

int most_rows_of(const Step& step) {
  int most = 0;
  for (const SeqStep& seq : step.seqs) most = std::max(most, seq.n_rows);
  return most;
}

void CudaBackend::reserve_attention(const AttentionShape& shape, int max_rows, int max_positions) {
  if (shape.n_heads == 0) return;
  const size_t of_row = partial_bytes(shape, n_chunks_of(max_positions));
  partials_.need(std::min(size_t(max_rows) * of_row, std::max(kPartialBytes, kMaxDecodeRows * of_row)), true);
}

AttendArgs CudaBackend::attend_args(const Step& step, const Attention& a) {
  const AttentionShape& shape = a.shape;
  TD_CHECK(shape.d_head <= kLargestHead, "attention heads of %d dimensions", shape.d_head);
  const bool aligned = reinterpret_cast<uintptr_t>(a.q.data) % 16 == 0 && a.q.stride % 4 == 0;
  return {.table = table(step),
          .q = rows_of(a.q),
          .gate = rows_of(a.gate),
          .out = rows_of(a.out),
          .rounded = {},
          .cache = pages_of(shape, a.cache),
          .n_heads = shape.n_heads,
          .n_kv_heads = shape.n_kv_heads,
          .d = shape.d_head,
          .scale = a.scale,
          .bidirectional = a.bidirectional ? 1 : 0,
          .window = a.window,
          .q_aligned = aligned && shape.d_head % 4 == 0 ? 1 : 0,
          .n_tiles = 0,
          .n_rows = step.n_rows,
          .first_seq = 0,
          .n_seqs = int(step.seqs.size()),
          .n_chunks = 0,
          .base_is_first_row = 0,
          .partials = nullptr};
}

void CudaBackend::attend_rows(const Step& step, const Attention& a, const ActivationRows* rounded) {
  const AttentionShape& shape = a.shape;
  AttendArgs args = attend_args(step, a);
  if (rounded != nullptr) args.rounded = *rounded;
  const int n_seqs = args.n_seqs, most_rows = most_rows_of(step);
  const bool trees = std::any_of(step.seqs.begin(), step.seqs.end(),
                                 [](const SeqStep& seq) { return !seq.parents.empty(); });
  const int queries = most_rows * (shape.n_heads / shape.n_kv_heads), tiles = tiles_of(queries);
  args.n_tiles = (queries + tiles * 8 - 1) / (tiles * 8);
  args.n_chunks = n_chunks_of(max_keys(step));
  const size_t of_row = partial_bytes(shape, args.n_chunks);
  int at_once = n_seqs;
  if (size_t(step.n_rows) * of_row > kPartialBytes) {
    at_once = std::clamp(int(kPartialBytes / (size_t(most_rows) * of_row)), 1, n_seqs);
    args.base_is_first_row = 1;
  }
  const int rows_at_once = std::min(step.n_rows, at_once * most_rows);
  args.partials = reinterpret_cast<float*>(partials_.need(size_t(rows_at_once) * of_row, may_grow()));
  const int parts = args.cache.dims / std::min(args.cache.dims, kMergeDims);
  for (; args.first_seq < n_seqs; args.first_seq += at_once) {
    args.n_seqs = std::min(at_once, n_seqs - args.first_seq);
    const dim3 grid{unsigned(args.n_tiles * args.n_chunks), unsigned(shape.n_kv_heads),
                    unsigned(args.n_seqs)};
    trees ? launch<true>(*card_, grid, tiles, args) : launch<false>(*card_, grid, tiles, args);
    card_->launch(merge_kernel,
                  {unsigned(shape.n_heads * parts), unsigned(std::min(step.n_rows, args.n_seqs * most_rows))},
                  kMergeThreads, size_t(args.n_chunks) * sizeof(float), args);
  }
}

}  // namespace tandem::cuda
