// Matrix products of many rows, as prompts bring them: the bits of linear.cu, in another order of work.
//
// A block takes 128 outputs by 128 rows; each of its warps keeps the sums of 64 by 32 of them in registers.
// Records of weights and rounded rows come group by group into shared memory, a few groups ahead, and meet as
// they do in linear.cu (multiply_group): weights are read once for 128 rows, rows once for 128 outputs. The
// parts that linear.cu cuts a tile's columns into follow each other here, and their sums are added in the
// same binary tree. Where there are too few tiles for all processors, several blocks share one, each with a
// subtree of its parts; the last to arrive adds the subtrees. So the grid is free, and no bit depends on it.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/linear.cuh"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kOutputWarps = 2, kRowWarps = 4, kTiles = 4,
              kColumns = 4;  // kTiles x kColumns fragments a warp
constexpr int kThreads = kOutputWarps * kRowWarps * kWarp;
constexpr int kBlockTiles = kOutputWarps * kTiles, kBlockRows = kRowWarps * kColumns * 8;
constexpr int kStages = 3;  // groups in shared memory: one at work, the others on their way
constexpr int kFragments = kTiles * kColumns;
constexpr int kSums = kFragments * kThreads;  // of a block, by fours
constexpr size_t kSumsBytes = size_t{kSums} * sizeof(float4);
constexpr size_t kOtherShared = 1024;  // that a kernel takes besides
constexpr int kMostSplitBits = 3;
constexpr int kFewRows = 64;  // up to here linear.cu is faster, though it reads weights once for 32 rows

// A group in shared memory: records, then rows of 128 bytes whose odd ones have their halves exchanged (so
// that the lanes of a load meet all banks), then step and step * sum of each row.
template <LinearFormat F>
struct Stage {
  static constexpr int kRecords = kBlockTiles * record_bytes(F);
  static constexpr int kRows = kBlockRows * kGroupColumns * int(sizeof(uint16_t));
  static constexpr int kStats = is_affine(F) ? kBlockRows * int(sizeof(float2)) : 0;
  static constexpr int kBytes = kRecords + kRows + kStats;
};

struct ManyArgs {
  const std::byte* weights;
  ActivationRows x;
  int n_rows, n_outputs;  // rows of x; rows of the part
  int tiles, groups;
  int split_bits;  // blocks that share a tile: 1 << split_bits
  int row_blocks, n_items;
  int n_levels, shared_levels;
  float4* levels;      // [block, level, fragment, thread]: sums of 1, 2, 4, .. parts; the first are not used
  float4* partials;    // [item, fragment, thread]: sums of a block's parts
  unsigned* counters;  // [tile block, row block]
  MutRows y;
  int first_column;
  const float* bias;  // of the part, or null
  bool add;
};

// What a block does at a time. Blocks that run together share weights, for rows vary fastest.
struct Item {
  int row_block, tile_block, split, first_part, n_parts;

  __device__ __forceinline__ Item(const ManyArgs& a, int item) {
    row_block = item % a.row_blocks;
    const int rest = item / a.row_blocks;
    split = rest & ((1 << a.split_bits) - 1);
    tile_block = rest >> a.split_bits;
    n_parts = 1 << (kLinearWarpBits - a.split_bits);
    first_part = split * n_parts;
  }
};

__device__ __forceinline__ int first_group(const ManyArgs& a, int part) {
  return int(int64_t(part) * a.groups >> kLinearWarpBits);
}

// Where a thread's copies come from, item after item, group after group; places count 16 bytes.
template <LinearFormat F>
struct Source {
  static constexpr int kOfRecord = record_bytes(F) / 16, kOfRow = kGroupColumns / 8;
  static constexpr int kRecordCopies = (kBlockTiles * kOfRecord + kThreads - 1) / kThreads;
  static constexpr int kRowCopies = kBlockRows * kOfRow / kThreads;

