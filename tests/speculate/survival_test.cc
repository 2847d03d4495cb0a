#include "speculate/survival.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace tandem {
namespace {

using Hazards = std::array<double, 15>;

int draw(const std::vector<double>& truth, int n_verified, std::mt19937_64& rng) {
  std::uniform_real_distribution<double> u(0, 1);
  int n = 0;
  while (n < n_verified && u(rng) < truth[size_t(n)]) ++n;
  return n;
}

Hazards mean_estimate(const std::vector<double>& truth, const std::vector<int>& lengths, int n_rounds) {
  std::mt19937_64 rng(5);
  SharedHazards shared;
  Survival survival;
  Hazards sum{};
  int n = 0;
  for (int i = 0; i < n_rounds; ++i) {
    const int length = lengths[size_t(i) % lengths.size()];
    survival.add(length, draw(truth, length, rng), 0, shared);
    if (i < 200) continue;
    Hazards mean, now;
    survival.hazards(shared, 0, mean, now);
    for (size_t k = 0; k < mean.size(); ++k) sum[k] += mean[k];
    ++n;
  }
  for (double& h : sum) h /= n;
  return sum;
}

// Hazards that fall, stay and rise; blocks cut anywhere say nothing of what lies behind the cut.
TEST(Survival, RecoversTheHazardsUnderCensoring) {
  std::vector<std::vector<double>> truths{
      std::vector<double>(15, 0.8), std::vector<double>(15, 0.95), {}, {}};
  for (int k = 0; k < 15; ++k) {
    truths[2].push_back(0.95 - 0.02 * k);
    truths[3].push_back(0.7 + 0.02 * k);
  }
  for (const auto& truth : truths) {
    const Hazards got = mean_estimate(truth, {1, 15, 3, 7, 15, 2, 5}, 20000);
    double alive = 1;
    for (int k = 0; k < 15; ++k) {
      // Where at least one round in ten comes along; behind, priors weigh.
      if (alive * (k < 7 ? 3.0 : 2.0) / 7 < 0.1) break;
      EXPECT_NEAR(got[size_t(k)], truth[size_t(k)], 0.02) << k;
      alive *= truth[size_t(k)];
    }
  }
}

// The mean accepted share of a block, which others use, reads 0.26 at 15 drafts and 0.8 at one for the same
// drafter.
TEST(Survival, DoesNotDependOnTheLengthInUse) {
  const std::vector<double> truth(15, 0.8);
  const Hazards one = mean_estimate(truth, {1}, 20000), three = mean_estimate(truth, {3}, 20000),
                all = mean_estimate(truth, {15}, 20000);
  for (const Hazards& got : {one, three, all}) EXPECT_NEAR(got[0], 0.8, 0.02);
  EXPECT_NEAR(three[2], all[2], 0.02);
}

TEST(Survival, PositionsNeverTriedGoOnAsTheLastOneDid) {
  const Hazards got = mean_estimate(std::vector<double>(15, 0.9), {4}, 20000);
  for (size_t k = 4; k < 15; ++k) EXPECT_NEAR(got[k], got[3], 1e-3) << k;
}

TEST(Survival, AWholeBlockAcceptedSaysAtLeast) {
  SharedHazards shared;
  Survival survival;
  for (int i = 0; i < 50; ++i) survival.add(2, 2, 0, shared);
  Hazards mean, now;
  survival.hazards(shared, 0, mean, now);
  EXPECT_GT(mean[14], 0.95);
}

TEST(Survival, ANewSequenceStartsFromWhatOthersHaveShown) {
  SharedHazards shared;
  Survival old;
  std::mt19937_64 rng(6);
  const std::vector<double> truth(15, 0.4);
  for (int i = 0; i < 500; ++i) old.add(15, draw(truth, 15, rng), 0, shared);
  Hazards mean, now;
  Survival().hazards(shared, 0, mean, now);
  EXPECT_NEAR(mean[0], 0.4, 0.1);
  Survival better;
  for (int i = 0; i < 30; ++i) better.add(2, 2, 0, shared);
  better.hazards(shared, 0, mean, now);
  EXPECT_GT(mean[1], 0.8);
  EXPECT_GT(mean[2], 0.6) << "better at the first positions: expected to be so at the next";
}

// Stretches of easy and hard text: after two wrong rounds less is expected than after two good ones.
TEST(Survival, KnowsHowTheLastRoundsWent) {
  SharedHazards shared;
  Survival survival;
  std::mt19937_64 rng(7);
  const std::vector<double> easy(15, 0.95), hard(15, 0.2);
  for (int i = 0; i < 2000; ++i) survival.add(5, draw(i / 20 % 2 ? easy : hard, 5, rng), 0, shared);
  Hazards mean, now;
  survival.add(5, 0, 0, shared), survival.add(5, 0, 0, shared);
  survival.hazards(shared, 0, mean, now);
  EXPECT_LT(now[0], 0.35);
  survival.add(5, 5, 0, shared), survival.add(5, 5, 0, shared);
  survival.hazards(shared, 0, mean, now);
  EXPECT_GT(now[0], 0.85);
  survival.forget_luck();
  survival.hazards(shared, 0, mean, now);
  EXPECT_NEAR(now[0], mean[0], 0.1);
}

TEST(SurvivalDeathTest, RefusesMoreAcceptedThanVerified) {
  SharedHazards shared;
  Survival survival;
  EXPECT_DEATH(survival.add(3, 4, 0, shared), "4 of 3");
}

// What short matches come to says nothing of long ones, in this sequence and in later ones.
TEST(Survival, LookupsAreJudgedByTheirMatch) {
  SharedHazards shared;
  Survival survival;
  for (int i = 0; i < 60; ++i) {
    survival.add(4, 0, 2, shared);
    survival.add(4, 4, 8, shared);
  }
  Hazards mean, now;
  for (const Survival& one : {survival, Survival()}) {
    one.hazards(shared, 2, mean, now);
    EXPECT_LT(now[0], 0.1);
    one.hazards(shared, 8, mean, now);
    EXPECT_GT(now[0], 0.97);
    EXPECT_GT(now[7], 0.9) << "goes on as it did";
  }
  Survival().hazards(SharedHazards{}, 2, mean, now);
  const double short_match = now[0];
  Survival().hazards(SharedHazards{}, 12, mean, now);
  EXPECT_GT(now[0], short_match) << "longer matches are surer";
}

}  // namespace
}  // namespace tandem
