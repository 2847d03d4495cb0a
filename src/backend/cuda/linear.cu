// Matrix products and the embedding.
//
// One kernel for 1 .. 32 rows: weights are the 16-row operand of the tensor cores, activation rows their 8
// columns, so that more rows are only more columns and no sum's order depends on them. A warp streams records
// straight from memory into registers, a few ahead. A block's 8 warps take 8 consecutive parts of the
// columns; with n_splits blocks to a tile there are 8 n_splits parts, part p from floor(p groups / (8
// n_splits)) on: k-slices are unions of parts. Parts are added in a binary tree, over warps in shared memory,
// over blocks by the last to arrive.
#include "backend/cuda/linear.cuh"

#include <algorithm>

#include "backend/cuda/cuda.h"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = kLinearWarps * kWarp;
constexpr int kBlocksPerProcessor = 2;
constexpr int kRowsAtOnce = 32;

struct LinearArgs {
  const std::byte* weights;
  ActivationRows x;
  int n_rows, n_outputs;  // rows of x; rows of the part
  int tiles, groups, n_splits, n_units;
  float4* partials;    // [unit, split, pair, lane]
  unsigned* counters;  // [unit, pair]
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

// Where a warp stands in its stream of records: item after item, one group at a time.
template <int kTiles>
struct Place {
  int item, step, count;  // count: groups of this warp's part of the item
  int group;              // the first of them
  const std::byte* at[kTiles];

  __device__ __forceinline__ void enter(const LinearArgs& a, int bytes_of_record) {
    if (item >= a.n_units * a.n_splits) return;
    const int unit = item / a.n_splits, n_parts = a.n_splits * kLinearWarps;
    const int part = (item - unit * a.n_splits) * kLinearWarps + warp_id();
    group = part * a.groups / n_parts;
    count = (part + 1) * a.groups / n_parts - group;
    step = 0;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      const int tile =
          min(unit * kTiles + r, a.tiles - 1);  // the last unit may have a tile too many: not stored
      at[r] = a.weights + (int64_t(tile) * a.groups + group) * bytes_of_record;
    }
  }
};

template <LinearFormat F, int kTiles, int kColumns, int kAhead>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    linear_kernel(const __grid_constant__ LinearArgs a) {
  constexpr int kPairs = kTiles * kColumns;  // (tile, 8 rows): fragments that the warps hold parts of
  __shared__ float4 of_warps[2][kLinearWarps][kPairs][kWarp];
  const int lane = lane_id(), warp = warp_id(), g = lane / 4, t = lane % 4;
  const int n_items = a.n_units * a.n_splits, n_parts = a.n_splits * kLinearWarps;
  const int steps = (a.groups + n_parts - 1) / n_parts;  // of the largest part: every warp takes as many

  Record<F> ahead[kAhead][kTiles];
  Place<kTiles> load{int(blockIdx.x), 0, 0, 0, {}};
  load.enter(a, record_bytes(F));
  const auto fetch = [&](Record<F>(&records)[kTiles]) {
    if (load.item >= n_items) return;
    if (load.step < load.count) {
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        records[r].load(load.at[r]);
        load.at[r] += record_bytes(F);
      }
    }
    if (++load.step == steps) {
      load.item += int(gridDim.x);
      load.enter(a, record_bytes(F));
      if (load.item >= n_items) let_next_start();
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch(ahead[i]);
  wait_for_inputs();

  float acc[kTiles][kColumns][4] = {};
  int buffer = 0;
  const auto finish = [&](int item) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        of_warps[buffer][warp][r * kColumns + n][lane] =
            make_float4(acc[r][n][0], acc[r][n][1], acc[r][n][2], acc[r][n][3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[r][n][i] = 0;
      }
    }
    __syncthreads();
    const int unit = item / a.n_splits;
    // One warp per pair; the warps take turns, so that none lags behind.
    const int pair = (warp + kLinearWarps - item % kLinearWarps) % kLinearWarps;
    if (pair < kPairs) {
      float4 v = tree8([&](int w) { return of_warps[buffer][w][pair][lane]; });
      bool whole = true;
      if (a.n_splits > 1) {
        a.partials[(int64_t(item) * kPairs + pair) * kWarp + lane] = v;
        __threadfence();
        __syncwarp();
        unsigned arrived = 0;
        if (lane == 0) arrived = atomicAdd(&a.counters[unit * kPairs + pair], 1u);
        whole = __shfl_sync(kAllLanes, arrived, 0) == unsigned(a.n_splits) - 1;
        if (whole) {
          if (lane == 0) a.counters[unit * kPairs + pair] = 0;
          __threadfence();
          float4 levels[4];  // a binary counter: levels[i] holds a sum of 2^i splits
          for (int s = 0; s < a.n_splits; ++s) {
            v = __ldcg(&a.partials[((int64_t(unit) * a.n_splits + s) * kPairs + pair) * kWarp + lane]);
            int level = 0;
            for (; s >> level & 1; ++level) v = add4(levels[level], v);
            if (level < 4) levels[level] = v;
          }
        }
      }
      if (whole) {
        const int output = (unit * kTiles + pair / kColumns) * kTileRows + g,
                  row = pair % kColumns * 8 + 2 * t;
        store(a, row, output, v.x);
        store(a, row + 1, output, v.y);
        store(a, row, output + 8, v.z);
        store(a, row + 1, output + 8, v.w);
      }
    }
    buffer ^= 1;
  };

  Place<kTiles> at{int(blockIdx.x), 0, 0, 0, {}};
  at.enter(a, record_bytes(F));
  while (at.item < n_items) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (at.item >= n_items) break;
      if (at.step < at.count) {
        Input<F> x[kColumns];
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
          x[n].load(a.x, n * 8 + g, n * 8 + g < a.n_rows, at.group + at.step);
        multiply_group<F, kTiles, kColumns>(ahead[i], x, acc);
      }
      fetch(ahead[i]);
      if (++at.step == steps) {
        finish(at.item);
        at.item += int(gridDim.x);
        at.enter(a, record_bytes(F));
      }
    }
  }
}

