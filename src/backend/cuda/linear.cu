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
  const uint16_t* x;  // bf16, [n_rows, x_stride], columns beyond k are zero
  int64_t x_stride;
  int n_rows, n_outputs;  // rows of x; rows of the part
  int tiles, groups, n_splits, n_units;
  float4* partials;    // [unit, split, pair, lane]
  unsigned* counters;  // [unit]
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

template <LinearFormat F, int kTiles, int kColumns, int kAhead>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    linear_kernel(const __grid_constant__ LinearArgs a) {
  constexpr int kPairs = kTiles * kColumns;  // (tile, 8 rows): fragments that the warps hold parts of
  __shared__ float4 of_warps[2][kLinearWarps][kPairs][kWarp];
  const int lane = lane_id(), warp = warp_id(), g = lane / 4, t = lane % 4;
  const int n_items = a.n_units * a.n_splits, n_parts = a.n_splits * kLinearWarps;
  const int steps = (a.groups + n_parts - 1) / n_parts;  // of the largest part: every warp takes as many

  // The stream of this warp: records of item after item.
  struct Place {
    int item, step, count;
    const std::byte* at[kTiles];
  };
  const auto enter = [&](Place& p) {
    if (p.item >= n_items) return;
    const int unit = p.item / a.n_splits, part = p.item % a.n_splits * kLinearWarps + warp;
    const int first = int(int64_t(part) * a.groups / n_parts),
              end = int(int64_t(part + 1) * a.groups / n_parts);
    p.count = end - first;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      const int tile =
          min(unit * kTiles + r, a.tiles - 1);  // the last unit may have a tile too many: not stored
      p.at[r] = a.weights + (int64_t(tile) * a.groups + first) * record_bytes(F);
    }
  };
  const auto advance = [&](Place& p) {
    if (++p.step < steps) return;
    p.step = 0;
    p.item += int(gridDim.x);
    enter(p);
  };

  Record<F> ahead[kAhead][kTiles];
  Place load{int(blockIdx.x), 0, 0, {}};
  enter(load);
  const auto fetch = [&](Record<F>(&records)[kTiles]) {
    if (load.item < n_items && load.step < load.count) {
#pragma unroll
      for (int r = 0; r < kTiles; ++r) records[r].load(load.at[r] + int64_t(load.step) * record_bytes(F));
    }
    advance(load);
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
    const auto put = [&](int pair, float4 v) {
      const int output = (unit * kTiles + pair / kColumns) * kTileRows + g, row = pair % kColumns * 8 + 2 * t;
      store(a, row, output, v.x);
      store(a, row + 1, output, v.y);
      store(a, row, output + 8, v.z);
      store(a, row + 1, output + 8, v.w);
    };
    for (int pair = warp; pair < kPairs; pair += kLinearWarps) {
      const float4 v = tree8([&](int w) { return of_warps[buffer][w][pair][lane]; });
      if (a.n_splits == 1) {
        put(pair, v);
      } else {
        a.partials[(int64_t(item) * kPairs + pair) * kWarp + lane] = v;
      }
    }
    buffer ^= 1;
    if (a.n_splits == 1 || !last_arrival(a.counters + unit, unsigned(a.n_splits))) return;
    for (int pair = warp; pair < kPairs; pair += kLinearWarps) {
      float4 levels[4];  // a binary counter: levels[i] holds a sum of 2^i splits
      float4 v = {};
      for (int s = 0; s < a.n_splits; ++s) {
        v = __ldcg(&a.partials[((int64_t(unit) * a.n_splits + s) * kPairs + pair) * kWarp + lane]);
        int level = 0;
        for (; s >> level & 1; ++level) v = add4(levels[level], v);
        if (level < 4) levels[level] = v;
      }
      put(pair, v);
    }
  };

  Place at{int(blockIdx.x), 0, 0, {}};
  enter(at);
  bool more = true;
  while (at.item < n_items) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (at.item >= n_items) break;
      if (at.step < at.count) {
        const int part = at.item % a.n_splits * kLinearWarps + warp;
        const int group = int(int64_t(part) * a.groups / n_parts) + at.step;
        Activations x[kColumns];
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const int row = n * 8 + g;
          x[n].load(row < a.n_rows ? a.x + row * a.x_stride + group * kGroupColumns : nullptr);
        }
        multiply_group<F, kTiles, kColumns>(ahead[i], x, acc);
      }
      fetch(ahead[i]);
      if (more && load.item >= n_items) {
        let_next_start();
        more = false;
      }
      if (at.step == steps - 1) finish(at.item);
      advance(at);
    }
  }
}

