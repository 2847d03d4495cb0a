// Softmax attention: launches of attend.cuh, and the merge of chunks.
#include <algorithm>

#include "backend/cuda/attend.cuh"
#include "backend/cuda/cuda.h"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kMergeThreads = 256;
// Steps whose partial sums do not fit in this go by some of their sequences at a time.
constexpr size_t kPartialBytes = size_t{256} << 20;

// Grid: chunks times tiles of queries, KV heads, sequences.
template <int kGroups, int kTiles, bool kTrees>
__global__ void __launch_bounds__(kAttendThreads, kTiles <= 2 ? 2 : 1)
    attend_kernel(const __grid_constant__ AttendArgs a) {
  using Tile = Attend<kGroups, kTiles, kTrees>;
  const SeqEntry& seq = a.table.seqs[a.first_seq + int(blockIdx.z)];
  // The longest work first: chunks far back are larger, and late rows see more.
  const int reversed = int(gridDim.x) - 1 - int(blockIdx.x);
  const int chunk = reversed / a.n_tiles;
  Tile t(a, seq, reversed % a.n_tiles * Tile::kQueries);
  // Keys that any of the queries sees.
  const int written = seq.start + seq.n_rows;
  int low = 0, high = t.first_query < t.n_queries ? written : 0;
  if (!t.is_tree() && high > 0) {
    low = keys_of(a, seq, t.first_query / t.group).first;
    high = keys_of(a, seq, (min(t.first_query + Tile::kQueries, t.n_queries) - 1) / t.group).end;
  } else if (a.window > 0) {
    low = max(0, seq.start - a.window + 1);
  }
  low = low / kTileKeys * kTileKeys;
  if (a.n_chunks > 0) {
    low = max(low, chunk_begin(chunk));
    high = min(high, chunk_begin(chunk + 1));
  }
  let_next_start();
  // Every sequence has blocks with keys: those wait for the kernel before for all.
  if (low >= high) return;
  t.prefetch_tile(low, min(high, low + kTileKeys));
  wait_for_inputs();

  const int chain = t.is_tree() ? seq.start : written;  // places before it are positions
  for (int tile = low; tile < high; tile += kTileKeys) {
    const int end = min(high, tile + kTileKeys);
    const bool has_keys = tile + warp_id() * 32 < min(end, chain);
    typename Tile::template KeyBlock<4> keys;
    if (has_keys) t.start_keys(tile, keys);
    if (tile > low) t.prefetch_tile(tile, end);
    if (tile == low) t.load_queries();
    __syncthreads();  // queries are there, weights of the tile before no longer needed
    if (has_keys) t.scores_in_place(keys);
    // Steps that a chain does at once, then those of a tree.
    const int n_steps = (end - tile + 15) / 16;
    const int n_plain = t.is_tree() ? min(n_steps, max(seq.start - tile, 0) / 16) : n_steps;
    t.load_first_values(tile, n_plain);
    if constexpr (kTrees) {
      if (n_plain < n_steps) {
        __syncthreads();  // places from `start` on get other scores than scores_in_place gave them
        if (warp_id() * 8 < seq.n_rows) t.scores_of_tree(tile, warp_id() * 8);
        t.stage_values(written);
      }
    }
    __syncthreads();
    t.softmax(tile);
    __syncthreads();
    t.rescale();
    t.add_values(tile, n_plain, written);
    if constexpr (kTrees) {
      for (int step = n_plain; step < n_steps; ++step) t.add_values_of_tree(tile, step);
    }
  }
  if (a.n_chunks == 0) {
    t.for_sums([&](int i, int row, int head, int dim, float x, float y) {
      const float inverse = 1.0f / t.shared.total[i];
      if (dim < a.d) put_output(a, row, head * a.d + dim, x, inverse);
      if (dim + 1 < a.d) put_output(a, row, head * a.d + dim + 1, y, inverse);
    });
    return;
  }
  t.for_sums([&](int i, int row, int head, int dim, float x, float y) {
    float* partial = partial_of(a, row, head, chunk);
    *reinterpret_cast<float2*>(partial + dim) = make_float2(x, y);
    if (dim == 0) {
      *reinterpret_cast<float2*>(partial + Tile::kDims) = make_float2(t.shared.highest[i], t.shared.total[i]);
    }
  });
}

