// The exact value of each operation in double, written from the formulas and independent of every backend,
// with a bound on how far a backend's result may lie from it (bounds.h).
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "conformance/bounds.h"
#include "conformance/harness.h"

namespace tandem::conformance {

struct Estimate {
  double value = 0;
  double bound = 0;
};

// Rows of estimates.
struct Estimates {
  int rows = 0, cols = 0;
  std::vector<Estimate> v;

  Estimates() = default;
  Estimates(int r, int c) : rows(r), cols(c), v(size_t(r) * size_t(c)) {}
  explicit Estimates(const Rows& exact);  // inputs: exact, bound 0
  Estimate* row(int r) { return v.data() + int64_t{r} * cols; }
  const Estimate* row(int r) const { return v.data() + int64_t{r} * cols; }
  Estimate& at(int r, int c) { return row(r)[c]; }
  const Estimate& at(int r, int c) const { return row(r)[c]; }
};

// Every value within its bound; the message names the worst one.
testing::AssertionResult within(const Rows& got, const Estimates& want);
// |got - want| in L2 over |want| in L2, of all rows added so far.
class RelativeL2 {
 public:
  void add(const Rows& got, const Estimates& want);
  int rows() const { return rows_; }
  double value() const;

 private:
  int rows_ = 0;
  double error_ = 0, norm_ = 0;
};

// How activations of a product with affine or bf16 weights are treated.
enum class Activations {
  exact,      // not rounded
  rounded,    // rounded to 8 bits or to bf16 in the estimate too: bounds stay at fp32 level
  fine,       // likewise, to scaled fp16 in place of 8 bits
  uncertain,  // not rounded in the estimate; the rounding is part of the bound
};
Activations activations_of(const Arithmetic& arithmetic);  // all but uncertain

// y = x w^T in slices (+ bias); `parts` are matrices below each other, rows [first_row, first_row + n) of
// them are used.
struct LinearSpec {
  std::vector<const RandomMatrix*> parts;
  std::vector<float> bias = {};
  int first_row = 0, n = -1;  // -1: to the end
  int extra_roundings = 0;    // that the product's terms meet afterwards
};
Estimates linear(const Estimates& x, const LinearSpec& w, Activations activations);
// a + b, rounded once.
Estimates add(const Estimates& a, const Estimates& b);
Estimates rms_norm(const Estimates& x, const Rows& gain, float eps);  // over gain.cols columns at a time
Estimates silu(const Estimates& x);
Estimates multiply(const Estimates& a, const Estimates& b);  // elementwise, rounded once
// silu of the first half of the columns times the second half.
Estimates silu_mul(const Estimates& gate_up);
Estimate sigmoid(const Estimate& x);

}  // namespace tandem::conformance
