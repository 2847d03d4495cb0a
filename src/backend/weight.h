// Matrices on their way from a checkpoint into a backend's own layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tensor/dtype.h"

namespace tandem {

// Random values of a standard deviation, drawn with a key (random_weights.h).
struct RandomWeights {
  uint64_t key = 0;
  float deviation = 0;
};

// One matrix [n, k] in host memory, row-major, as a checkpoint holds it: dense, or affine group-quantised in
// the MLX layout (w = scale * code + bias per group of `group` columns; codes packed least significant bit
// first into a little-endian stream of k * bits / 8 bytes a row). Pointers may be misaligned. Borrows.
struct HostMatrix {
  std::string name;  // the checkpoint's name, for errors
  int n = 0, k = 0;
  DType dtype = DType::f32;         // dense: f32, f16 or bf16
  const std::byte* data = nullptr;  // dense values, or packed codes
  int bits = 0;                     // 0: dense; else 2, 3, 4, 5, 6 or 8
  int group = 0;                    // affine: 32, 64 or 128; divides k
  DType scale_dtype = DType::bf16;  // affine: dtype of scales and biases, [n, k / group]
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
  // In place of data, scales and biases, for a backend that makes them itself (makes_random_weights): bf16
  // values, or codes with bf16 scales.
  std::optional<RandomWeights> random = std::nullopt;

  bool affine() const { return bits != 0; }
  int64_t row_bytes() const {
    return affine() ? int64_t{k} * bits / 8 : int64_t{k} * int64_t(dtype_bytes(dtype));
  }
};

// `n_rows` consecutive rows of a matrix. A packed weight is a list of runs: merged projections, row
// permutations and stacked experts are all made this way, for any quantisation.
struct RowRun {
  const HostMatrix* matrix = nullptr;
  int first_row = 0, n_rows = 0;
};

struct PackRequest {
  std::string name;              // our name, for errors and reports
  std::span<const RowRun> rows;  // in output order; all of the same k
  int n_experts = 1;             // > 1: the rows are n_experts equal parts, one matrix each
  int n_slices = 1;  // k-slices of the sum (1, 2, 4 or 8; see docs/numerics.md), each k / n_slices wide
  std::span<const float> bias =
      {};  // empty, or [n]: added to the product, after the root of the slices' tree
};

struct PackShape {
  int n = 0, k = 0;  // of one expert
};

// What a request packs to. Checks it first: one k for all runs, rows inside their matrix, slices that respect
// quantisation groups, a bias only without experts. The loader guarantees these: a violation is our own bug.
PackShape pack_shape(const PackRequest& request);

// A row of a matrix as fp32, k values. Affine: scale * code + bias, the product and the sum each rounded
// once.
void row_as_f32(const HostMatrix& matrix, int row, std::span<float> out);

// A packed matrix (or a stack of experts) inside a backend. Opaque: only the backend that packed it reads it.
class Weight {
 public:
  Weight(int n, int k, int n_experts, int n_slices)
      : n_(n), k_(k), n_experts_(n_experts), n_slices_(n_slices) {}
  virtual ~Weight() = default;
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  int n() const { return n_; }  // outputs (of one expert)
  int k() const { return k_; }
  int n_experts() const { return n_experts_; }
  int n_slices() const { return n_slices_; }
  // Bytes of device memory that one pass over the whole matrix (all experts) reads.
  virtual size_t bytes() const = 0;

 private:
  int n_, k_, n_experts_, n_slices_;
};

// Slices of an affine weight begin at multiples of this, whatever its group: activations are quantised in
// groups of 64.
constexpr int kSliceColumns = 64;

// The number of k-slices of a weight whose k dimension tensor parallelism may shard: the largest of 8, 4, 2,
// 1 that cuts k at multiples of `unit` (a common multiple of whatever may not be split: a head's width, for
// affine weights the quantisation group and kSliceColumns).
int k_slices(int k, int unit);

}  // namespace tandem
