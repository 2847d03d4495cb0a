#include "sample/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "sample/philox.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
const TokenHistory kNoHistory({}, {});

std::vector<float> random_logits(std::mt19937& rng, int n, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> x(size_t(n), 0.0f);
  for (float& v : x) v = normal(rng);
  return x;
}

Result<TokenId> choose(std::vector<float> logits, const SamplingParams& params, uint32_t position = 0,
                       AllowedTokens allowed = {}) {
  Sampler sampler{int(logits.size())};
  return sampler.choose(
      {.logits = logits, .params = params, .history = kNoHistory, .position = position, .allowed = allowed});
}

std::vector<float> distribution(std::vector<float> logits, const SamplingParams& params) {
  std::vector<float> probs(logits.size());
  Sampler sampler{int(logits.size())};
  EXPECT_TRUE(sampler.distribution({.logits = logits, .params = params, .history = kNoHistory}, probs).ok());
  return probs;
}

// The definition, by a full sort: survivors best first.
std::vector<Candidate> survivors_by_sorting(const std::vector<float>& logits, const SamplingParams& p) {
  const float max = *std::max_element(logits.begin(), logits.end());
  std::vector<Candidate> c;
  for (size_t i = 0; i < logits.size(); ++i) c.push_back({(logits[i] - max) / p.temperature, TokenId(i)});
  std::stable_sort(c.begin(), c.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  if (p.top_k > 0 && size_t(p.top_k) < c.size()) c.resize(size_t(p.top_k));
  double total = 0, before = 0;
  for (const Candidate& x : c) total += std::exp(double(x.score));
  std::vector<Candidate> left;
  for (const Candidate& x : c) {
    if (p.top_p < 1 && before >= p.top_p * total) break;
    before += std::exp(double(x.score));
    if (p.min_p == 0 || x.score >= float(std::log(p.min_p))) left.push_back(x);
  }
  return left;
}

TokenId choice_by_definition(const std::vector<float>& logits, const SamplingParams& p, uint32_t position) {
  TokenId best = -1;
  float best_value = -kInf;
  for (const Candidate& c : survivors_by_sorting(logits, p)) {
    const float value = c.score + gumbel_noise({.seed = p.seed, .position = position}, c.id);
    if (best < 0 || value > best_value || (value == best_value && c.id < best)) {
      best = c.id;
      best_value = value;
    }
  }
  return best;
}

TEST(Greedy, TakesTheLargestLogitAndTheLowestIdOfEquals) {
  EXPECT_EQ(*choose({1, 5, 5, 2}, {}), 1);
  EXPECT_EQ(*choose({-3, -1, -1}, {}), 1);
  EXPECT_EQ(*choose({-1, 0.0f, -0.0f}, {}), 1);
  EXPECT_EQ(*choose({-1, -0.0f, 0.0f}, {}), 1);  // the two zeros are equal
  EXPECT_EQ(*choose({7}, {}), 0);
}

TEST(Greedy, IgnoresTheFiltersButNotTheProcessors) {
  const SamplingParams params{.top_k = 1, .top_p = 0.1, .min_p = 1, .logit_bias = {{0, 10.0f}}};
  EXPECT_EQ(*choose({1, 5, 4}, params), 0);
}

TEST(Choose, NaNOrInfiniteLogitsAreAnErrorThatNamesTheToken) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf}) {
    for (const float temperature : {0.0f, 1.0f}) {
      const auto token = choose({1, 2, 3, bad, 4}, {.temperature = temperature});
      ASSERT_FALSE(token.ok());
      EXPECT_THAT(token.error().message, HasSubstr("token 3 of 5"));
    }
  }
}

TEST(Choose, MaskedTokensAreNeverChosenAndAWholeMaskIsAnError) {
  const uint32_t allowed[] = {0b100100};
  for (uint32_t position = 0; position < 200; ++position) {
    const TokenId token = *choose({9, 9, 0, 9, 9, 0}, {.temperature = 1.5f}, position, allowed);
    EXPECT_TRUE(token == 2 || token == 5) << token;
  }
  const uint32_t none[] = {0};
  for (const float temperature : {0.0f, 1.0f}) {
    const auto token = choose({1, 2}, {.temperature = temperature}, 0, none);
    ASSERT_FALSE(token.ok());
    EXPECT_THAT(token.error().message, HasSubstr("no token is left"));
  }
}

