// How far a backend's results may lie from the exact value, derived. The only place with tolerances: a test
// asks estimate.h for a value and its bound, and estimate.h asks this page. docs/numerics.md cites it.
//
// Notation: u = 2^-24, the unit roundoff of fp32. A sum of products x_i w_i in which every product passes
// through at most d roundings (fma or add, in any grouping) differs from the exact sum by at most gamma_d sum
// |x_i w_i|, gamma_d = d u / (1 - d u) (Higham, Accuracy and Stability of Numerical Algorithms, ch. 3). d is
// the *depth* of the sum, not its length: blocked and laned sums are shallow. Where many sums feed each other
// (the delta rule over hundreds of tokens) the worst case is never met, and we use the probabilistic form
// instead: lambda sqrt(d) u with probability at least 1 - 2 exp(-lambda^2 / 2) (Higham and Mary, A New
// Approach to Probabilistic Rounding Error Analysis, 2019); our lambda = 6 leaves 3e-8.
#pragma once

#include <cmath>
#include <string>

namespace tandem::conformance {

constexpr double kU = 0x1p-24;
constexpr double kLambda = 6;

// Smallest magnitude below which we ask for nothing but a tiny result: exp and its quotients underflow (or
// overflow and divide) a little earlier in fp32 than the exact function does.
constexpr double kTiny = 0x1p-118;

// ---- sums ----

// Matrix products: blocks of at most 64 columns, each summed by a chain of fused multiply-adds, blocks then
// added one after the other (an affine block of 64 adds up to four terms: two groups' codes and two biases);
// k-slices add 3 levels, bias and residual one each.
constexpr double linear_depth(int k) { return 64 + 4 * std::ceil(k / 64.0) + 5; }

// Sums over a row or a head in lanes: at least 8 running sums, then at most 6 levels across lanes and
// vectors.
constexpr double lane_depth(int n) { return std::ceil(n / 8.0) + 6; }

// Attention: a score is one chain over the dimensions of a head; values are added position after position
// within a page of 64, page after page; splits of pages rescale once more. Roundings that one position's term
// meets:
constexpr double score_depth(int d_head) { return d_head + 1; }
constexpr double value_depth(int n_positions) { return 64 + 3 * std::ceil(n_positions / 64.0) + 3; }

// ---- elementary functions, in units of u (relative) ----

constexpr double kExp = 4;             // exp within 2 ulp; 1 ulp is 2 u
constexpr double kSigmoid = kExp + 3;  // 1 / (1 + e): 1 + e and the quotient round once each
constexpr double kSilu = kExp + 3;     // x / (1 + e)
constexpr double kLog1p = 8;           // log1p within 4 ulp, argument >= 0
constexpr double kRsqrt = 3;  // sum / n + eps, sqrt, quotient: halved where under the root, generously

// The largest slope of silu: |silu(x) - silu(y)| <= 1.1 |x - y|.
constexpr double kSiluSlope = 1.1;

// ---- what a backend's number formats cost ----

struct Arithmetic {
  // Products with affine weights read activations rounded to 8 bits: per row and group of 64 columns, with a
  // = max |x| of the group, step = a / 127, x becomes step * round(x / step). So |error| <= step / 2 a value,
  // and a product is off by at most sum_k |w_k| step_g(k) / 2, before any fp32 rounding.
  // bf16 weights meet activations rounded to bf16: relative error at most 2^-9 each.
  bool rounded_activations = false;
  // The same to fp16, after a scaling of each group by a power of two.
  bool fine_activations = false;
  // Keys and values are rounded when stored: relative error at most this.
  double kv_roundoff = 0;
};

inline Arithmetic arithmetic_of(const std::string& backend) {
  if (backend == "reference") return {};
  return {.rounded_activations = true,
          .fine_activations = backend == "cuda",
          .kv_roundoff = 0x1p-9};  // bf16: 8 significant bits
}

constexpr int kActivationColumns = 64;

// ---- statistical ceilings ----
// Relative L2 errors over many outputs are sums of independent roundings: far below the worst case above.
// These ceilings catch what the worst case would let through (a decay kept in bf16, an inverse by repeated
// squaring); they are about four times what was measured on random inputs, and hold for heads up to 256 wide
// and any length.
// They speak of at least kL2Tokens tokens together: one token's outputs share its k . q, which may cancel.
constexpr int kL2Tokens = 16;
constexpr double kRecurrenceL2 = 2e-6;  // delta rule token by token, against double
constexpr double kChunkL2 = 5e-6;       // delta rule in chunks of 64, against double

}  // namespace tandem::conformance
