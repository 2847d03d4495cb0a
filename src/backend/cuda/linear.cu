// Matrix products and the embedding.
//
// One kernel for 1 .. 32 rows: weights are the 16-row operand of the tensor cores, activation rows their 8
// columns, so that more rows are only more columns and no sum's order depends on them. A warp streams records
// straight from memory into registers, a few ahead, also across the tiles it works on. A tile's columns are
// cut into 8 n_splits parts, part p from floor(p groups / (8 n_splits)) on: k-slices are unions of parts.
// Parts are added in a binary tree: in a warp that has several, over the warps of a block in shared memory,
// over blocks by the last to arrive.
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
  int split_bits;      // n_splits = 1 << split_bits
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

// Where a warp stands in its stream of records: item after item, part after part, one group at a time.
template <int kTiles, int kRowWarps>
struct Place {
  int item, part, step, count;  // part of the item's kRowWarps; count: groups of the part
  int group;                    // of `step`
  const std::byte* at;          // record of the first tile; the others lie a tile's length apart

  __device__ __forceinline__ void enter(const LinearArgs& a, int bytes_of_record) {
    step = 0;
    count = 0;
    if (item >= a.n_units << a.split_bits) return;
    const int row_warp = warp_id() % kRowWarps, column_warp = warp_id() / kRowWarps;
    const int split = item & ((1 << a.split_bits) - 1), unit = item >> a.split_bits;
    const int p = split * kLinearWarps + column_warp * kRowWarps + part,
              bits = a.split_bits + kLinearWarpBits;
    const int first = p * a.groups >> bits;
    count = ((p + 1) * a.groups >> bits) - first;
    group = first;
    at = a.weights + (int64_t((unit * kRowWarps + row_warp) * kTiles) * a.groups + first) * bytes_of_record;
  }
};

// What the warps of a block made of an item, by (tile, 8 rows) fragments; twice, for one is read while the
// next is written.
template <int kPairs>
using Sums = float4[2][kLinearWarps][kPairs][kWarp];

// kRowWarps of the 8 warps take different rows, each kRowWarps of the parts one after the other. kAhead:
// groups whose records are on their way to registers.
template <LinearFormat F, int kTiles, int kColumns, int kRowWarps, int kAhead, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) linear_kernel(const __grid_constant__ LinearArgs a) {
  constexpr int kColumnWarps = kLinearWarps / kRowWarps;
  constexpr int kPairs = kTiles * kColumns;  // (tile, 8 rows) fragments of a warp
  auto& sums = *reinterpret_cast<Sums<kPairs>*>(shared_memory());
  const int lane = lane_id(), warp = warp_id(), g = lane / 4, t = lane % 4;
  const int n_items = a.n_units << a.split_bits, n_parts = kLinearWarps << a.split_bits;
  // Of the largest part; every warp counts as many, and a multiple of kAhead, so that a register always holds
  // the same turn.
  const int steps = ((a.groups + n_parts - 1) / n_parts + kAhead - 1) / kAhead * kAhead;

  Place<kTiles, kRowWarps> load{int(blockIdx.x), 0, 0, 0, 0, nullptr};
  load.enter(a, record_bytes(F));
  const int64_t of_tile = int64_t(a.groups) * record_bytes(F);
  const auto fetch = [&](Record<F>(&records)[kTiles]) {
    if (load.step < load.count) {
#pragma unroll
      for (int r = 0; r < kTiles; ++r) records[r].load(load.at + r * of_tile);
    }
    load.at += record_bytes(F);
    ++load.step;
  };
  const auto next_part = [&](Place<kTiles, kRowWarps>& p) {
    if (++p.part == kRowWarps) {
      p.part = 0;
      p.item += int(gridDim.x);
    }
    p.enter(a, record_bytes(F));
  };
  Record<F> ahead[kAhead][kTiles];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch(ahead[i]);
  if (load.step == steps) next_part(load);
  wait_for_inputs();

  float acc[kTiles][kColumns][4] = {};
  float earlier[kRowWarps > 1 ? kTiles : 1][kColumns][4] = {};  // the sum of the part before
  int buffer = 0;
  Place<kTiles, kRowWarps> at{int(blockIdx.x), 0, 0, 0, 0, nullptr};
  at.enter(a, record_bytes(F));
#pragma unroll 1
  while (at.item < n_items) {
#pragma unroll 1
    for (int base = 0; base < steps; base += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (base + i < at.count) {
          Input<F> x[kColumns];
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            x[n].load(a.x, n * 8 + g, n * 8 + g < a.n_rows, at.group + base + i);
          }
          multiply_group<F, kTiles, kColumns>(ahead[i], x, acc);
        }
        fetch(ahead[i]);
      }
      if (load.step == steps) next_part(load);
    }
    if (load.item >= n_items) let_next_start();
    // The end of a part.
    if constexpr (kRowWarps > 1) {
      static_assert(kRowWarps == 2, "two parts to a warp: one sum to remember");
      if (at.part == 0) {
#pragma unroll
        for (int r = 0; r < kTiles; ++r) {
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              earlier[r][n][i] = acc[r][n][i];
              acc[r][n][i] = 0;
            }
          }
        }
        next_part(at);
        continue;
      }
    }
    const int unit = at.item >> a.split_bits;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        float4 v = make_float4(acc[r][n][0], acc[r][n][1], acc[r][n][2], acc[r][n][3]);
        if constexpr (kRowWarps > 1) {
          v = add4(make_float4(earlier[r][n][0], earlier[r][n][1], earlier[r][n][2], earlier[r][n][3]), v);
        }
        sums[buffer][warp][r * kColumns + n][lane] = v;
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[r][n][i] = 0;
      }
    }
    __syncthreads();
    // The fragments of all rows' warps, one to a warp; the warps take turns, so that none lags behind.
