// The backends that a test of whole models runs on.
#pragma once

#include <vector>

#include "backend/registry.h"

namespace tandem {

// Those made for speed that work here: cpu with every instruction set of this machine, cuda where there is a
// card.
inline std::vector<BackendOptions> fast_backends() {
  std::vector<BackendOptions> all;
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    const BackendOptions cpu{.name = "cpu", .threads = 2, .isa = isa};
    if (make_backend(cpu).ok()) all.push_back(cpu);
  }
  if (const BackendOptions cuda{.name = "cuda"}; make_backend(cuda).ok()) all.push_back(cuda);
  return all;
}

inline std::vector<BackendOptions> all_backends() {
  std::vector<BackendOptions> all = fast_backends();
  all.insert(all.begin(), BackendOptions{.name = "reference"});
  return all;
}

}  // namespace tandem
