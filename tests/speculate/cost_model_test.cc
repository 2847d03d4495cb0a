#include "speculate/cost_model.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

namespace tandem {
namespace {

double staircase(int rows) { return rows <= 4 ? 40e-3 : rows <= 8 ? 44e-3 : rows <= 16 ? 60e-3 : 110e-3; }

// 2% noise, and one time in ten half as long again.
double disturbed(double seconds, std::mt19937_64& rng) {
  return seconds * std::normal_distribution<double>(1, 0.02)(rng) * (rng() % 10 == 0 ? 1.5 : 1);
}

TEST(CostModel, LearnsAStaircaseFromDisturbedTimes) {
  CostModel cost(DraftCost::block);
  std::mt19937_64 rng(1);
  for (int i = 0; i < 1280; ++i) {
    const int rows = 1 + i % 32;
    cost.add_verify({.rows = rows}, disturbed(staircase(rows), rng));
  }
  std::array<double, 32> curve;
  cost.verify_curve({.rows = 1}, curve);
  for (int rows = 1; rows <= 32; ++rows) {
    EXPECT_NEAR(curve[size_t(rows) - 1], staircase(rows), 0.06 * staircase(rows)) << rows;
    EXPECT_EQ(cost.verify({.rows = rows}), curve[size_t(rows) - 1]);
  }
}

TEST(CostModel, FillsGapsBetweenAndBehindWhatWasMeasured) {
  CostModel cost(DraftCost::block, 0.03);
  cost.add_verify({.rows = 1}, 10);
  EXPECT_NEAR(cost.verify({.rows = 5}), 11.2, 1e-5) << "nothing known: a gentle slope";
  cost.add_verify({.rows = 9}, 30);
  EXPECT_GT(cost.verify({.rows = 5}), 15);
  EXPECT_LT(cost.verify({.rows = 5}), 25);
  EXPECT_GE(cost.verify({.rows = 20}), 30);
  EXPECT_NEAR(cost.verify({.rows = 9}), 30, 1e-4);
}

TEST(CostModel, ADisturbedFirstTimeOfALengthDoesNotKeepItFromBeingTried) {
  CostModel cost(DraftCost::block);
  for (int i = 0; i < 5; ++i) cost.add_verify({.rows = 1}, 10), cost.add_verify({.rows = 16}, 12);
  cost.add_verify({.rows = 8}, 100);
  EXPECT_LE(cost.verify({.rows = 8}), 12.001);
}

TEST(CostModel, FollowsALastingChangeAndIgnoresAPassingOne) {
  CostModel cost(DraftCost::block);
  for (int i = 0; i < 20; ++i) cost.add_verify({.rows = 4}, 1);
  cost.add_verify({.rows = 4}, 5), cost.add_verify({.rows = 4}, 5);
  EXPECT_NEAR(cost.verify({.rows = 4}), 1, 1e-5);
  for (int i = 0; i < 40; ++i) cost.add_verify({.rows = 4}, 2);
  EXPECT_NEAR(cost.verify({.rows = 4}), 2, 0.05);
  for (int i = 0; i < 40; ++i) cost.add_verify({.rows = 4}, 1);
  EXPECT_NEAR(cost.verify({.rows = 4}), 1, 0.05);
}

// A machine that gets slower does so for all lengths, those not measured meanwhile included.
TEST(CostModel, TimesNotMeasuredLatelyMoveWithTheOthers) {
  CostModel cost(DraftCost::block);
  for (int i = 0; i < 10; ++i) cost.add_verify({.rows = 1}, 1), cost.add_verify({.rows = 8}, 2);
  for (int i = 0; i < 60; ++i) cost.add_verify({.rows = 8}, 4);
  EXPECT_NEAR(cost.verify({.rows = 8}), 4, 0.1);
  EXPECT_GT(cost.verify({.rows = 1}), 1.3);
  EXPECT_LT(cost.verify({.rows = 1}), 2.1);
}

TEST(CostModel, ContextsDifferAndANewOneStartsFromItsNeighbour) {
  CostModel cost(DraftCost::block);
  for (int i = 0; i < 6; ++i) {
    cost.add_verify({.rows = 1, .context = 100}, 1);
    cost.add_verify({.rows = 8, .context = 100}, 2);
  }
  cost.add_verify({.rows = 8, .context = 600}, 2.2);
  EXPECT_NEAR(cost.verify({.rows = 1, .context = 600}), 1, 0.05) << "plain time lost at the border";
  for (int i = 0; i < 60; ++i) cost.add_verify({.rows = 8, .context = 40000}, 6);
  EXPECT_NEAR(cost.verify({.rows = 8, .context = 40000}), 6, 0.2);
}

TEST(CostModel, BatchesDiffer) {
  CostModel cost(DraftCost::block);
  for (int i = 0; i < 6; ++i) {
    cost.add_verify({.rows = 4, .batch = 1}, 1);
    cost.add_verify({.rows = 4, .batch = 4}, 3);
  }
  EXPECT_NEAR(cost.verify({.rows = 4, .batch = 1}), 1, 1e-5);
  EXPECT_NEAR(cost.verify({.rows = 4, .batch = 4}), 3, 1e-5);
  EXPECT_TRUE(cost.ready(4));
  EXPECT_FALSE(cost.ready(1)) << "four rows of one sequence are no plain step";
}

TEST(CostModel, LargeBatchesHaveCoarseBuckets) {
  CostModel cost(DraftCost::block);
  for (int i = 0; i < 6; ++i)
    cost.add_verify({.rows = 16, .batch = 16}, 1), cost.add_verify({.rows = 260, .batch = 16}, 9);
  EXPECT_NEAR(cost.verify({.rows = 261, .batch = 16}), 9, 1e-4);
  EXPECT_GT(cost.verify({.rows = 4000, .batch = 16}), 8.9);
}

TEST(CostModel, DraftsCostByTheirKind) {
  CostModel block(DraftCost::block), chain(DraftCost::chain), free(DraftCost::free);
  for (CostModel* cost : {&block, &chain, &free}) {
    EXPECT_EQ(cost->draft(4), 0);
    EXPECT_EQ(cost->draft(0), 0);
    for (int i = 0; i < 3; ++i) cost->add_draft(4, 2), cost->add_draft(0, 0.5);
    EXPECT_NEAR(cost->draft(4), 2, 1e-5);
    EXPECT_NEAR(cost->draft(0), 0.5, 1e-5);
  }
  EXPECT_NEAR(block.draft(12), 2, 1e-5);
  EXPECT_NEAR(chain.draft(12), 6, 1e-5);
  EXPECT_NEAR(chain.draft(1), 0.5, 1e-5);
  for (int i = 0; i < 3; ++i) chain.add_draft(8, 6);  // dearer per token than at 4
  EXPECT_NEAR(chain.draft(6), 6 * (0.5 + 0.75) / 2, 1e-5);
}

TEST(CostModel, NonsenseTimesAreIgnored) {
  CostModel cost(DraftCost::block);
  for (int i = 0; i < 4; ++i) cost.add_verify({.rows = 1}, 1);
  for (const double bad :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    cost.add_verify({.rows = 1}, bad);
    cost.add_draft(3, bad);
    cost.add_plain_other(bad);
    cost.add_draft_other(bad);
  }
  EXPECT_NEAR(cost.verify({.rows = 1}), 1, 1e-6);
  EXPECT_EQ(cost.draft(3), 0);
  EXPECT_EQ(cost.plain_other(), 0);
  EXPECT_EQ(cost.draft_other(), 0);
}

}  // namespace
}  // namespace tandem