// Under seed 0, token 3 has noise -infinity at position 11031643: the sum of an allowed token then equals
// that of the masked ones before it.
TEST(Choose, AMaskedTokenDoesNotWinAgainstNoiseOfMinusInfinity) {
  ASSERT_EQ(gumbel_noise({.seed = 0, .position = 11031643}, 3), -kInf);
  const uint32_t allowed[] = {0b1000};
  EXPECT_EQ(*choose({9, 9, 9, 0}, {.temperature = 1}, 11031643, allowed), 3);
  EXPECT_EQ(*choose({9, 9, 9, 0}, {.temperature = 1, .top_k = 2}, 11031643, allowed), 3);
}

// Under seed 0, tokens 0 and 1 draw different bits but the same fp32 uniform at position 1322791.
TEST(Choose, OfEqualSumsTheLowestIdWins) {
  const NoiseKey key{.seed = 0, .position = 1322791};
  ASSERT_EQ(uniform_noise(key, 0), uniform_noise(key, 1));
  EXPECT_EQ(*choose({1, 1}, {.temperature = 1}, 1322791), 0);
  EXPECT_EQ(*choose({1, 1, -9}, {.temperature = 1, .top_k = 2, .top_p = 0.999}, 1322791), 0);
}

TEST(Choose, AnOverflowingPenaltyIsAnErrorNotASample) {
  const SamplingParams params{.temperature = 1, .repetition_penalty = 1e-3f};
  const std::vector<TokenId> prompt{0};
  const TokenHistory history(prompt, params);
  std::vector<float> logits{3e38f, 0};
  Sampler sampler(2);
  const auto token = sampler.choose({.logits = logits, .params = params, .history = history});
  ASSERT_FALSE(token.ok());
  EXPECT_THAT(token.error().message, HasSubstr("repetition_penalty"));
}

TEST(Distribution, TopKKeepsTheBestAndTheLowestIdsOfEquals) {
  EXPECT_THAT(distribution({0, 1, 1, 1, -1}, {.temperature = 1, .top_k = 2}),
              ElementsAre(0, 0.5f, 0.5f, 0, 0));
  EXPECT_THAT(distribution({1, 1}, {.temperature = 1, .top_k = 5}), ElementsAre(0.5f, 0.5f));
}

TEST(Distribution, TopPKeepsTheTokensBeforeWhichLessThanPLies) {
  // Eight equal tokens of 1/8: before the third lie exactly 0.25.
  const std::vector<float> equal(8, 3.0f);
  EXPECT_THAT(distribution(equal, {.temperature = 1, .top_p = 0.25}),
              ElementsAre(0.5f, 0.5f, 0, 0, 0, 0, 0, 0));
  const std::vector<float> three = distribution(equal, {.temperature = 1, .top_p = 0.26});
  EXPECT_EQ(std::count(three.begin(), three.end(), 0.0f), 5);
  EXPECT_THAT(distribution({0, 30, 0}, {.temperature = 1, .top_p = 1e-9}),
              ElementsAre(0, 1, 0));  // the best always
}

TEST(Distribution, MinPIsRelativeToTheBest) {
  const std::vector<float> logits{0, std::log(0.5f), std::log(0.2f), std::log(0.1f)};
  const std::vector<float> probs = distribution(logits, {.temperature = 1, .min_p = 0.15});
  EXPECT_FLOAT_EQ(probs[0], 1 / 1.7f);
  EXPECT_FLOAT_EQ(probs[2], 0.2f / 1.7f);
  EXPECT_EQ(probs[3], 0);
  EXPECT_THAT(distribution({2, 2, 1}, {.temperature = 1, .min_p = 1}), ElementsAre(0.5f, 0.5f, 0));
}

