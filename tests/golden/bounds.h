// How far logits may be from the goldens, relative to the largest golden logit. Derived in docs/numerics.md.
#pragma once

#include <string_view>

namespace tandem {

inline double golden_bound(std::string_view backend, bool quantised) {
  if (backend == "reference") return 1e-4;  // fp32 throughout
  if (backend == "cuda") return 5e-3;       // activations of 11 bits or bf16; bf16 keys and values
  return quantised ? 2e-2 : 5e-3;           // int8 activations; bf16 keys and values
}

}  // namespace tandem
