// A stack of experts as the kernels of mixtures take it.
#pragma once

#include "backend/cuda/weight.h"

namespace tandem::cuda {

// One stack of experts of one format, or a shared expert.
struct ExpertPart {
  const std::byte* data;
  int tiles, groups;  // of an expert
};

inline ExpertPart expert_part(const Weight* w) {
  if (w == nullptr) return {};
  const WeightPart& p = ours(*w).parts[0];
  return {p.data, p.tiles, p.groups};
}

}  // namespace tandem::cuda
