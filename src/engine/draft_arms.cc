#include "engine/draft_arms.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr int kRetryEvery = 24;  // sequences
constexpr double kForget = 0.7;  // weight of what was measured before, with each new sequence

}  // namespace

DraftArm* choose_arm(std::span<DraftArm> arms) {
  if (arms.empty()) return nullptr;
  int n_begun = 0;
  for (const DraftArm& arm : arms) n_begun += arm.n_begun;
  auto chosen = std::min_element(arms.begin(), arms.end(),
                                 [](const DraftArm& a, const DraftArm& b) { return a.n_begun < b.n_begun; });
  const bool retry = n_begun % kRetryEvery == kRetryEvery - 1;
  if (chosen->n_begun > 0 && !retry) {
    chosen = std::max_element(arms.begin(), arms.end(), [](const DraftArm& a, const DraftArm& b) {
      return a.speed_up() < b.speed_up();
    });
  }
  ++chosen->n_begun;
  chosen->plain_s *= kForget;
  chosen->spent_s *= kForget;
  return &*chosen;
}

}  // namespace tandem
