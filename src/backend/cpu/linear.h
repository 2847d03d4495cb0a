// Matrix products with packed weights: y[r][o] = sum_k x[r][k] w[o][k].
//
// One kernel family for any number of rows; the arithmetic of an output element is fixed by the weight alone:
//   * k is cut into `n_slices` slices of equal length; each slice's sum starts from zero and the slices are
//   added in the
//     binary tree over the slice index. Bias, then residual are added once, after the root.
//   * within a slice, steps of 64 columns in ascending order.
//     affine, per step and weight group (64 columns of one group at most; twice 32 for groups of 32):
//         acc = fma(float(sum of code * q), scale * step, acc);  acc = fma(bias, step * sum of q, acc)
//       The sum of code * q is an exact integer.
//     dense, per step:  part = 0;  part = fma(w, x, part) for each column in order;  acc = acc + part
//       f16 and f32 weights are widened to fp32 and activations are fp32, columns ascending. bf16 weights
//       meet activations rounded to bf16, and of each pair of columns the odd one comes first, because
//       AVX512_BF16 does.
// So a row's bits do not depend on other rows, on its place, on threads or on the instruction set (but for
// subnormal numbers, which AVX512_BF16 takes for zero).
//
// Packed layout: outputs in tiles of 32 (the last one padded with zeros), one sequential stream of bytes per
// tile; see linear_layout.h. Nothing here allocates but pack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/activations.h"
#include "backend/cpu/isa.h"
#include "backend/weight.h"
#include "base/huge_memory.h"
#include "base/thread_team.h"
#include "tensor/dtype.h"

namespace tandem::cpu {

// How a matrix is stored: dense values, or affine codes with scales and biases.
struct LinearFormat {
  DType dtype = DType::f32;         // dense: f32, f16, bf16
  int bits = 0;                     // 0: dense; else 2, 3, 4, 5, 6, 8
  int group = 0;                    // affine: 32, 64, 128
  DType scale_dtype = DType::bf16;  // affine: bf16, f16, f32

  bool affine() const { return bits != 0; }
  bool operator==(const LinearFormat&) const = default;
};
LinearFormat linear_format(const HostMatrix& matrix);

// n outputs of one of n_matrices stacked matrices (experts). Affine: k is a multiple of the group, and if
// n_slices > 1, k / n_slices a multiple of max(64, group). Dense: k a multiple of n_slices.
struct LinearShape {
  LinearFormat format;
  int n = 0, k = 0;
  int n_slices = 1;  // 1, 2, 4, 8
  int n_matrices = 1;

  int n_tiles() const { return (n + 31) / 32; }
  int slice_k() const { return k / n_slices; }
};
// Bytes of one tile's stream, and of the whole packed weight.
size_t tile_bytes(const LinearShape& shape);
size_t packed_bytes(const LinearShape& shape);

// A packed weight; owns its memory (a piece of the arena's).
struct PackedLinear {
  LinearShape shape;
  HugeBuffer memory;

  const std::byte* tile(int matrix, int tile) const {
    return memory.data() + (size_t(matrix) * size_t(shape.n_tiles()) + size_t(tile)) * tile_bytes(shape);
  }
  // What one pass over all matrices reads.
  size_t bytes() const { return memory.size(); }
};

// Packs the rows that `runs` lists (n_matrices * n of them, matrix after matrix, all of shape.format and of k
// columns). Error: memory.
Result<PackedLinear> pack_linear(ThreadTeam& team, HugeArena& arena, const LinearShape& shape,
                                 std::span<const RowRun> runs);

// The inputs of a product. An affine weight reads `quantized`, a bf16 one `rounded`, others `values`; what no
// part reads may be empty.
struct LinearInput {
  const float* values = nullptr;  // [rows, k]
  int64_t stride = 0;             // of values, in elements
  QuantizedRows quantized;
  RoundedRows rounded;
};

struct LinearOutput {
  float* y = nullptr;               // [rows, n]
  int64_t stride = 0;               // elements from one row to the next
  const float* bias = nullptr;      // [n] or null
  const float* residual = nullptr;  // [rows, n] or null: y = residual + product; may be y itself
  int64_t residual_stride = 0;
  // 0: slices are added. Else their sums are left apart: slice s of row r goes to y + s * slice_stride + r *
  // stride, and bias and residual must be null.
  int64_t slice_stride = 0;
};

// y = x w^T for `rows` rows. Weights with one matrix.
void linear(ThreadTeam& team, Isa isa, const PackedLinear& w, const LinearInput& x, int rows,
            const LinearOutput& out);

// Rows that one matrix of a stack (an expert) works on: entries [first, first + count) of the row lists.
struct ExpertRows {
  int32_t matrix = 0;
  int32_t first = 0, count = 0;
};
// For every group g and entry e of it: out row out_rows[e] = matrix g applied to input row in_rows[e].
// out.bias, if any, is [n_matrices, n]. An out row must appear once.
struct ExpertRouting {
  std::span<const ExpertRows> groups;
  const int32_t* in_rows = nullptr;
  const int32_t* out_rows = nullptr;
};
void linear_experts(ThreadTeam& team, Isa isa, const PackedLinear& w, const LinearInput& x,
                    const ExpertRouting& routing, const LinearOutput& out);

// Row `row` of matrix 0, dequantised: scale * code + bias as one fma in fp32, or the dense value. out [k].
void unpack_row(const PackedLinear& w, int row, float* out);

}  // namespace tandem::cpu
