// Checkpoint rows -> tiles (linear_layout.h), and single rows back to fp32.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/linear.h"
#include "backend/cpu/linear_layout.h"
#include "base/check.h"

namespace tandem::cpu {
namespace {

static_assert(std::endian::native == std::endian::little);

// Where the rows of one tile are. Null: padding.
struct TileRows {
  const std::byte* values[kTile] = {};
  const std::byte* scales[kTile] = {};
  const std::byte* biases[kTile] = {};
  int n = 0;
};

class RowList {
 public:
  RowList(const LinearShape& shape, std::span<const RowRun> runs) : shape_(shape), runs_(runs) {
    int64_t n = 0;
    starts_.reserve(runs.size());
    for (const RowRun& run : runs) {
      const HostMatrix& m = *run.matrix;
      TD_CHECK(m.k == shape.k && linear_format(m) == shape.format,
               "%s: [%d, %d] of %d bits in a weight of k %d, %d bits\n", m.name.c_str(), m.n, m.k, m.bits,
               shape.k, shape.format.bits);
      TD_CHECK(run.first_row >= 0 && run.n_rows >= 0 && run.first_row + run.n_rows <= m.n,
               "%s: rows %d + %d of %d\n", m.name.c_str(), run.first_row, run.n_rows, m.n);
      starts_.push_back(n);
      n += run.n_rows;
    }
    TD_CHECK(n == int64_t{shape.n} * shape.n_matrices, "%lld rows for a weight of %d x %d\n",
             static_cast<long long>(n), shape.n_matrices, shape.n);
  }

  TileRows tile(int64_t index) const {
    const int64_t matrix = index / shape_.n_tiles(), first = index % shape_.n_tiles() * kTile;
    int64_t row = matrix * shape_.n + first;
    TileRows out;
    out.n = int(std::min<int64_t>(kTile, shape_.n - first));
    auto run = size_t(std::upper_bound(starts_.begin(), starts_.end(), row) - starts_.begin()) - 1;
    for (int i = 0; i < out.n; ++i, ++row) {
      while (row - starts_[run] >= runs_[run].n_rows) ++run;
      const HostMatrix& m = *runs_[run].matrix;
      const int64_t source = runs_[run].first_row + (row - starts_[run]);
      out.values[i] = m.data + source * m.row_bytes();
      if (m.affine()) {
        const int64_t offset = source * (m.k / m.group) * int64_t(dtype_bytes(m.scale_dtype));
        out.scales[i] = m.scales + offset;
        out.biases[i] = m.biases + offset;
      }
    }
    return out;
  }