// Each filter sees what the one before left, renormalised: after top-k 2 the best token has 0.6 / 0.9 > 0.65
// of the mass, so top-p 0.65 ends there. Over the whole row (0.6 < 0.65) it would keep two.
TEST(Distribution, TopPActsOnTheRenormalisedTopK) {
  const std::vector<float> logits{std::log(0.6f), std::log(0.3f), std::log(0.1f)};
  EXPECT_THAT(distribution(logits, {.temperature = 1, .top_k = 2, .top_p = 0.65}), ElementsAre(1, 0, 0));
}

// Temperature comes before top-p: at T = 2 the row is flatter and one more token survives.
TEST(Distribution, FiltersActOnTheTemperedDistribution) {
  const std::vector<float> logits{std::log(0.8f), std::log(0.15f), std::log(0.05f)};
  EXPECT_EQ(distribution(logits, {.temperature = 1, .top_p = 0.7})[1], 0);
  EXPECT_GT(distribution(logits, {.temperature = 2, .top_p = 0.7})[1], 0);
}

TEST(Distribution, AnyTemperatureAboveZeroIsSafe) {
  for (const float temperature : {1e-38f, 1e-6f, 1e6f, 3e38f}) {
    const std::vector<float> probs = distribution({1, 3, 2, 3}, {.temperature = temperature});
    EXPECT_NEAR(std::accumulate(probs.begin(), probs.end(), 0.0), 1, 1e-6) << temperature;
    EXPECT_EQ(probs[1], probs[3]);
  }
}

TEST(Distribution, EqualsTheDefinitionByAFullSort) {
  std::mt19937 rng(11);
  for (int round = 0; round < 400; ++round) {
    const int n = 1 + int(rng() % 700);
    std::vector<float> logits = random_logits(rng, n, round % 3 == 0 ? 0.1f : 4.0f);
    if (round % 2 == 0) {  // many equal scores
      for (float& x : logits) x = std::round(x);
    }
    SamplingParams params{.temperature = 0.3f + float(rng() % 20) * 0.1f};
    if (rng() % 2) params.top_k = 1 + int(rng() % 100);
    if (rng() % 2) params.top_p = double(1 + rng() % 999) / 1000;
    if (rng() % 2) params.min_p = double(rng() % 100) / 500;
    const std::vector<float> probs = distribution(logits, params);

    const std::vector<Candidate> want = survivors_by_sorting(logits, params);
    double total = 0;
    for (const Candidate& c : want) total += std::exp(double(c.score));
    ASSERT_EQ(size_t(std::count_if(probs.begin(), probs.end(), [](float p) { return p > 0; })), want.size())
        << round;
    for (const Candidate& c : want) {
      ASSERT_NEAR(probs[size_t(c.id)], std::exp(double(c.score)) / total, 1e-6)
          << "round " << round << " id " << c.id;
    }
    for (uint32_t position = 0; position < 3; ++position) {
      params.seed = rng();
      ASSERT_EQ(*choose(logits, params, position), choice_by_definition(logits, params, position)) << round;
    }
  }
}

// The best logits of a row choose as the whole row does, or say that they cannot.
TEST(Choose, AmongTheBestLogitsIsAsAmongAll) {
  std::mt19937 rng(17);
  int settled = 0, unsettled = 0;
  for (int round = 0; round < 2000; ++round) {
    const int n = 2 + int(rng() % 700);
    std::vector<float> logits = random_logits(rng, n, round % 3 == 0 ? 0.1f : 4.0f);
    if (round % 4 == 0) {  // many equals, zeros of both signs
      for (float& x : logits) x = std::round(x);
    }
    std::vector<TokenId> ids(static_cast<size_t>(n));
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(),
                     [&](TokenId a, TokenId b) { return logits[size_t(a)] > logits[size_t(b)]; });
    ids.resize(std::min<size_t>(ids.size(), 64));
    std::vector<float> values;
    for (const TokenId id : ids) values.push_back(logits[size_t(id)] + 0.0f);
    constexpr float kTemperatures[] = {0.7f, 1.0f, 1.3f, 1e-38f, 1e-6f, 1e6f, 3e37f};
    SamplingParams params{.temperature = kTemperatures[rng() % 7]};
    params.top_k = 1 + int(rng() % (ids.size() - 1));
    if (rng() % 2) params.top_p = double(1 + rng() % 999) / 1000;
    if (rng() % 2) params.min_p = double(rng() % 100) / 500;
    Sampler sampler(n);
    for (uint32_t position = 0; position < 3; ++position) {
      params.seed = rng();
      const std::optional<TokenId> token = sampler.choose_among(values, ids, params, position);
      ++(token ? settled : unsettled);
      if (token) {
        ASSERT_EQ(*token, *choose(logits, params, position)) << "round " << round;
      }
    }
  }
  EXPECT_GT(settled, 3000);
  EXPECT_GT(unsettled, 100);
}

