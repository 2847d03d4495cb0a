// Softmax attention: of prefill here, of decode steps in attention_rows.cu.
#include <algorithm>

#include "backend/cuda/attend_tile.cuh"
#include "backend/cuda/cuda.h"
#include "base/check.h"

namespace tandem::cuda {
namespace {

// Grid: tiles of queries, KV heads, sequences.
template <int kGroups, int kTiles>
__global__ void __launch_bounds__(kAttendThreads, kTiles <= 2 ? 2 : 1)
    attend_kernel(const __grid_constant__ AttendArgs a) {
  using Tile = AttendTile<kGroups, kTiles>;
  const SeqEntry& seq = a.table.seqs[blockIdx.z];
  // The longest work first: late rows see more.
  Tile t(a, seq, (int(gridDim.x) - 1 - int(blockIdx.x)) * Tile::kQueries);
  let_next_start();
  // Every sequence has blocks with queries: those wait for the kernel before for all.
  if (t.first_query >= t.n_queries) return;
  // Keys that any of the queries sees.
  const int written = seq.start + seq.n_rows;
  const int last_query = min(t.first_query + Tile::kQueries, t.n_queries) - 1;
  const int low = keys_of(a, seq, t.first_query / t.group).first / kTileKeys * kTileKeys;
  const int high = keys_of(a, seq, last_query / t.group).end;
  t.prefetch_tile(low, min(high, low + kTileKeys));
  wait_for_inputs();

  for (int tile = low; tile < high; tile += kTileKeys) {
    const int end = min(high, tile + kTileKeys);
    const bool has_keys = tile + warp_id() * 32 < min(end, written);
    typename Tile::template KeyBlock<4> keys;
    if (has_keys) t.start_keys(tile, keys);
    if (tile > low) t.prefetch_tile(tile, end);
    if (tile == low) t.load_queries();
    __syncthreads();  // queries are there, weights of the tile before no longer needed
    if (has_keys) t.scores_in_place(keys);
    const int n_steps = (end - tile + 15) / 16;
    t.load_first_values(tile, n_steps);
    __syncthreads();
    t.softmax(tile);
    __syncthreads();
    t.rescale();
    t.add_values(tile, n_steps, written);
  }
  t.for_sums([&](int i, int row, int head, int dim, float x, float y) {
    const float inverse = 1.0f / t.shared.total[i];
    if (dim < a.d) put_output(a, row, head * a.d + dim, x, inverse);
    if (dim + 1 < a.d) put_output(a, row, head * a.d + dim + 1, y, inverse);
  });
}

// The largest tile, in 16 queries, whose shared memory the card has. What a query sums does not depend on it.
template <int kGroups>
int most_tiles(size_t limit) {
  if (sizeof(typename AttendTile<kGroups, 4>::Shared) <= limit) return 4;
  if (sizeof(typename AttendTile<kGroups, 3>::Shared) <= limit) return 3;
  return sizeof(typename AttendTile<kGroups, 2>::Shared) <= limit ? 2 : 1;
}
int most_tiles(int dims, size_t limit) {
  if (dims == 32) return most_tiles<1>(limit);
  if (dims == 64) return most_tiles<2>(limit);
  return dims == 128 ? most_tiles<4>(limit) : most_tiles<8>(limit);
}

template <int kGroups, int kTiles>
void launch(Card& card, dim3 grid, const AttendArgs& args) {
  card.launch(attend_kernel<kGroups, kTiles>, grid, kAttendThreads,
              sizeof(typename AttendTile<kGroups, kTiles>::Shared), args);
}
template <int kGroups>
void launch(Card& card, dim3 grid, int tiles, const AttendArgs& args) {
  if (tiles == 1) return launch<kGroups, 1>(card, grid, args);
  if (tiles == 2) return launch<kGroups, 2>(card, grid, args);
  if (tiles == 3) return launch<kGroups, 3>(card, grid, args);
  return launch<kGroups, 4>(card, grid, args);
}

}  // namespace

void CudaBackend::do_attention(const Step& step, const Attention& a) {
  if (step.path == Path::decode) return attend_rows(step, a, nullptr);
  AttendArgs args = attend_args(step, a);
  // Tiles of up to 64 queries, as even as may be.
  const int queries = most_rows_of(step) * (a.shape.n_heads / a.shape.n_kv_heads);
  const int most = 16 * most_tiles(args.cache.dims, size_t(card_->info().shared_bytes));
  const int at_least = (queries + most - 1) / most;
  const int tiles = ((queries + at_least - 1) / at_least + 15) / 16;
  args.n_tiles = (queries + tiles * 16 - 1) / (tiles * 16);
  const dim3 grid{unsigned(args.n_tiles), unsigned(a.shape.n_kv_heads), unsigned(step.seqs.size())};
  if (args.cache.dims == 32) return launch<1>(*card_, grid, tiles, args);
  if (args.cache.dims == 64) return launch<2>(*card_, grid, tiles, args);
  if (args.cache.dims == 128) return launch<4>(*card_, grid, tiles, args);
  launch<8>(*card_, grid, tiles, args);
}

}  // namespace tandem::cuda
