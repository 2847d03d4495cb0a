// The rival of prefill: a vendor library's matrix product of the model's shapes.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace tandem::bench {

enum class GemmType { bf16, int8 };

// y [m, n] f32 = x [m, k] w [n, k]^T with weights packed as the library likes them, ready to run. int8 is
// unsigned activations times signed weights, as its fast kernels want them.
class Gemm {
 public:
  // Errors: what the library says (a type that it has no code for on this machine).
  static Result<std::unique_ptr<Gemm>> create(GemmType type, int m, int n, int k);
  virtual ~Gemm() = default;
  // Runs on `threads` threads; they may spin for a moment afterwards.
  virtual void run(int threads) = 0;
};

}  // namespace tandem::bench