  int item, group, end;
  uint32_t record_at[kRecordCopies], row_at[kRowCopies], stats_at;

  __device__ __forceinline__ void enter(const ManyArgs& a) {
    group = end = 0;
    if (item >= a.n_items) return;
    const Item at(a, item);
    group = first_group(a, at.first_part);
    end = first_group(a, at.first_part + at.n_parts);
#pragma unroll
    for (int i = 0; i < kRecordCopies; ++i) {
      const int copy = i * kThreads + int(threadIdx.x);
      const int tile = min(at.tile_block * kBlockTiles + copy / kOfRecord, a.tiles - 1);
      record_at[i] = (uint32_t(tile) * uint32_t(a.groups) + uint32_t(group)) * kOfRecord + copy % kOfRecord;
    }
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) {
      const int copy = i * kThreads + int(threadIdx.x);
      const int row = min(at.row_block * kBlockRows + copy / kOfRow, a.n_rows - 1);
      row_at[i] = (uint32_t(row) * uint32_t(a.groups) + uint32_t(group)) * kOfRow + copy % kOfRow;
    }
    if constexpr (is_affine(F)) {
      const int row = min(at.row_block * kBlockRows + 2 * int(threadIdx.x), a.x.stats_rows - 2);
      stats_at = (uint32_t(group) * uint32_t(a.x.stats_rows) + uint32_t(row)) / 2;
    }
  }

  // Sends for the next group, if there is one.
  __device__ __forceinline__ void next(const ManyArgs& a, std::byte* stage) {
    while (group == end && item < a.n_items) {
      item += int(gridDim.x);
      enter(a);
    }
    if (item < a.n_items) {
      ++group;
#pragma unroll
      for (int i = 0; i < kRecordCopies; ++i) {
        const int copy = i * kThreads + int(threadIdx.x);
        if (copy < kBlockTiles * kOfRecord)
          copy_ahead(stage + copy * 16, a.weights + size_t{record_at[i]} * 16);
        record_at[i] += kOfRecord;
      }
      const auto* rows = reinterpret_cast<const std::byte*>(F == LinearFormat::bf16 ? a.x.bf16 : a.x.f16);
#pragma unroll
      for (int i = 0; i < kRowCopies; ++i) {
        const int copy = i * kThreads + int(threadIdx.x);
        const int place = copy ^ (copy / kOfRow % 2 * (kOfRow / 2));
        copy_ahead(stage + Stage<F>::kRecords + place * 16, rows + size_t{row_at[i]} * 16);
        row_at[i] += kOfRow;
      }
      if constexpr (is_affine(F)) {
        if (threadIdx.x < kBlockRows / 2) {
          copy_ahead(stage + Stage<F>::kRecords + Stage<F>::kRows + int(threadIdx.x) * 16,
                     reinterpret_cast<const std::byte*>(a.x.stats) + size_t{stats_at} * 16);
        }
        stats_at += uint32_t(a.x.stats_rows) / 2;
      }
    }
    commit_copies();
  }
};

__device__ __forceinline__ uint4 load16(const std::byte* p) { return *reinterpret_cast<const uint4*>(p); }

template <LinearFormat F>
__device__ __forceinline__ void load_record(Record<F>& r, const std::byte* record) {
  const int lane = lane_id();
#pragma unroll
  for (int i = 0; i < Record<F>::kWords; ++i) r.words[i] = load16(record + i * 512 + lane * 16);
  const std::byte* pairs = record + code_bytes(F);
  if constexpr (is_wide(F)) {
    r.scales[0] = load16(pairs + lane / 4 * 16);
    r.scales[1] = load16(pairs + 128 + lane / 4 * 16);
  } else if constexpr (is_affine(F)) {
    const uint2 s = *reinterpret_cast<const uint2*>(pairs + lane / 4 * 8);
    r.scales[0].x = s.x;
    r.scales[0].y = s.y;
  }
}

