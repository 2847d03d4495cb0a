// The inner loop of every matrix product: records of weights (weight.h) against rows of bf16 activations.
#pragma once

#include "backend/cuda/activations.cuh"
#include "backend/cuda/weight.h"

namespace tandem::cuda {

// One record in registers: codes or values, scales. From memory directly, or from shared memory where it was
// copied to.
template <LinearFormat F>
struct Record {
  static constexpr int kWords = code_bytes(F) / (kWarp * 16);
  uint4 words[kWords];
  uint4 scales[is_wide(F) ? 2 : 1];  // narrow: .x, .y alone; dense: not used

  // `at`: own_part() of the record.
  __device__ __forceinline__ void load(const std::byte* at) {
    const int lane = lane_id();
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = stream_load(at + i * 512);
    const std::byte* pairs = at + (code_bytes(F) - lane * 16);
    if constexpr (is_wide(F)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) scales[half] = stream_load(pairs + half * 128 + lane / 4 * 16);
    } else if constexpr (is_affine(F)) {
      const uint2 s = early_load(pairs + lane / 4 * 8);
      scales[0].x = s.x;
      scales[0].y = s.y;
    }
  }
  // Where this lane's codes begin: what a loop counts on, so that it need not add the lane each time.
  static __device__ __forceinline__ const std::byte* own_part(const std::byte* record) {
    return record + lane_id() * 16;
  }
};

// Where a warp stands in the activations: this lane's values and stats of a group.
template <LinearFormat F>
struct InputPlace {
  const uint16_t* values;
  const float2* stats;

  __device__ __forceinline__ void enter(const ActivationRows& x, int group) {
    const int lane = lane_id();
    const uint16_t* rows = F == LinearFormat::bf16 ? x.bf16 : x.f16;
    values = rows + (int64_t(lane / 4) * x.groups + group) * kGroupColumns + lane % 4 * 8;
    stats = x.stats + int64_t(group) * x.stats_rows + lane % 4 * 2;
  }
  __device__ __forceinline__ void next(const ActivationRows& x) {
    values += kGroupColumns;
    if (is_affine(F)) stats += x.stats_rows;
  }
};

// kColumns times 8 rows and one group of activations on their way through shared memory, for one warp. A lane
// brings and takes the same values, but for the stats.
template <LinearFormat F, int kColumns>
struct InputSlot {
  uint4 values[kColumns][2][kWarp];
  float4 stats[kColumns][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      values[n][0][lane_id()] = values[n][1][lane_id()] = make_uint4(0, 0, 0, 0);
    }
  }
  // Rows [first, end) of x; others stay as they are.
  __device__ __forceinline__ void ask(const ActivationRows& x, const InputPlace<F>& from, int first,
                                      int end) {
    const int lane = lane_id(), g = lane / 4;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      if (n * 8 + g >= first && n * 8 + g < end) {
        const uint16_t* at = from.values + int64_t(n * 8) * x.groups * kGroupColumns;
        copy_ahead_shared(&values[n][0][lane], at);
        copy_ahead_shared(&values[n][1][lane], at + 32);
      }
      if (is_affine(F) && lane < 4 && n * 8 + 2 * lane < end) {
        copy_ahead_shared(&stats[n][lane], from.stats + n * 8);
      }
    }
  }
};

// Where a warp stands in the activations of a product: this lane's values and stats of a group.
template <LinearFormat F, int kColumns>
struct RowsPlace {
  const uint16_t* values[kColumns];  // of rows n * 8 + lane / 4, or the last
  const float2* stats;               // of rows 2 t, 2 t + 1 of the first 8

  __device__ __forceinline__ void enter(const ActivationRows& x, int n_rows, int group) {
    const int lane = lane_id();
    const uint16_t* rows = F == LinearFormat::bf16 ? x.bf16 : x.f16;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int row = min(n * 8 + lane / 4, n_rows - 1);
      values[n] = rows + (int64_t(row) * x.groups + group) * kGroupColumns + lane % 4 * 8;
    }
    stats = x.stats + int64_t(group) * x.stats_rows + lane % 4 * 2;
  }
  __device__ __forceinline__ void next(const ActivationRows& x) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) values[n] += kGroupColumns;
    if (is_affine(F)) stats += x.stats_rows;
  }
};

