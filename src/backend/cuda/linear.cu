// Matrix products and the embedding.
//
// One kernel for 1 .. 32 rows: weights are the 16-row operand of the tensor cores, activation rows their 8
// columns, so that more rows are only more columns and no sum's order depends on them. A warp streams records
// straight from memory into registers, a few ahead, also across the tiles it works on. A tile's columns are
// cut into 8 parts, part p from floor(p groups / 8) on: k-slices are unions of parts. Parts are added in a
// binary tree over the warps of a block, in shared memory. Blocks have no sums
// in common: what waits for other blocks costs more than uneven work.
#include "backend/cuda/linear.cuh"

#include <algorithm>

#include "backend/cuda/cuda.h"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = kLinearWarps * kWarp;
constexpr int kRowsAtOnce = 32;

struct LinearArgs {
  const std::byte* weights;
  ActivationRows x;
  int n_rows, n_outputs;  // rows of x; rows of the part
  int tiles, groups, n_units;
  MutRows y;
  int first_column;
  const float* bias;  // of the part, or null
  bool add;
};

__device__ __forceinline__ void store(const LinearArgs& a, int row, int output, float v) {
  if (row >= a.n_rows || output >= a.n_outputs) return;
  if (a.bias != nullptr) v += a.bias[output];
  float* y = a.y.row(row) + a.first_column + output;
  *y = a.add ? *y + v : v;
}

// Where a warp stands in its stream of records: its part of unit after unit, one group at a time.
template <LinearFormat F, int kTiles, int kColumns>
struct Place {
  int unit, step, count;  // count: groups of the part
  const std::byte* at;    // own part of the first tile's record; other tiles lie a tile's length apart
  RowsPlace<F, kColumns> x;

  __device__ __forceinline__ void enter(const LinearArgs& a, int which) {
    unit = which;
    step = 0;
    count = 0;
    if (unit >= a.n_units) return;
    const int group = warp_id() * a.groups / kLinearWarps;
    count = (warp_id() + 1) * a.groups / kLinearWarps - group;
    at = Record<F>::own_part(a.weights + (int64_t(unit * kTiles) * a.groups + group) * record_bytes(F));
    x.enter(a.x, a.n_rows, group);
  }
};

// Where a warp takes one tile at a time, or more than 8 rows, its trips to shared memory count for more than
// its lanes' waiting for each other.
template <LinearFormat F, int kTiles, int kColumns>
using RingOf = InputRing<F, kColumns, F == LinearFormat::bf16 || (kTiles > 1 && kColumns == 1)>;

// What a block has in shared memory. sums: what its warps made of a unit, by (tile, 8 rows) fragments; twice,
// for one is read while the next is written.
template <LinearFormat F, int kTiles, int kColumns, int kAhead>
struct LinearShared {
  float4 sums[2][kLinearWarps][kTiles * kColumns][kWarp];
  alignas(16) std::byte inputs[kLinearWarps][kAhead][RingOf<F, kTiles, kColumns>::kSlotBytes];
};

// kAhead: groups whose records are on their way to registers.
template <LinearFormat F, int kTiles, int kColumns, int kAhead, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) linear_kernel(const __grid_constant__ LinearArgs a) {
  constexpr int kPairs = kTiles * kColumns;  // (tile, 8 rows) fragments of a warp
  auto& shared = *reinterpret_cast<LinearShared<F, kTiles, kColumns, kAhead>*>(shared_memory());
  const RingOf<F, kTiles, kColumns> ring(shared.inputs[warp_id()][0], a.n_rows);
  const int lane = lane_id(), warp = warp_id(), g = lane / 4, t = lane % 4;
  // Of the largest part; every warp counts as many, and a multiple of kAhead, so that a register always holds
  // the same turn.
  const int steps = ((a.groups + kLinearWarps - 1) / kLinearWarps + kAhead - 1) / kAhead * kAhead;

  using Stream = Place<F, kTiles, kColumns>;
  const int of_tile = a.groups * record_bytes(F);
  const auto fetch = [&](Record<F>(&records)[kTiles], const std::byte* at) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r) records[r].load(at + r * of_tile);
  };
  const auto next_unit = [&](Stream& p) { p.enter(a, p.unit + int(gridDim.x)); };
  Stream at, load;
  at.enter(a, int(blockIdx.x));
  load = at;
  Record<F> ahead[kAhead][kTiles];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (load.step < load.count) fetch(ahead[i], load.at);
    load.at += record_bytes(F);
    ++load.step;
  }
  wait_for_inputs();
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < load.count) ring.ask(i, load.x);
    commit_copies();
    load.x.next(a.x);
  }
  if (load.step == steps) next_unit(load);

  float acc[kTiles][kColumns][4] = {};
  int buffer = 0;