// 8 rows from row `first` of the stage on.
template <LinearFormat F>
__device__ __forceinline__ void load_input(Input<F>& x, const std::byte* stage, int first) {
  const int g = lane_id() / 4, t = lane_id() % 4;
  const std::byte* row = stage + Stage<F>::kRecords + (first + g) * kGroupColumns * 2 + t * 16;
  const int exchanged = g % 2 * 64;
  const uint4 low = load16(row + exchanged), high = load16(row + (64 - exchanged));
  x.set_values(low, high);
  if constexpr (is_affine(F)) {
    const std::byte* stats = stage + Stage<F>::kRecords + Stage<F>::kRows;
    x.set_stats(*reinterpret_cast<const float4*>(stats + (first + 2 * t) * sizeof(float2)));
  }
}

// Tiles a warp takes from shared memory at once. A wide group's sums of its rows come from products too: one
// for all tiles.
template <LinearFormat F>
constexpr int kTogether = is_wide(F) ? kTiles : 1;

template <LinearFormat F>
using Accumulators = float[kTiles / kTogether<F>][kTogether<F>][kColumns][4];

template <class Visit>
__device__ __forceinline__ void each_fragment(Visit&& visit) {
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) visit(r, n);
  }
}

template <LinearFormat F>
__global__ void __launch_bounds__(kThreads, 1) many_rows_kernel(const __grid_constant__ ManyArgs a) {
  const int warp = warp_id(), g = lane_id() / 4, t = lane_id() % 4, thread = int(threadIdx.x);
  const int first_tile = warp % kOutputWarps * kTiles, first_row = warp / kOutputWarps * kColumns * 8;
  std::byte* const memory = shared_memory();
  wait_for_inputs();

  Source<F> source;
  source.item = int(blockIdx.x);
  source.enter(a);
  for (int i = 0; i < kStages - 1; ++i) source.next(a, memory + i * Stage<F>::kBytes);
  int at = 0, next_free = kStages - 1;

  Accumulators<F> acc = {};
  const auto sum = [&](int r, int n) -> float(&)[4] { return acc[r / kTogether<F>][r % kTogether<F>][n]; };
  // This thread's place among the sums of a level: in shared memory as far as they fit.
  const auto saved = [&](int level) {
    float4* sums = level < a.shared_levels ? reinterpret_cast<float4*>(memory + kStages * Stage<F>::kBytes)
                                           : a.levels + int64_t(blockIdx.x) * a.n_levels * kSums;
    return sums + int64_t(level) * kSums + thread;
  };

#pragma unroll 1
  for (int number = int(blockIdx.x); number < a.n_items; number += int(gridDim.x)) {
    const Item item(a, number);
    const bool has_work = item.row_block * kBlockRows + first_row < a.n_rows &&
                          item.tile_block * kBlockTiles + first_tile < a.tiles;
#pragma unroll 1
    for (int part = 0; part < item.n_parts; ++part) {
      const int n_groups =
          first_group(a, item.first_part + part + 1) - first_group(a, item.first_part + part);
#pragma unroll 1
      for (int group = 0; group < n_groups; ++group) {
        wait_for_copies<kStages - 2>();
        __syncthreads();  // everybody's copies are there, and nobody reads the stage before
        source.next(a, memory + next_free * Stage<F>::kBytes);
        if (has_work) {
          const std::byte* stage = memory + at * Stage<F>::kBytes;
          Input<F> x[kColumns];
#pragma unroll
          for (int n = 0; n < kColumns; ++n) load_input(x[n], stage, first_row + n * 8);
#pragma unroll
          for (int r = 0; r < kTiles / kTogether<F>; ++r) {
            Record<F> records[kTogether<F>];
#pragma unroll
            for (int i = 0; i < kTogether<F>; ++i) {
              load_record(records[i], stage + (first_tile + r * kTogether<F> + i) * record_bytes(F));
            }
            multiply_group<F, kTogether<F>, kColumns>(records, x, acc[r]);
          }
        }
        next_free = at;
        at = at + 1 == kStages ? 0 : at + 1;
      }
      // The end of a part. What came before is a binary counter: level i holds a sum of 2^i parts.
      int level = 0;
#pragma unroll 1
      for (; part >> level & 1; ++level) {
        const float4* of_level = saved(level);
        each_fragment([&](int r, int n) {
          const float4 v = of_level[(r * kColumns + n) * kThreads];
          sum(r, n)[0] = v.x + sum(r, n)[0];
          sum(r, n)[1] = v.y + sum(r, n)[1];
          sum(r, n)[2] = v.z + sum(r, n)[2];
          sum(r, n)[3] = v.w + sum(r, n)[3];
        });
      }
      if (part + 1 == item.n_parts) break;
      float4* of_level = saved(level);
      each_fragment([&](int r, int n) {
        of_level[(r * kColumns + n) * kThreads] =
            make_float4(sum(r, n)[0], sum(r, n)[1], sum(r, n)[2], sum(r, n)[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum(r, n)[i] = 0;
      });
    }
    if (source.item >= a.n_items) let_next_start();

    bool ours = true;
    if (a.split_bits > 0) {
      each_fragment([&](int r, int n) {
        a.partials[(int64_t(number) * kFragments + r * kColumns + n) * kThreads + thread] =
            make_float4(sum(r, n)[0], sum(r, n)[1], sum(r, n)[2], sum(r, n)[3]);
      });
      ours = last_arrival(&a.counters[item.tile_block * a.row_blocks + item.row_block], 1u << a.split_bits);
    }
    if (ours) {
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        if (a.split_bits > 0) {
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            const auto of_split = [&](int s) {
              const int64_t other = number + int64_t(s - item.split) * a.row_blocks;
              return __ldcg(&a.partials[(other * kFragments + r * kColumns + n) * kThreads + thread]);
            };
            const float4 v = a.split_bits == 1   ? tree<2>(of_split)
                             : a.split_bits == 2 ? tree<4>(of_split)
                                                 : tree<8>(of_split);
            sum(r, n)[0] = v.x;
            sum(r, n)[1] = v.y;
            sum(r, n)[2] = v.z;
            sum(r, n)[3] = v.w;
          }
        }
        // What is added to is read for all before anything is written: the trips overlap.
        const int output = (item.tile_block * kBlockTiles + first_tile + r) * kTileRows + g;
        const auto place = [&](int n, int i) -> float* {
          const int row = item.row_block * kBlockRows + first_row + n * 8 + 2 * t + i % 2;
          const int out = output + i / 2 * 8;
          return row < a.n_rows && out < a.n_outputs ? a.y.row(row) + a.first_column + out : nullptr;
        };
        float old[kColumns][4];
        float bias[2] = {};
        if (a.bias != nullptr) {
          bias[0] = output < a.n_outputs ? a.bias[output] : 0.0f;
          bias[1] = output + 8 < a.n_outputs ? a.bias[output + 8] : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* y = place(n, i);
            old[n][i] = a.add && y != nullptr ? *y : 0.0f;
          }
        }
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float v = sum(r, n)[i];
            if (a.bias != nullptr) v += bias[i / 2];
            if (float* y = place(n, i); y != nullptr) *y = a.add ? old[n][i] + v : v;
          }
        }
      }
    }
    each_fragment([&](int r, int n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum(r, n)[i] = 0;
    });
  }
}

