#include "sample/logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<TokenId> ids(const Logprobs& l) {
  std::vector<TokenId> out;
  for (const TokenLogprob& t : l.top) out.push_back(t.id);
  return out;
}

TEST(Logprobs, AreTheLogSoftmaxWhateverTheScaleOfTheLogits) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 5);
  for (const float shift : {0.0f, 1000.0f, -3000.0f}) {
    std::vector<float> x(5000);
    for (float& v : x) v = normal(rng) + shift;
    double sum = 0;
    for (const float v : x) sum += std::exp(double(v) - shift);
    const Logprobs l = logprobs(x, 17, 5000);
    EXPECT_NEAR(l.chosen, double(x[17]) - shift - std::log(sum), 1e-5);
    ASSERT_EQ(l.top.size(), 5000u);
    double mass = 0;
    for (const TokenLogprob& t : l.top) {
      EXPECT_NEAR(t.logprob, double(x[size_t(t.id)]) - shift - std::log(sum), 1e-5);
      mass += std::exp(double(t.logprob));
    }
    EXPECT_NEAR(mass, 1, 1e-5);
  }
}

TEST(Logprobs, TopIsSortedWithTheLowerIdFirstOfEquals) {
  const std::vector<float> x{1, 3, 2, 3, 3, 0};
  EXPECT_EQ(ids(logprobs(x, 0, 4)), (std::vector<TokenId>{1, 3, 4, 2}));
  EXPECT_EQ(ids(logprobs(x, 0, 2)), (std::vector<TokenId>{1, 3}));
  EXPECT_TRUE(logprobs(x, 0, 0).top.empty());
}

TEST(Logprobs, EqualTheDefinitionByAFullSort) {
  std::mt19937 rng(2);
  for (int round = 0; round < 100; ++round) {
    std::vector<float> x(1 + rng() % 2000);
    for (float& v : x) v = float(rng() % 50);
    std::vector<TokenId> want(x.size());
    std::iota(want.begin(), want.end(), 0);
    std::stable_sort(want.begin(), want.end(),
                     [&](TokenId a, TokenId b) { return x[size_t(a)] > x[size_t(b)]; });
    const size_t k = 1 + rng() % 25;
    want.resize(std::min(k, x.size()));
    ASSERT_EQ(ids(logprobs(x, 0, int(k))), want) << round;
  }
}

TEST(Logprobs, AskingForMoreThanTheVocabularyGivesTheVocabulary) {
  EXPECT_EQ(ids(logprobs(std::vector<float>{1, 2, 3, 4, 5}, 0, 10)), (std::vector<TokenId>{4, 3, 2, 1, 0}));
}

TEST(Logprobs, TheChosenTokenNeedNotBeAmongTheTop) {
  const Logprobs l = logprobs(std::vector<float>{0, 0, 0, -20}, 3, 2);
  EXPECT_EQ(ids(l), (std::vector<TokenId>{0, 1}));
  EXPECT_NEAR(l.chosen, -20 - std::log(3.0), 1e-5);
}

TEST(Logprobs, MinusInfinityIsReportedAsItIs) {
  const Logprobs l = logprobs(std::vector<float>{0, -kInf, 0}, 1, 3);
  EXPECT_EQ(l.chosen, -kInf);
  EXPECT_EQ(ids(l), (std::vector<TokenId>{0, 2, 1}));
  EXPECT_FLOAT_EQ(l.top[0].logprob, -std::log(2.0f));
  EXPECT_EQ(l.top[2].logprob, -kInf);
}

TEST(Logprobs, NaNEntriesAreLeftOutAndSpoilNoOther) {
  const std::vector<float> x{kNaN, 1, kNaN, 1, -kInf};
  const Logprobs l = logprobs(x, 0, 5);
  EXPECT_TRUE(std::isnan(l.chosen));
  EXPECT_EQ(ids(l), (std::vector<TokenId>{1, 3, 4}));
  EXPECT_FLOAT_EQ(l.top[0].logprob, -std::log(2.0f));
}

TEST(Logprobs, ARowWithoutFiniteLogitsHasNoProbabilities) {
  const Logprobs l = logprobs(std::vector<float>{-kInf, -kInf}, 1, 1);
  EXPECT_EQ(l.chosen, -kInf);
  EXPECT_EQ(l.top[0].logprob, -kInf);
}

}  // namespace
}  // namespace tandem