// Grid: heads, rows. Every chunk of a row is weighed by its highest score against the row's; a thread has
// four dimensions of every n-th chunk, ascending, and the n runs are added ascending.
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ AttendArgs a) {
  __shared__ float of_warp[2][kMergeThreads / kWarp];
  __shared__ float4 of_thread[kMergeThreads];
  let_next_start();
  wait_for_inputs();
  const int row = int(blockIdx.y) + (a.base_is_first_row ? a.table.seqs[a.first_seq].first_row : 0);
  if (row >= a.n_rows || a.table.row_seq[row] >= a.first_seq + a.n_seqs) return;
  const int head = int(blockIdx.x), thread = int(threadIdx.x), dims = a.cache.dims;
  const SeqEntry& seq = a.table.seqs[a.table.row_seq[row]];
  const Keys keys = keys_of(a, seq, row - seq.first_row);
  const int first = chunk_of(keys.first), last = chunk_of(keys.end - 1);
  auto* weights = reinterpret_cast<float*>(shared_memory());

  // What is known where is loaded at once: one trip to memory, not three.
  const int columns = dims / 4, runs = kMergeThreads / columns, run = thread / columns;
  const int column = thread % columns;
  const int begin = first + (run - first % runs + runs) % runs;  // the first chunk that is `run` modulo runs
  const auto sums_of = [&](int c) {
    return reinterpret_cast<const float4*>(partial_of(a, row, head, c))[column];
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
  total = 0;
  for (int w = 0; w < kMergeThreads / kWarp; ++w) total += of_warp[1][w];

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
  if (run != 0) return;
  for (int i = 1; i < runs; ++i) {
    const float4 x = of_thread[i * columns + column];
    sum[0] += x.x;
    sum[1] += x.y;
    sum[2] += x.z;
    sum[3] += x.w;
  }
  const float inverse = 1.0f / total;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column * 4 + i < a.d) put_output(a, row, head * a.d + column * 4 + i, sum[i], inverse);
  }
}

template <int kGroups, int kTiles>
size_t shared_of(bool trees) {
  return trees ? sizeof(typename Attend<kGroups, kTiles, true>::Shared)
               : sizeof(typename Attend<kGroups, kTiles, false>::Shared);
}
// The largest tile, in 16 queries, whose shared memory the card has. What a query sums does not depend on it.
template <int kGroups>
int most_tiles(size_t limit, bool trees) {
  if (shared_of<kGroups, 4>(trees) <= limit) return 4;
  if (shared_of<kGroups, 3>(trees) <= limit) return 3;
  return shared_of<kGroups, 2>(trees) <= limit ? 2 : 1;
}
int most_tiles(int dims, size_t limit, bool trees) {
  if (dims == 32) return most_tiles<1>(limit, trees);
  if (dims == 64) return most_tiles<2>(limit, trees);
  return dims == 128 ? most_tiles<4>(limit, trees) : most_tiles<8>(limit, trees);
}

// Tiles of kTiles times 16 queries.
template <int kGroups, int kTiles>
void launch(Card& card, dim3 grid, bool trees, const AttendArgs& args) {
  if (trees) {
    card.launch(attend_kernel<kGroups, kTiles, true>, grid, kAttendThreads,
                sizeof(typename Attend<kGroups, kTiles, true>::Shared), args);
  } else {
    card.launch(attend_kernel<kGroups, kTiles, false>, grid, kAttendThreads,
                sizeof(typename Attend<kGroups, kTiles, false>::Shared), args);
  }
}

template <int kGroups>
void launch(Card& card, dim3 grid, int tiles, bool trees, const AttendArgs& args) {
  if (tiles == 1) return launch<kGroups, 1>(card, grid, trees, args);
  if (tiles == 2) return launch<kGroups, 2>(card, grid, trees, args);
  if (tiles == 3) return launch<kGroups, 3>(card, grid, trees, args);
  return launch<kGroups, 4>(card, grid, trees, args);
}