// How many blocks share a tile: what is done soonest, in groups of a block. A block's stores cost it some 2
// of them, sums that travel 4.
struct Plan {
  int split_bits = 0, row_blocks = 0, tile_blocks = 0, n_items = 0, n_blocks = 0;
  int n_levels = 0, shared_levels = 0;
  size_t shared_bytes = 0, levels_bytes = 0, partials_bytes = 0, counters_bytes = 0;
};
Plan plan_for(const WeightPart& part, int rows, const CardInfo& card) {
  const int n_sms = card.n_sms;
  Plan p;
  p.row_blocks = (rows + kBlockRows - 1) / kBlockRows;
  p.tile_blocks = (part.tiles + kBlockTiles - 1) / kBlockTiles;
  const int64_t tiles = int64_t(p.row_blocks) * p.tile_blocks;
  double least = 0;
  for (int bits = 0; bits <= std::min(kMostSplitBits, kLinearWarpBits); ++bits) {
    const int64_t rounds = ((tiles << bits) + n_sms - 1) / n_sms;
    const double cost = double(rounds) * (double(part.groups) / double(1 << bits) + (bits == 0 ? 2 : 4));
    if (bits > 0 && cost >= least) continue;
    least = cost;
    p.split_bits = bits;
  }
  TD_CHECK(tiles << p.split_bits < int64_t{1} << 31, "a product of %d rows by %d outputs is too large", rows,
           part.n);
  p.n_items = int(tiles << p.split_bits);
  p.n_blocks = std::min(p.n_items, n_sms);
  p.n_levels = kLinearWarpBits - p.split_bits;
  by_format(part.format, [&](auto format) { p.shared_bytes = size_t{kStages} * Stage<format()>::kBytes; });
  while (p.shared_levels < p.n_levels &&
         p.shared_bytes + kSumsBytes + kOtherShared <= size_t(card.shared_bytes)) {
    ++p.shared_levels;
    p.shared_bytes += kSumsBytes;
  }
  p.levels_bytes = p.shared_levels == p.n_levels ? 0 : size_t(p.n_blocks) * size_t(p.n_levels) * kSumsBytes;
  p.partials_bytes = p.split_bits == 0 ? 0 : size_t(p.n_items) * kSumsBytes;
  p.counters_bytes = size_t(tiles) * sizeof(unsigned);
  return p;
}

}  // namespace