struct RoundArgs {
  Rows x;
  uint16_t* y;
  int64_t stride;
  int k, padded;
};
// fp32 rows to bf16, padded with zeros.
__global__ void round_rows_kernel(const __grid_constant__ RoundArgs a) {
  wait_for_inputs();
  const int c = int(blockIdx.x * blockDim.x + threadIdx.x) * 2;
  const float* x = a.x.row(int(blockIdx.y));
  if (c >= a.padded) return;
  const float low = c < a.k ? x[c] : 0.0f, high = c + 1 < a.k ? x[c + 1] : 0.0f;
  *reinterpret_cast<uint32_t*>(a.y + int(blockIdx.y) * a.stride + c) = bf16_pair(low, high);
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
  if (a.format == LinearFormat::f32) {
    const float* row = reinterpret_cast<const float*>(a.weights) + int64_t(id) * a.k;
    for (int c = int(threadIdx.x); c < a.k; c += int(blockDim.x)) y[c] = row[c];
    return;
  }
  const int g = id % 8, high = id % kTileRows / 8;
  for (int c = int(threadIdx.x); c < a.k; c += int(blockDim.x)) {
    const auto* record = reinterpret_cast<const uint8_t*>(
        a.weights + (int64_t(id / kTileRows) * a.groups + c / kGroupColumns) * record_bytes(a.format));
    const int in = c % kGroupColumns, half = in / 32, lane = g * 4 + in % 32 / 8, j = half * 2 + in % 8 / 4,
              e = in % 4;
    if (a.format == LinearFormat::bf16) {
      y[c] = bf16_value(*reinterpret_cast<const uint16_t*>(record + j * 512 + lane * 16 +
                                                           (e / 2 * 2 + high) * 4 + e % 2 * 2));
      continue;
    }
    int code;
    if (is_affine8(a.format)) {
      const int word = j * 2 + e / 2;
      code = record[word / 4 * 512 + lane * 16 + word % 4 * 4 + e % 2 * 2 + high];
    } else {
      code = record[lane * 16 + j * 4 + e % 2 * 2 + high] >> (e / 2 * 4) & 15;
    }
    const uint8_t* pairs = record + code_bytes(a.format);
    float scale, bias;
    if (is_wide(a.format)) {
      const float* of_row = reinterpret_cast<const float*>(pairs + half * 128 + g * 16 + high * 8);
      scale = of_row[0];
      bias = of_row[1];
    } else {
      const uint32_t both = *reinterpret_cast<const uint32_t*>(pairs + g * 8 + high * 4);
      scale = bf16_low(both);
      bias = bf16_high(both);
    }
    y[c] = scale * float(code) + bias;
  }
}

template <LinearFormat F>
void launch_part(Card& card, const LinearArgs& args, int tiles_at_once, bool reserve) {
  const int columns = args.n_rows <= 8 ? 1 : args.n_rows <= 16 ? 2 : 4;
  (void)reserve;
  const unsigned blocks =
      unsigned(std::min(args.n_units * args.n_splits, kBlocksPerProcessor * card.info().n_sms));
  const auto go = [&](auto kernel) { card.launch(kernel, {blocks}, kThreads, 0, args); };
  if constexpr (F == LinearFormat::bf16) {
    if (columns == 1) return go(linear_kernel<F, 1, 1, 4>);
    if (columns == 2) return go(linear_kernel<F, 1, 2, 3>);
    return go(linear_kernel<F, 1, 4, 2>);
  } else {
    if (tiles_at_once == 1) {
      if (columns == 1) return go(linear_kernel<F, 1, 1, 4>);
      if (columns == 2) return go(linear_kernel<F, 1, 2, 4>);
      return go(linear_kernel<F, 1, 4, 3>);
    }
    if (columns == 1) return go(linear_kernel<F, 2, 1, 3>);
    if (columns == 2) return go(linear_kernel<F, 2, 2, 2>);
    return go(linear_kernel<F, 2, 4, 1>);
  }
}

