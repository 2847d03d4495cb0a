#include "engine/draft_arms.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr int kRetryEvery = 16;  // sequences between looks at an arm that is not the best
constexpr double kForget = 0.8;  // weight of what was measured before, with each new sequence

}  // namespace

DraftArm* choose_arm(std::span<DraftArm> arms) {
  if (arms.empty()) return nullptr;
  int n_begun = 0;
  for (const DraftArm& arm : arms) n_begun += arm.n_begun;
  // The one that was not used for longest: never, for the first sequences.
  auto chosen = std::min_element(arms.begin(), arms.end(), [](const DraftArm& a, const DraftArm& b) {
    return a.last_begun < b.last_begun;
  });
  const bool retry = n_begun % kRetryEvery == kRetryEvery - 1;
  if (chosen->n_begun > 0 && !retry) {
    chosen = std::max_element(arms.begin(), arms.end(), [](const DraftArm& a, const DraftArm& b) {
      return a.speed_up() < b.speed_up();
    });
  }
  ++chosen->n_begun;
  chosen->last_begun = n_begun + 1;
  chosen->plain_s *= kForget;
  chosen->spent_s *= kForget;
  return &*chosen;
}

}  // namespace tandem
