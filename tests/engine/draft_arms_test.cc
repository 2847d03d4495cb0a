// Which drafter a sequence gets: all are tried, the fastest is used, none is forgotten.
#include "engine/draft_arms.h"

#include <gtest/gtest.h>

#include <map>

#include "speculate/ngram_drafter.h"

namespace tandem {
namespace {

TEST(DraftArms, WithoutArmsThereIsNone) { EXPECT_EQ(choose_arm({}), nullptr); }

TEST(DraftArms, TheFastestIsUsedAndTheOthersAreLookedAtNowAndThen) {
  NgramDrafter drafter(1);
  std::vector<DraftArm> arms;
  for (int i = 0; i < 3; ++i) arms.emplace_back(drafter);
  double speed_up[] = {1.1, 1.5, 0.9};
  const auto play = [&](int n_sequences) {
    std::map<size_t, int> n;
    for (int i = 0; i < n_sequences; ++i) {
      DraftArm* arm = choose_arm(arms);
      const auto index = size_t(arm - arms.data());
      ++n[index];
      for (int round = 0; round < 20; ++round) arm->add_round(speed_up[index], 1);
    }
    return n;
  };
  EXPECT_EQ(play(3), (std::map<size_t, int>{{0, 1}, {1, 1}, {2, 1}})) << "each is tried first";
  std::map<size_t, int> n = play(80);
  EXPECT_GE(n[1], 74);
  EXPECT_GE(n[0], 1);
  EXPECT_GE(n[2], 1);
  speed_up[2] = 2.5;  // texts change
  n = play(80);
  EXPECT_GE(n[2], 30);
}

}  // namespace
}  // namespace tandem