 private:
  const LinearShape& shape_;
  std::span<const RowRun> runs_;
  std::vector<int64_t> starts_;
};

// n codes (a multiple of 8) of a little-endian bit stream.
template <int kBits>
void unpack_codes(const std::byte* in, int n, uint8_t* out) {
  for (int i = 0; i < n; i += 8, in += kBits, out += 8) {
    uint64_t word = 0;
    memcpy(&word, in, kBits);
    for (int j = 0; j < 8; ++j) out[j] = uint8_t((word >> (j * kBits)) & ((1u << kBits) - 1));
  }
}

void unpack_codes(const std::byte* in, int bits, int n, uint8_t* out) {
  switch (bits) {
    case 2:
      return unpack_codes<2>(in, n, out);
    case 3:
      return unpack_codes<3>(in, n, out);
    case 4:
      return unpack_codes<4>(in, n, out);
    case 5:
      return unpack_codes<5>(in, n, out);
    case 6:
      return unpack_codes<6>(in, n, out);
    default:
      memcpy(out, in, size_t(n));
      return;
  }
}

// One step: codes of 32 rows from column `column` on, as bit planes.
void pack_step(const TileRows& rows, int bits, int column, int n_columns, std::byte* out) {
  alignas(64) uint8_t codes[kTile][kStep];
  if (rows.n < kTile || n_columns < kStep) memset(codes, 0, sizeof codes);
  for (int o = 0; o < rows.n; ++o) {
    unpack_codes(rows.values[o] + int64_t{column} * bits / 8, bits, n_columns, codes[o]);
  }
  alignas(64) uint32_t quads[kQuads][kTile];
  for (int o = 0; o < kTile; ++o) {
    for (int j = 0; j < kQuads; ++j) memcpy(&quads[j][o], &codes[o][4 * j], 4);
  }
  int shift = 0;
  for (const int width : plane_widths(bits)) {
    if (width == 0) break;
    const int n = 8 / width;
    const uint32_t mask = 0x01010101u * ((1u << width) - 1);
    for (int p = 0; p < kQuads / n; ++p, out += kQuadBytes) {
      uint32_t row[kTile] = {};
      for (int i = 0; i < n; ++i) {
        for (int o = 0; o < kTile; ++o) row[o] |= ((quads[p * n + i][o] >> shift) & mask) << (i * width);
      }
      memcpy(out, row, sizeof row);
    }
    shift += width;
  }
}

void pack_affine_tile(const LinearShape& shape, const TileRows& rows, std::byte* out) {
  const LinearFormat& format = shape.format;
  const AffineLayout layout(format, shape.k);
  const size_t scale_size = dtype_bytes(format.scale_dtype);
  const int n_groups = shape.k / format.group;
  for (int block = 0; block < layout.n_blocks; ++block) {
    for (int i = 0; i < layout.steps_per_block; ++i, out += layout.step_bytes) {
      const int column = (block * layout.steps_per_block + i) * kStep;
      pack_step(rows, format.bits, column, std::min(kStep, shape.k - column), out);
    }
    for (int i = 0; i < layout.groups_per_block; ++i, out += layout.scale_bytes) {
      const int group = block * layout.groups_per_block + i;
      memset(out, 0, layout.scale_bytes);
      if (group >= n_groups) continue;
      for (int o = 0; o < rows.n; ++o) {
        memcpy(out + size_t(o) * scale_size, rows.scales[o] + size_t(group) * scale_size, scale_size);
        memcpy(out + size_t(kTile + o) * scale_size, rows.biases[o] + size_t(group) * scale_size, scale_size);
      }
    }
  }
}

void pack_dense_tile(const LinearShape& shape, const TileRows& rows, std::byte* out) {
  const DType dtype = shape.format.dtype;
  const int slice_k = shape.slice_k();
  // Values of `size` bytes that move together: pairs of bf16, else one value.
  const int unit = dtype == DType::bf16 ? 2 : 1;
  const size_t size = dtype_bytes(dtype);
  for (int slice = 0; slice < shape.n_slices; ++slice) {
    for (int c = 0; c < slice_k; c += unit) {
      const int n = std::min(unit, slice_k - c);
      const size_t column = size_t(slice) * size_t(slice_k) + size_t(c);
      if (rows.n < kTile || n < unit) memset(out, 0, size_t(kTile * unit) * size);
      for (int o = 0; o < rows.n; ++o) {
        if (n * int(size) == 4) {
          memcpy(out + size_t(o) * 4, rows.values[o] + column * size, 4);
        } else {
          memcpy(out + size_t(o * unit) * size, rows.values[o] + column * size, 2);
        }
      }
      out += size_t(kTile * unit) * size;
    }
  }
}

float value_of(const std::byte* in, DType dtype) {
  if (dtype == DType::f32) {
    float v;
    memcpy(&v, in, 4);
    return v;
  }
  uint16_t v;
  memcpy(&v, in, 2);
  return dtype == DType::bf16 ? float_from_bf16(v) : float_from_f16(v);
}

void unpack_affine_row(const LinearShape& shape, const std::byte* tile, int o, float* out) {
  const LinearFormat& format = shape.format;
  const AffineLayout layout(format, shape.k);
  const size_t scale_size = dtype_bytes(format.scale_dtype);
  for (int first = 0; first < shape.k; first += kStep) {
    const int t = first / kStep, n = std::min(kStep, shape.k - first);
    uint32_t quads[kQuads] = {};
    const std::byte* plane = tile + layout.step_offset(t);
    int shift = 0;
    for (const int width : plane_widths(format.bits)) {
      if (width == 0) break;
      const uint32_t mask = 0x01010101u * ((1u << width) - 1);
      for (int j = 0; j < kQuads; ++j) {
        uint32_t word;
        memcpy(&word, plane + j / (8 / width) * kQuadBytes + o * 4, 4);
        quads[j] |= ((word >> (j % (8 / width) * width)) & mask) << shift;
      }
      plane += width * kStepCodes / 8;
      shift += width;
    }
    for (int c = 0; c < n; ++c) {
      const int group = format.group < kStep ? c / format.group : 0;
      const std::byte* scales = tile + layout.scale_offset(t) + size_t(group) * layout.scale_bytes;
      const float scale = value_of(scales + size_t(o) * scale_size, format.scale_dtype);
      const float bias = value_of(scales + size_t(kTile + o) * scale_size, format.scale_dtype);
      out[first + c] = std::fma(scale, float((quads[c / 4] >> (8 * (c % 4))) & 0xff), bias);
    }
  }
}

}  // namespace

Result<PackedLinear> pack_linear(ThreadTeam& team, HugeArena& arena, const LinearShape& shape,
                                 std::span<const RowRun> runs) {
  const LinearFormat& format = shape.format;
  TD_CHECK(shape.n > 0 && shape.k > 0 && shape.n_matrices > 0 && shape.k % shape.n_slices == 0,
           "weight of %d x [%d, %d] in %d slices\n", shape.n_matrices, shape.n, shape.k, shape.n_slices);
  if (format.affine()) {
    TD_CHECK(shape.k % format.group == 0 &&
                 (shape.n_slices == 1 || shape.slice_k() % std::max(kStep, format.group) == 0),
             "k %d in %d slices, groups of %d\n", shape.k, shape.n_slices, format.group);
  }
  TD_ASSIGN_OR_RETURN(HugeBuffer memory, arena.allocate(packed_bytes(shape)));
  PackedLinear packed{shape, std::move(memory)};
  const RowList rows(shape, runs);
  const int64_t n_tiles = int64_t{shape.n_tiles()} * shape.n_matrices;
  const size_t bytes = tile_bytes(shape);
  const int64_t grain = std::max<int64_t>(1, int64_t((256 << 10) / std::max<size_t>(1, bytes)));
  team.parallel_for(n_tiles, grain, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      std::byte* out = packed.memory.data() + size_t(i) * bytes;
      if (format.affine()) {
        pack_affine_tile(shape, rows.tile(i), out);
      } else {
        pack_dense_tile(shape, rows.tile(i), out);
      }
    }
  });
  return packed;
}

void unpack_row(const PackedLinear& w, int row, float* out) {
  const std::byte* tile = w.tile(0, row / kTile);
  const int o = row % kTile;
  if (w.shape.format.affine()) return unpack_affine_row(w.shape, tile, o, out);
  const DType dtype = w.shape.format.dtype;
  const size_t size = dtype_bytes(dtype);
  const int slice_k = w.shape.slice_k();
  for (int slice = 0; slice < w.shape.n_slices; ++slice, tile += dense_bytes(dtype, slice_k)) {
    for (int c = 0; c < slice_k; ++c) {
      const size_t index =
          dtype == DType::bf16 ? size_t(c / 2 * kTile * 2 + o * 2 + c % 2) : size_t(c * kTile + o);
      out[slice * slice_k + c] = value_of(tile + index * size, dtype);
    }
  }
}

}  // namespace tandem::cpu