#pragma unroll 1
  while (at.unit < a.n_units) {
#pragma unroll 1
    for (int base = 0; base < steps; base += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        wait_for_copies<kAhead - 1>();
        ring.meet();
        if (base + i < at.count) {
          Input<F> x[kColumns];
#pragma unroll
          for (int n = 0; n < kColumns; ++n) x[n].take(ring, i, n);
          multiply_group<F, kTiles, kColumns>(ahead[i], x, acc);
        }
        ring.meet();  // all have taken what is replaced now
        // Activations, which are near, before weights, which are not: each by itself is quicker than both
        // together.
        if (load.step + i < load.count) ring.ask(i, load.x);
        if (load.step + i < load.count) fetch(ahead[i], load.at + i * record_bytes(F));
        load.x.next(a.x);
        commit_copies();
      }
      load.at += kAhead * record_bytes(F);
      load.step += kAhead;
      if (load.step == steps) next_unit(load);
    }
    if (load.unit >= a.n_units) let_next_start();
    auto& sums = shared.sums[buffer];
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        float(&sum)[4] = acc[r][n];
        sums[warp][r * kColumns + n][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
#pragma unroll
        for (float& v : sum) v = 0;
      }
    }
    __syncthreads();
    // The fragments, one to a warp; the warps take turns, so that none lags behind.
#pragma unroll 1
    for (int f = (warp + kLinearWarps - at.unit % kLinearWarps) % kLinearWarps; f < kPairs;
         f += kLinearWarps) {
      const float4 v = tree<kLinearWarps>([&](int w) { return sums[w][f][lane]; });
      const int output = (at.unit * kTiles + f / kColumns) * kTileRows + g, row = f % kColumns * 8 + 2 * t;
      store(a, row, output, v.x);
      store(a, row + 1, output, v.y);
      store(a, row, output + 8, v.z);
      store(a, row + 1, output + 8, v.w);
    }
    buffer ^= 1;
    next_unit(at);
  }
}

struct RoundArgs {
  Rows x;
  int k;
  ActivationRows y;
};
// A warp per row and group.
__global__ void round_rows_kernel(const __grid_constant__ RoundArgs a) {
  let_next_start();
  wait_for_inputs();
  const int group = int(blockIdx.y * (blockDim.x / kWarp)) + warp_id(), row = int(blockIdx.x);
  if (group >= a.y.groups) return;
  const float* x = a.x.row(row);
  const int c = group * kGroupColumns + 2 * lane_id();
  store_group(a.y, row, group, c < a.k ? x[c] : 0.0f, c + 1 < a.k ? x[c + 1] : 0.0f);
}

struct DenseArgs {
  const float* weights;
  Rows x;
  int n_rows, n_outputs, k, n_slices;
  MutRows y;
  int first_column;
  const float* bias;
  bool add;
};
// fp32 weights: a warp per output; lanes over the columns of a slice, then the tree over slices.
__global__ void dense_kernel(const __grid_constant__ DenseArgs a) {
  let_next_start();
  wait_for_inputs();
  const int output = int(blockIdx.x) * (int(blockDim.x) / kWarp) + warp_id(), row = int(blockIdx.y);
  if (output >= a.n_outputs) return;
  const float* w = a.weights + int64_t(output) * a.k;
  const float* x = a.x.row(row);
  const int width = a.k / a.n_slices;
  float slices[8];
  for (int s = 0; s < a.n_slices; ++s) {
    float sum = 0;
    for (int c = s * width + lane_id(); c < (s + 1) * width; c += kWarp) sum = fmaf(x[c], w[c], sum);
    slices[s] = warp_sum(sum);
  }
  for (int n = a.n_slices; n > 1; n /= 2) {
    for (int i = 0; i < n / 2; ++i) slices[i] = slices[2 * i] + slices[2 * i + 1];
  }
  if (lane_id() != 0) return;
  float v = slices[0];
  if (a.bias != nullptr) v += a.bias[output];
  float* y = a.y.row(row) + a.first_column + output;
  *y = a.add ? *y + v : v;
}