// Groups of kColumns times 8 rows of activations on their way through shared memory, for one warp.
// kOwn: a lane brings all that it takes, and so waits for no other; rows that are not there are the last one
// once more. Else a value is brought once, and a single row is read by all; rows that are not there are
// anything.
template <LinearFormat F, int kColumns, bool kOwn>
struct InputRing {
  static constexpr int kValues = kWarp * 16, kStats = !is_affine(F) ? 0 : kOwn ? kWarp * 16 : 64;
  static constexpr int kColumnBytes = 2 * kValues + kStats, kSlotBytes = kColumns * kColumnBytes;
  SharedPlace values, stats;  // where this lane's go in the first slot
  SharedPlace taken;          // whence it takes values
  int brings;                 // bit n: a lane brings values of the n-th 8 rows; bit 8 + n: stats

  __device__ __forceinline__ InputRing(std::byte* memory, int n_rows) {
    const int lane = lane_id();
    values = shared_place(memory + lane * 16);
    taken = kOwn || kColumns > 1 ? values
                                 : shared_place(memory + (min(lane / 4, n_rows - 1) * 4 + lane % 4) * 16);
    stats = kOwn ? values + 2 * kValues : shared_place(memory + 2 * kValues + lane % 4 * 16);
    int bits = 0;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      bits |= n * 8 + lane / 4 < n_rows ? 1 << n : 0;
      bits |= lane < 4 && n * 8 < n_rows ? 256 << n : 0;
    }
    brings = kept(bits);
  }
  __device__ __forceinline__ void ask(int slot, const RowsPlace<F, kColumns>& from) const {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int at = slot * kSlotBytes + n * kColumnBytes;
      if (kOwn || (brings & 1 << n) != 0) {
        copy_ahead_shared(values + at, from.values[n]);
        copy_ahead_shared(values + (at + kValues), from.values[n] + 32);
      }
      if (is_affine(F) && (kOwn || (brings & 256 << n) != 0)) {
        copy_ahead_shared(stats + at, from.stats + n * 8);
      }
    }
  }
  // Where others read what a lane brought.
  __device__ __forceinline__ void meet() const {
    if constexpr (!kOwn) __syncwarp();
  }
};

// What a lane reads of 8 activation rows and one group: the 8-column operand of steps 2 j + h. Affine: step
// and step * sum of rows 2 t, 2 t + 1 with it. A row that is not there reads as zeros (its stats as
// something, and is never stored).
template <LinearFormat F>
struct Input {
  uint32_t b[4][2];
  float step[2], shift[2];

  // This lane's columns of its row: 8 t .. 8 t + 7 of the group and of its second half.
  __device__ __forceinline__ void set_values(uint4 first, uint4 second) {
    b[0][0] = first.x;
    b[0][1] = first.y;
    b[1][0] = first.z;
    b[1][1] = first.w;
    b[2][0] = second.x;
    b[2][1] = second.y;
    b[3][0] = second.z;
    b[3][1] = second.w;
  }
  // Of rows 2 t and 2 t + 1.
  __device__ __forceinline__ void set_stats(float4 s) {
    step[0] = s.x;
    shift[0] = s.y;
    step[1] = s.z;
    shift[1] = s.w;
  }
  // The n-th 8 rows of a slot that has arrived.
  template <int kColumns, bool kOwn>
  __device__ __forceinline__ void take(const InputRing<F, kColumns, kOwn>& ring, int slot, int n) {
    using Ring = InputRing<F, kColumns, kOwn>;
    const int at = slot * Ring::kSlotBytes + n * Ring::kColumnBytes;
    set_values(load_shared(ring.taken + at), load_shared(ring.taken + (at + Ring::kValues)));
    if constexpr (is_affine(F)) {
      const uint4 s = load_shared(ring.stats + at);
      set_stats(make_float4(__uint_as_float(s.x), __uint_as_float(s.y), __uint_as_float(s.z),
                            __uint_as_float(s.w)));
    }
  }
  template <int kColumns>
  __device__ __forceinline__ void take(const InputSlot<F, kColumns>& slot, int n) {
    set_values(slot.values[n][0][lane_id()], slot.values[n][1][lane_id()]);
    if constexpr (is_affine(F)) set_stats(slot.stats[n][lane_id() % 4]);
  }
};

