// How a packed matrix lies in memory. Internal to backend/cpu.
//
// Outputs in tiles of 32; a tile is one sequential stream over k, tiles follow each other.
//
// Affine: blocks of max(64, group) columns. A block holds its steps (64 columns each), then its scales and
// biases:
//   step   bit planes (plane_widths), low bits first. Unpacked, a step is u8 codes [16 quads][32 outputs][4
//   columns]: one
//          quad is what a byte dot product multiplies with 4 activations. A plane of w bits packs 8 / w quads
//          into each row of 128 bytes: quad (8 / w) p + i lies in row p at bit i w of its byte. So 8 bits are
//          the codes themselves.
//   scales per group of the block: scales [32], biases [32] in the checkpoint's dtype.
// Columns past k (groups of 32 only) are zeros with zero scales.
//
// Dense: slices, each a sequence of columns:
//   bf16      [pairs of columns][32 outputs][2]; an odd last column is paired with zeros
//   f16, f32  [columns][32 outputs]
#pragma once

#include <array>
#include <cstddef>

#include "backend/cpu/linear.h"

namespace tandem::cpu {

inline constexpr int kTile = 32;  // outputs
inline constexpr int kStep = 64;  // columns
inline constexpr int kQuads = kStep / 4;
inline constexpr int kQuadBytes = kTile * 4;
inline constexpr int kStepCodes = kTile * kStep;  // bytes of an unpacked step

// Widths of the planes that make up a code, low bits first; 0 ends the list.
constexpr std::array<int, 2> plane_widths(int bits) {
  switch (bits) {
    case 2:
      return {2, 0};
    case 3:
      return {2, 1};
    case 4:
      return {4, 0};
    case 5:
      return {4, 1};
    case 6:
      return {4, 2};
    default:
      return {8, 0};
  }
}

constexpr int packed_step_bytes(int bits) { return bits * kStepCodes / 8; }

// Sizes of an affine tile's parts, and where step t begins.
struct AffineLayout {
  int steps_per_block, groups_per_block;
  size_t step_bytes, scale_bytes, block_bytes;  // scale_bytes: one group's scales and biases
  int n_blocks;

  explicit AffineLayout(const LinearFormat& format, int k)
      : steps_per_block(format.group > kStep ? format.group / kStep : 1),
        groups_per_block(format.group < kStep ? kStep / format.group : 1),
        step_bytes(size_t(packed_step_bytes(format.bits))),
        scale_bytes(2 * kTile * dtype_bytes(format.scale_dtype)),
        block_bytes(size_t(steps_per_block) * step_bytes + size_t(groups_per_block) * scale_bytes),
        n_blocks((k + steps_per_block * kStep - 1) / (steps_per_block * kStep)) {}

  size_t step_offset(int t) const {
    return size_t(t / steps_per_block) * block_bytes + size_t(t % steps_per_block) * step_bytes;
  }
  // Scales and biases of step t (its first group, where it has two).
  size_t scale_offset(int t) const {
    return size_t(t / steps_per_block) * block_bytes + size_t(steps_per_block) * step_bytes;
  }
};

// Bytes of `columns` columns of a dense tile.
inline size_t dense_bytes(DType dtype, int columns) {
  if (dtype == DType::bf16) return size_t((columns + 1) / 2) * kTile * 4;
  return size_t(columns) * kTile * dtype_bytes(dtype);
}

}  // namespace tandem::cpu