struct EmbedArgs {
  const std::byte* weights;
  const int32_t* ids;
  LinearFormat format;
  int first, n, k, groups;  // rows of the table in this part
  MutRows y;
};
// A block per row and kEmbedColumns columns.
constexpr int kEmbedColumns = 256;
__global__ void __launch_bounds__(kEmbedColumns) embed_kernel(const __grid_constant__ EmbedArgs a) {
  let_next_start();
  wait_for_inputs();
  const int id = a.ids[blockIdx.y] - a.first, c = int(blockIdx.x) * kEmbedColumns + int(threadIdx.x);
  if (id < 0 || id >= a.n || c >= a.k) return;
  a.y.row(int(blockIdx.y))[c] = weight_value(a.format, a.weights, 0, a.groups, a.k, id, c);
}

template <LinearFormat F, int kTiles, int kColumns, int kAhead, int kBlocks>
void launch_linear(Card& card, LinearArgs& args) {
  args.n_units = (args.tiles + kTiles - 1) / kTiles;
  const int blocks = std::min(args.n_units, kBlocks * card.info().n_sms);
  card.launch(linear_kernel<F, kTiles, kColumns, kAhead, kBlocks>, {unsigned(blocks)}, kThreads,
              sizeof(LinearShared<F, kTiles, kColumns, kAhead>), args);
}

template <LinearFormat F>
void launch_part(Card& card, LinearArgs& args) {
  // Tiles and rows a warp takes together, groups on their way, blocks a processor holds: by measurement
  // (bench/study/cuda_linear.cc). Whatever they are, the bits are the same. Few tiles go one to a block, some
  // more in one round of large blocks, so that all end together.
  constexpr bool kBf16 = F == LinearFormat::bf16, kWide = is_wide(F);
  const bool few = args.tiles <= 3 * card.info().n_sms, some = args.tiles <= 8 * card.info().n_sms;
  if (args.n_rows <= 8) {
    if constexpr (kBf16 || kWide) {
      if (few) return launch_linear<F, 1, 1, 2, 3>(card, args);
      if (some) return launch_linear<F, 2, 1, 2, 2>(card, args);
      return launch_linear<F, 2, 1, 1, 3>(card, args);
    } else if constexpr (is_affine8(F)) {
      if (few) return launch_linear<F, 1, 1, 3, 3>(card, args);
      if (some) return launch_linear<F, 1, 1, 2, 4>(card, args);
      return launch_linear<F, 2, 1, 1, 3>(card, args);
    } else {
      if (few) return launch_linear<F, 1, 1, 3, 3>(card, args);
      // Whole rounds of groups, if possible.
      const int of_warp = args.groups / kLinearWarps;
      if (of_warp % 5 == 0) return launch_linear<F, 2, 1, 5, 2>(card, args);
      if (of_warp > 4) return launch_linear<F, 2, 1, 4, 2>(card, args);
      return launch_linear<F, 2, 1, 2, 2>(card, args);
    }
  }
  constexpr int kPair = kWide ? 1 : 2;
  if (args.n_rows > 16) return launch_linear<F, 2, 4, kPair, 1>(card, args);
  if constexpr (kBf16) {
    if (few) return launch_linear<F, 1, 2, 2, 3>(card, args);
    return launch_linear<F, 2, 2, 1, 2>(card, args);
  }
  launch_linear<F, 2, 2, kPair, 2>(card, args);
}

}  // namespace

void CudaBackend::reserve_linear(const CudaWeight& w, int max_rows) {
  activation_rows(max_rows, w.k(), true, true, true);
  reserve_many_rows(w, max_rows);
}