// Codes become fp16 numbers by their bits: 0x6400 | c is 1024 + c, from which 1024 is taken away; 0x4c00 | c
// << 6 is 16 + c, which stays (a sum that 1024 is part of would lose digits of small codes).
constexpr float code_offset(LinearFormat f) { return is_affine4(f) ? 16.0f : 0.0f; }

// The 16-row operand of step s = 2 j + h.
template <LinearFormat F>
__device__ __forceinline__ void operand(const Record<F>& r, int s, uint32_t (&a)[4]) {
  if constexpr (F == LinearFormat::bf16) {
    a[0] = r.words[s].x;
    a[1] = r.words[s].y;
    a[2] = r.words[s].z;
    a[3] = r.words[s].w;
  } else if constexpr (is_affine8(F)) {
    const uint4& w = r.words[s / 2];
    const uint32_t low = s % 2 == 0 ? w.x : w.z, high = s % 2 == 0 ? w.y : w.w;  // rows g and g + 8
    const auto codes = [](uint32_t w, uint32_t which) {
      return subtract_f16_pairs(pick_bytes(w, 0x64646464u, which), 0x64006400u);
    };
    a[0] = codes(low, 0x4140u);
    a[1] = codes(high, 0x4140u);
    a[2] = codes(low, 0x4342u);
    a[3] = codes(high, 0x4342u);
  } else {
    const uint32_t low = s / 2 == 0 ? r.words[0].x : r.words[0].z,
                   high = s / 2 == 0 ? r.words[0].y : r.words[0].w;
    const auto code = [](uint32_t shifted) { return masked_or(shifted, 0x03c003c0u, 0x4c004c00u); };
    if (s % 2 == 0) {
      a[0] = code(low << 6);
      a[1] = code(high << 6);
      a[2] = code(low << 2);
      a[3] = code(high << 2);
    } else {
      a[0] = code(low >> 2);
      a[1] = code(high >> 2);
      a[2] = code(low >> 6);
      a[3] = code(high >> 6);
    }
  }
}

// Adds the products of kTiles records with kColumns times 8 rows to acc. Affine: per group of 64 columns
// (wide: 32) the sum of (offset + code) q, then acc = fma(scale * step, sum, fma(bias - offset * scale, step
// * sum of q, acc)). Each half of a wide group has its own bias, and takes its own sum of q from a product
// with ones.
template <LinearFormat F, int kTiles, int kColumns>
__device__ __forceinline__ void multiply_group(const Record<F> (&records)[kTiles],
                                               const Input<F> (&x)[kColumns],
                                               float (&acc)[kTiles][kColumns][4]) {
  if constexpr (F == LinearFormat::bf16) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        uint32_t a[4];
        operand(records[r], s, a);
#pragma unroll
        for (int n = 0; n < kColumns; ++n) mma_bf16(acc[r][n], a, x[n].b[s][0], x[n].b[s][1]);
      }
    }
  } else {
    constexpr int kHalves = is_wide(F) ? 2 : 1, kSteps = 4 / kHalves;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float shift[kColumns][2];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        if constexpr (is_wide(F)) {
          const uint32_t ones[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
          float sums[4] = {};
#pragma unroll
          for (int s = half * kSteps; s < (half + 1) * kSteps; ++s)
            mma_f16(sums, ones, x[n].b[s][0], x[n].b[s][1]);
          shift[n][0] = x[n].step[0] * sums[0];
          shift[n][1] = x[n].step[1] * sums[1];
        } else {
          shift[n][0] = x[n].shift[0];
          shift[n][1] = x[n].shift[1];
        }
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        float part[kColumns][4] = {};
#pragma unroll
        for (int s = half * kSteps; s < (half + 1) * kSteps; ++s) {
          uint32_t a[4];
          operand(records[r], s, a);
#pragma unroll
          for (int n = 0; n < kColumns; ++n) mma_f16(part[n], a, x[n].b[s][0], x[n].b[s][1]);
        }
        float scale[2], bias[2];  // of rows g, g + 8
        if constexpr (is_wide(F)) {
          const uint4& s = records[r].scales[half];
          scale[0] = __uint_as_float(s.x);
          bias[0] = __uint_as_float(s.y);
          scale[1] = __uint_as_float(s.z);
          bias[1] = __uint_as_float(s.w);
        } else {
          const uint4& s = records[r].scales[0];
          scale[0] = bf16_low(s.x);
          bias[0] = bf16_high(s.x);
          scale[1] = bf16_low(s.y);
          bias[1] = bf16_high(s.y);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float shifted =
              is_affine4(F) ? fmaf(scale[i / 2], -code_offset(F), bias[i / 2]) : bias[i / 2];
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            acc[r][n][i] = fmaf(scale[i / 2] * x[n].step[i % 2], part[n][i],
                                fmaf(shifted, shift[n][i % 2], acc[r][n][i]));
          }
        }
      }
    }
  }
}