bool CudaBackend::is_many(int rows) { return rows > kFewRows; }

void CudaBackend::reserve_many_rows(const CudaWeight& w, int max_rows) {
  size_t partials = 0, counters = 0;
  for (const WeightPart& part : w.parts) {
    if (part.format == LinearFormat::f32) continue;
    for (int rows = max_rows; is_many(rows); rows -= kBlockRows) {
      const Plan p = plan_for(part, rows, card_->info());
      partials = std::max(partials, p.levels_bytes + p.partials_bytes);
      counters = std::max(counters, p.counters_bytes);
    }
  }
  partials_.need(partials, true);
  counters_.need(counters, true);
}

void CudaBackend::product_of_many(const ActivationRows& x, const WeightPart& part, const float* bias,
                                  MutView y, bool add) {
  const Plan p = plan_for(part, y.rows, card_->info());
  std::byte* sums = partials_.need(p.levels_bytes + p.partials_bytes, may_grow());
  const ManyArgs args{.weights = part.data,
                      .x = x,
                      .n_rows = y.rows,
                      .n_outputs = part.n,
                      .tiles = part.tiles,
                      .groups = part.groups,
                      .split_bits = p.split_bits,
                      .row_blocks = p.row_blocks,
                      .n_items = p.n_items,
                      .n_levels = p.n_levels,
                      .shared_levels = p.shared_levels,
                      .levels = reinterpret_cast<float4*>(sums),
                      .partials = reinterpret_cast<float4*>(sums + p.levels_bytes),
                      .counters = reinterpret_cast<unsigned*>(counters_.need(p.counters_bytes, may_grow())),
                      .y = rows_of(y),
                      .first_column = part.first,
                      .bias = bias,
                      .add = add};
  by_format(part.format, [&](auto format) {
    card_->launch(many_rows_kernel<format()>, {unsigned(p.n_blocks)}, kThreads, p.shared_bytes, args);
  });
}

}  // namespace tandem::cuda