TEST(Choose, EqualsTheDefinitionAtARealVocabulary) {
  std::mt19937 rng(12);
  const std::vector<float> logits = random_logits(rng, 248320, 3);
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1, .seed = 3},
        SamplingParams{.temperature = 0.7f, .top_k = 20, .top_p = 0.8, .seed = 3},
        SamplingParams{.temperature = 1, .top_p = 0.95, .seed = 3},
        SamplingParams{.temperature = 1, .top_k = 200000},
        SamplingParams{.temperature = 1.5f, .min_p = 0.05}}) {
    EXPECT_EQ(*choose(logits, params, 1000), choice_by_definition(logits, params, 1000));
  }
}

TEST(Choose, IsAFunctionOfSeedAndPositionAlone) {
  std::mt19937 rng(13);
  const std::vector<float> logits = random_logits(rng, 1000, 1);
  Sampler used(1000);
  int n_seed = 0, n_position = 0;
  for (uint32_t position = 0; position < 50; ++position) {
    const SamplingParams params{.temperature = 1, .seed = 9};
    std::vector<float> row = logits;
    const TokenId token =
        *used.choose({.logits = row, .params = params, .history = kNoHistory, .position = position});
    EXPECT_EQ(token, *choose(logits, params, position));
    n_position += token != *choose(logits, params, position + 1);
    n_seed += token != *choose(logits, {.temperature = 1, .seed = 10}, position);
  }
  EXPECT_GT(n_position, 40);
  EXPECT_GT(n_seed, 40);
}

// Pearson's statistic of draws at positions 0 .. n-1 against n * probs, and its 0.999 quantile (Wilson,
// Hilferty 1931).
void expect_draws_follow(const std::vector<float>& logits, const SamplingParams& params) {
  constexpr int n = 60000;
  const std::vector<float> probs = distribution(logits, params);
  std::vector<int> seen(logits.size());
  for (uint32_t position = 0; position < n; ++position) ++seen[size_t(*choose(logits, params, position))];
  double chi2 = 0;
  int df = -1;
  for (size_t i = 0; i < probs.size(); ++i) {
    if (probs[i] == 0) {
      EXPECT_EQ(seen[i], 0) << i;
      continue;
    }
    const double want = double(n) * probs[i];
    ASSERT_GT(want, 5) << i;
    chi2 += (seen[i] - want) * (seen[i] - want) / want;
    ++df;
  }
  const double d = df, limit = d * std::pow(1 - 2 / (9 * d) + 3.0902 * std::sqrt(2 / (9 * d)), 3);
  EXPECT_LT(chi2, limit) << df << " degrees of freedom";
}

TEST(Choose, DrawsFollowTheDistribution) {
  std::mt19937 rng(14);
  const std::vector<float> logits = random_logits(rng, 30, 1.2f);
  for (const uint64_t seed : {uint64_t{0}, uint64_t{42}, ~uint64_t{0}}) {
    expect_draws_follow(logits, {.temperature = 1, .seed = seed});
    expect_draws_follow(logits,
                        {.temperature = 0.8f, .top_k = 12, .top_p = 0.9, .min_p = 0.05, .seed = seed});
  }
}

}  // namespace
}  // namespace tandem