// One value of a part's matrix, whatever its format: w = scale * code + bias, product and sum rounded. For
// what is small or rare: embeddings, mixtures of mixed formats.
__device__ __forceinline__ float weight_value(LinearFormat format, const std::byte* weights,
                                              int64_t first_tile, int groups, int k, int row, int column) {
  if (format == LinearFormat::f32) {
    return reinterpret_cast<const float*>(weights)[(first_tile * kTileRows + row) * k + column];
  }
  const auto* record = reinterpret_cast<const uint8_t*>(
      weights + ((first_tile + row / kTileRows) * groups + column / kGroupColumns) * record_bytes(format));
  const int g = row % 8, high = row % kTileRows / 8;
  const int in = column % kGroupColumns, j = in / 32, lane = g * 4 + in % 32 / 8, h = in % 8 / 4, e = in % 4;
  if (format == LinearFormat::bf16) {
    return bf16_value(*reinterpret_cast<const uint16_t*>(record + (j * 2 + h) * 512 + lane * 16 +
                                                         (e / 2 * 2 + high) * 4 + e % 2 * 2));
  }
  const int code = is_affine8(format)
                       ? record[j * 512 + lane * 16 + (h * 2 + high) * 4 + e]
                       : record[lane * 16 + (j * 2 + high) * 4 + e % 2 * 2 + h] >> (e / 2 * 4) & 15;
  const uint8_t* pairs = record + code_bytes(format);
  if (is_wide(format)) {
    const float* of_row = reinterpret_cast<const float*>(pairs + j * 128 + g * 16 + high * 8);
    return of_row[0] * float(code) + of_row[1];
  }
  const uint32_t both = *reinterpret_cast<const uint32_t*>(pairs + g * 8 + high * 4);
  return bf16_low(both) * float(code) + bf16_high(both);
}

template <class Go>
void by_format(LinearFormat format, Go&& go) {
  switch (format) {
    case LinearFormat::bf16:
      return go(std::integral_constant<LinearFormat, LinearFormat::bf16>());
    case LinearFormat::affine8:
      return go(std::integral_constant<LinearFormat, LinearFormat::affine8>());
    case LinearFormat::affine8_wide:
      return go(std::integral_constant<LinearFormat, LinearFormat::affine8_wide>());
    case LinearFormat::affine4:
      return go(std::integral_constant<LinearFormat, LinearFormat::affine4>());
    case LinearFormat::affine4_wide:
      return go(std::integral_constant<LinearFormat, LinearFormat::affine4_wide>());
    case LinearFormat::f32:
      return;
  }
}

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The binary tree over kCount values, neighbours first.
template <int kCount, class Load>
__device__ __forceinline__ float4 tree(Load&& load) {
  if constexpr (kCount == 1) {
    return load(0);
  } else {
    return add4(tree<kCount / 2>(load), tree<kCount / 2>([&](int i) { return load(kCount / 2 + i); }));
  }
}

}  // namespace tandem::cuda