struct RoundArgs {
  Rows x;
  int k;
  ActivationRows y;
};
// A warp per row and group.
__global__ void round_rows_kernel(const __grid_constant__ RoundArgs a) {
  wait_for_inputs();
  const int group = int(blockIdx.x * (blockDim.x / kWarp)) + warp_id(), row = int(blockIdx.y);
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
__global__ void embed_kernel(const __grid_constant__ EmbedArgs a) {
  wait_for_inputs();
  const int id = a.ids[blockIdx.x] - a.first;
  if (id < 0 || id >= a.n) return;
  float* y = a.y.row(int(blockIdx.x));
  for (int c = int(threadIdx.x); c < a.k; c += int(blockDim.x)) {
    y[c] = weight_value(a.format, a.weights, 0, a.groups, a.k, id, c);
  }
}

template <LinearFormat F>
void launch_part(Card& card, LinearArgs args) {
  const int columns = args.n_rows <= 8 ? 1 : args.n_rows <= 16 ? 2 : 4;
  // Two tiles share the reading of activations, where there are enough to go round.
  const int most_blocks = kBlocksPerProcessor * card.info().n_sms;
  const bool two = args.tiles * args.n_splits >= 2 * most_blocks;
  args.n_units = two ? (args.tiles + 1) / 2 : args.tiles;
  const unsigned blocks = unsigned(std::min(args.n_units * args.n_splits, most_blocks));
  const auto go = [&](auto kernel) { card.launch(kernel, {blocks}, kThreads, 0, args); };
  constexpr int kFew = is_wide(F) ? 1 : F == LinearFormat::bf16 ? 2 : is_affine8(F) ? 3 : 4;
  if (columns == 1) return two ? go(linear_kernel<F, 2, 1, kFew>) : go(linear_kernel<F, 1, 1, 2 * kFew>);
  if (columns == 2) return two ? go(linear_kernel<F, 2, 2, kFew>) : go(linear_kernel<F, 1, 2, 2 * kFew>);
  return two ? go(linear_kernel<F, 2, 4, (kFew + 1) / 2>) : go(linear_kernel<F, 1, 4, kFew>);
}

}  // namespace

void CudaBackend::reserve_linear(const CudaWeight& w, int max_rows) {
  activation_rows(max_rows, w.k(), true, true, true);
  for (const WeightPart& part : w.parts) {
    if (part.n_splits == 1) continue;
    constexpr int kMostColumns = kRowsAtOnce / 8;
    const size_t pairs = size_t(part.tiles + 1) * kMostColumns;
    counters_.need(pairs * sizeof(unsigned), true);
    partials_.need(pairs * size_t(part.n_splits) * kWarp * sizeof(float4), true);
  }
}

ActivationRows CudaBackend::activation_rows(int rows, int k, bool bf16, bool f16, bool may_grow) {
  const int groups = (k + kGroupColumns - 1) / kGroupColumns, stats_rows = (rows + 7) / 8 * 8;
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
  card_->launch(round_rows_kernel, {unsigned((y.groups + kRoundWarps - 1) / kRoundWarps), unsigned(x.rows)},
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
    for (int first = 0; first < y.rows; first += kRowsAtOnce) {
      const int n = std::min(kRowsAtOnce, y.rows - first);
      const LinearArgs args{.weights = part.data,
                            .x = x.from_row(first),
                            .n_rows = n,
                            .n_outputs = part.n,
                            .tiles = part.tiles,
                            .groups = part.groups,
                            .n_splits = part.n_splits,
                            .n_units = 0,
                            .partials = reinterpret_cast<float4*>(partials_.need(0, false)),
                            .counters = reinterpret_cast<unsigned*>(counters_.need(0, false)),
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
        embed_kernel, {unsigned(y.rows)}, 128, 0,
        EmbedArgs{part.data, on_card, part.format, part.first, part.n, w.k(), part.groups, rows_of(y)});
  }
}

}  // namespace tandem::cuda