#pragma unroll 1
    for (int f = (warp + kLinearWarps - at.item % kLinearWarps) % kLinearWarps; f < kPairs * kRowWarps;
         f += kLinearWarps) {
      const int rows_of = f / kPairs, pair = f % kPairs;
      const auto of_warp = [&](int column_warp) {
        return sums[buffer][column_warp * kRowWarps + rows_of][pair][lane];
      };
      float4 v = tree<kColumnWarps>(of_warp);
      if (a.split_bits > 0) {
        constexpr int kFragments = kPairs * kRowWarps;
        a.partials[(int64_t(at.item) * kFragments + f) * kWarp + lane] = v;
        __threadfence();
        __syncwarp();
        unsigned arrived = 0;
        unsigned* counter = &a.counters[unit * kFragments + f];
        if (lane == 0) arrived = atomicAdd(counter, 1u);
        if (__shfl_sync(kAllLanes, arrived, 0) != (1u << a.split_bits) - 1) continue;
        if (lane == 0) *counter = 0;
        __threadfence();
        float4 levels[4];  // a binary counter: levels[i] holds a sum of 2^i splits
        for (int s = 0; s < 1 << a.split_bits; ++s) {
          v = __ldcg(
              &a.partials[((int64_t(unit) * (1 << a.split_bits) + s) * kFragments + f) * kWarp + lane]);
          int level = 0;
          for (; s >> level & 1; ++level) v = add4(levels[level], v);
          if (level < 4) levels[level] = v;
        }
      }
      const int output = ((unit * kRowWarps + rows_of) * kTiles + pair / kColumns) * kTileRows + g;
      const int row = pair % kColumns * 8 + 2 * t;
      store(a, row, output, v.x);
      store(a, row + 1, output, v.y);
      store(a, row, output + 8, v.z);
      store(a, row + 1, output + 8, v.w);
    }
    buffer ^= 1;
    next_part(at);
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
  wait_for_inputs();
  const int id = a.ids[blockIdx.y] - a.first, c = int(blockIdx.x) * kEmbedColumns + int(threadIdx.x);
  if (id < 0 || id >= a.n || c >= a.k) return;
  a.y.row(int(blockIdx.y))[c] = weight_value(a.format, a.weights, 0, a.groups, a.k, id, c);
}

template <LinearFormat F, int kTiles, int kColumns, int kRowWarps, int kAhead, int kBlocks>
void launch_linear(Card& card, LinearArgs& args) {
  constexpr int kTogether = kTiles * kRowWarps;
  args.n_units = (args.tiles + kTogether - 1) / kTogether;
  const int blocks = std::min(args.n_units << args.split_bits, kBlocks * card.info().n_sms);
  card.launch(linear_kernel<F, kTiles, kColumns, kRowWarps, kAhead, kBlocks>, {unsigned(blocks)}, kThreads,
              sizeof(Sums<kTiles * kColumns>), args);
}

template <LinearFormat F>
void launch_part(Card& card, LinearArgs& args) {
  // Tiles and rows a warp takes together, groups on their way, blocks a processor holds: by measurement
  // (bench/study/cuda_linear.cc). Whatever they are, the bits are the same.
  constexpr bool kBf16 = F == LinearFormat::bf16, kWide = is_wide(F);
  if (args.n_rows <= 8) {
    if constexpr (kWide) return launch_linear<F, 2, 1, 1, 1, 3>(card, args);
    if constexpr (kBf16) return launch_linear<F, 2, 1, 1, 1, 3>(card, args);
    if constexpr (is_affine8(F)) return launch_linear<F, 2, 1, 1, 2, 3>(card, args);
    return launch_linear<F, 2, 1, 1, 4, 2>(card, args);
  }
  if (args.n_rows <= 16) {
    if constexpr (kBf16 || kWide) return launch_linear<F, 2, 2, 1, 1, 2>(card, args);
    return launch_linear<F, 4, 2, 1, 1, 2>(card, args);
  }
  if constexpr (kBf16) return launch_linear<F, 1, 4, 2, 1, 2>(card, args);
  constexpr int kAhead = is_affine4(F) ? 3 : 2;
  return launch_linear<F, 1, 4, 1, kAhead, 2>(card, args);
}

}  // namespace

void CudaBackend::reserve_linear(const CudaWeight& w, int max_rows) {
  activation_rows(max_rows, w.k(), true, true, true);
  for (const WeightPart& part : w.parts) {
    if (part.split_bits > 0) split_scratch(part, true);
  }
  reserve_many_rows(w, max_rows);
}

CudaBackend::SplitScratch CudaBackend::split_scratch(const WeightPart& part, bool may_grow) {
  constexpr int kMostColumns = kRowsAtOnce / 8, kMostTogether = 4;
  const size_t pairs = size_t(part.tiles + kMostTogether) * kMostColumns;
  return {reinterpret_cast<float4*>(
              partials_.need((pairs << part.split_bits) * kWarp * sizeof(float4), may_grow)),
          reinterpret_cast<unsigned*>(counters_.need(pairs * sizeof(unsigned), may_grow))};
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
    const SplitScratch scratch = part.split_bits == 0 ? SplitScratch{} : split_scratch(part, may_grow());
    for (int first = 0; first < y.rows; first += kRowsAtOnce) {
      const int n = std::min(kRowsAtOnce, y.rows - first);
      LinearArgs args{.weights = part.data,
                      .x = x.from_row(first),
                      .n_rows = n,
                      .n_outputs = part.n,
                      .tiles = part.tiles,
                      .groups = part.groups,
                      .n_units = 0,
                      .split_bits = part.split_bits,
                      .partials = scratch.partials,
                      .counters = scratch.counters,
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