void launch(Card& card, dim3 grid, int tiles, bool trees, const AttendArgs& args) {
  if (args.cache.dims == 32) return launch<1>(card, grid, tiles, trees, args);
  if (args.cache.dims == 64) return launch<2>(card, grid, tiles, trees, args);
  if (args.cache.dims == 128) return launch<4>(card, grid, tiles, trees, args);
  return launch<8>(card, grid, tiles, trees, args);
}

size_t partial_bytes(const AttentionShape& shape, int n_chunks) {  // of a row
  return size_t(shape.n_heads) * size_t(n_chunks) * size_t(partial_stride(padded_head(shape.d_head))) *
         sizeof(float);
}

int n_chunks_of(int n_keys) { return chunk_of(std::max(n_keys, 1) - 1) + 1; }

}  // namespace

void CudaBackend::reserve_attention(const AttentionShape& shape, int max_rows, int max_positions) {
  if (shape.n_heads == 0) return;
  const size_t of_row = partial_bytes(shape, n_chunks_of(max_positions));
  partials_.need(std::min(size_t(max_rows) * of_row, std::max(kPartialBytes, kMaxDecodeRows * of_row)), true);
}

void CudaBackend::do_attention(const Step& step, const Attention& a) {
  const AttentionShape& shape = a.shape;
  TD_CHECK(shape.d_head <= kLargestHead, "attention heads of %d dimensions", shape.d_head);
  const int n_seqs = int(step.seqs.size());
  int most_rows = 0;
  bool trees = false;
  for (const SeqStep& seq : step.seqs) {
    most_rows = std::max(most_rows, seq.n_rows);
    trees |= !seq.parents.empty();
  }
  // Tiles of up to 64 queries, as even as may be.
  const int queries = most_rows * (shape.n_heads / shape.n_kv_heads);
  const int most = 16 * most_tiles(padded_head(shape.d_head), size_t(card_->info().shared_bytes), trees);
  const int at_least = (queries + most - 1) / most;
  const int tiles = ((queries + at_least - 1) / at_least + 15) / 16;
  AttendArgs args{.table = table(step),
                  .q = rows_of(a.q),
                  .gate = rows_of(a.gate),
                  .out = rows_of(a.out),
                  .cache = pages_of(shape, a.cache),
                  .n_heads = shape.n_heads,
                  .n_kv_heads = shape.n_kv_heads,
                  .d = shape.d_head,
                  .scale = a.scale,
                  .bidirectional = a.bidirectional ? 1 : 0,
                  .window = a.window,
                  .n_tiles = (queries + tiles * 16 - 1) / (tiles * 16),
                  .n_rows = step.n_rows,
                  .first_seq = 0,
                  .n_seqs = n_seqs,
                  .n_chunks = 0,
                  .base_is_first_row = 0,
                  .partials = nullptr};
  const auto grid = [&](int n_chunks, int seqs) {
    return dim3{unsigned(args.n_tiles * n_chunks), unsigned(shape.n_kv_heads), unsigned(seqs)};
  };
  if (step.path == Path::prefill) return launch(*card_, grid(1, n_seqs), tiles, false, args);

  args.n_chunks = n_chunks_of(max_keys(step));
  const size_t of_row = partial_bytes(shape, args.n_chunks);
  int at_once = n_seqs;
  if (size_t(step.n_rows) * of_row > kPartialBytes) {
    at_once = std::clamp(int(kPartialBytes / (size_t(most_rows) * of_row)), 1, n_seqs);
    args.base_is_first_row = 1;
  }
  const int rows_at_once = std::min(step.n_rows, at_once * most_rows);
  args.partials = reinterpret_cast<float*>(partials_.need(size_t(rows_at_once) * of_row, may_grow()));
  for (; args.first_seq < n_seqs; args.first_seq += at_once) {
    const int seqs = std::min(at_once, n_seqs - args.first_seq);
    args.n_seqs = seqs;
    launch(*card_, grid(args.n_chunks, seqs), tiles, trees, args);
    card_->launch(merge_kernel, {unsigned(shape.n_heads), unsigned(std::min(step.n_rows, seqs * most_rows))},
                  kMergeThreads, size_t(args.n_chunks) * sizeof(float), args);
  }
}

}  // namespace tandem::cuda