// Tiles a warp takes together: two halve the reading of activations, where there are enough to go round.
int tiles_at_once(const WeightPart& part) {
  return part.format == LinearFormat::bf16 || part.tiles * part.n_splits < 2 * 132 ? 1 : 2;
}

}  // namespace

void CudaBackend::reserve_linear(const CudaWeight& w, int max_rows) {
  activations_.need(
      size_t(max_rows) * size_t((w.k() + kGroupColumns - 1) / kGroupColumns * kGroupColumns) * 2, true);
  for (const WeightPart& part : w.parts) {
    if (part.n_splits == 1) continue;
    const int units = (part.tiles + 1) / 2;
    counters_.need(size_t(2 * units) * sizeof(unsigned), true);
    partials_.need(size_t(2 * units) * size_t(part.n_splits) * 4 * kWarp * sizeof(float4), true);
  }
}

void CudaBackend::product(const uint16_t* x, int64_t x_stride, View rows, const CudaWeight& w, MutView y,
                          bool add) {
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
    const int together = tiles_at_once(part);
    for (int first = 0; first < y.rows; first += kRowsAtOnce) {
      const LinearArgs args{.weights = part.data,
                            .x = x + first * x_stride,
                            .x_stride = x_stride,
                            .n_rows = std::min(kRowsAtOnce, y.rows - first),
                            .n_outputs = part.n,
                            .tiles = part.tiles,
                            .groups = part.groups,
                            .n_splits = part.n_splits,
                            .n_units = (part.tiles + together - 1) / together,
                            .partials = reinterpret_cast<float4*>(partials_.need(0, false)),
                            .counters = reinterpret_cast<unsigned*>(counters_.need(0, false)),
                            .y = rows_of(y.row_range(first, std::min(kRowsAtOnce, y.rows - first))),
                            .first_column = part.first,
                            .bias = bias,
                            .add = add};
      switch (part.format) {
        case LinearFormat::bf16:
          launch_part<LinearFormat::bf16>(*card_, args, together, false);
          break;
        case LinearFormat::affine8:
          launch_part<LinearFormat::affine8>(*card_, args, together, false);
          break;
        case LinearFormat::affine8_wide:
          launch_part<LinearFormat::affine8_wide>(*card_, args, together, false);
          break;
        case LinearFormat::affine4:
          launch_part<LinearFormat::affine4>(*card_, args, together, false);
          break;
        case LinearFormat::affine4_wide:
          launch_part<LinearFormat::affine4_wide>(*card_, args, together, false);
          break;
        case LinearFormat::f32:
          break;
      }
    }
  }
}

void CudaBackend::linear_rows(View x, const Weight& weight, MutView y, bool add) {
  const CudaWeight& w = ours(weight);
  const int padded = (w.k() + kGroupColumns - 1) / kGroupColumns * kGroupColumns;
  const bool rounds = std::any_of(w.parts.begin(), w.parts.end(),
                                  [](const WeightPart& p) { return p.format != LinearFormat::f32; });
  uint16_t* rounded = nullptr;
  if (rounds) {
    rounded = reinterpret_cast<uint16_t*>(activations_.need(size_t(x.rows) * size_t(padded) * 2, may_grow()));
    constexpr int kRoundThreads = 128;
    card_->launch(round_rows_kernel,
                  {unsigned((padded / 2 + kRoundThreads - 1) / kRoundThreads), unsigned(x.rows)},
                  kRoundThreads, 0, RoundArgs{rows_of(x), rounded, padded, x.cols, padded});
  }
  product(rounded, padded, x, w, y, add);
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