ActivationRows CudaBackend::activation_rows(int rows, int k, bool bf16, bool f16, bool may_grow) {
  const int groups = (k + kGroupColumns - 1) / kGroupColumns,
            stats_rows = (rows + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
  const size_t bytes = size_t(rows) * size_t(groups) * kGroupColumns * sizeof(uint16_t);
  const size_t stats_bytes = size_t(stats_rows) * size_t(groups) * sizeof(float2);
  std::byte* memory = activations_.need(2 * bytes + stats_bytes, may_grow);
  ActivationRows out{nullptr, nullptr, nullptr, groups, stats_rows};
  if (bf16) out.bf16 = reinterpret_cast<uint16_t*>(memory);
  if (f16) {
    out.f16 = reinterpret_cast<uint16_t*>(memory + bytes);
    out.stats = reinterpret_cast<float2*>(memory + 2 * bytes);
  }
  return out;
}

ActivationRows CudaBackend::activation_rows(int rows, const CudaWeight& w) {
  return activation_rows(rows, w.k(), w.takes_bf16(), w.takes_f16(), may_grow());
}

ActivationRows CudaBackend::rounded(View x, const CudaWeight& w) {
  const ActivationRows y = activation_rows(x.rows, w);
  round_rows(x, w.k(), y);
  return y;
}

void CudaBackend::round_rows(View x, int k, const ActivationRows& y) {
  if (y.bf16 == nullptr && y.f16 == nullptr) return;
  constexpr int kRoundWarps = 4;
  card_->launch(round_rows_kernel, {unsigned(x.rows), unsigned((y.groups + kRoundWarps - 1) / kRoundWarps)},
                kRoundWarps * kWarp, 0, RoundArgs{rows_of(x), k, y});
}

void CudaBackend::product(const ActivationRows& x, View rows, const CudaWeight& w, MutView y, bool add) {
  for (const WeightPart& part : w.parts) {
    const float* bias = w.bias == nullptr ? nullptr : w.bias + part.first;
    if (part.format == LinearFormat::f32) {
      constexpr int kWarps = 4;
      card_->launch(dense_kernel, {unsigned((part.n + kWarps - 1) / kWarps), unsigned(y.rows)},
                    kWarps * kWarp, 0,
                    DenseArgs{reinterpret_cast<const float*>(part.data), rows_of(rows), y.rows, part.n, w.k(),
                              w.n_slices(), rows_of(y), part.first, bias, add});
      continue;
    }
    if (is_many(y.rows)) {
      product_of_many(x, part, bias, y, add);
      continue;
    }
    for (int first = 0; first < y.rows; first += kRowsAtOnce) {
      const int n = std::min(kRowsAtOnce, y.rows - first);
      LinearArgs args{.weights = part.data,
                      .x = x.from_row(first),
                      .n_rows = n,
                      .n_outputs = part.n,
                      .tiles = part.tiles,
                      .groups = part.groups,
                      .n_units = 0,
                      .y = rows_of(y.row_range(first, n)),
                      .first_column = part.first,
                      .bias = bias,
                      .add = add};
      by_format(part.format, [&](auto format) { launch_part<format()>(*card_, args); });
    }
  }
}

void CudaBackend::linear_rows(View x, const Weight& weight, MutView y, bool add) {
  const CudaWeight& w = ours(weight);
  product(rounded(x, w), x, w, y, add);
}

void CudaBackend::do_linear(Path, View x, const Weight& w, MutView y) { linear_rows(x, w, y, false); }
void CudaBackend::do_linear_add(Path, View x, const Weight& w, MutView residual) {
  linear_rows(x, w, residual, true);
}

void CudaBackend::do_embed(const Weight& table, std::span<const int32_t> ids, MutView y) {
  const CudaWeight& w = ours(table);
  const int32_t* on_card = ids_on_card(ids);
  for (const WeightPart& part : w.parts) {
    card_->launch(
        embed_kernel, {unsigned((w.k() + kEmbedColumns - 1) / kEmbedColumns), unsigned(y.rows)},
        kEmbedColumns, 0,
        EmbedArgs{part.data, on_card, part.format, part.first, part.n, w.k(), part.groups, rows_of(y)});
  }
}

}  // namespace tandem::cuda
