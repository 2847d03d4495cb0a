#include "sample/rejection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "sample/accept.h"
#include "sample/philox.h"

namespace tandem {
namespace {

using Probs = std::vector<float>;

// The drafter's draw: Gumbel-max with the noise that drafts use.
TokenId draw_draft(const Probs& q, const TokenPlace& place) {
  TokenId best = -1;
  float best_value = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    if (q[i] == 0) continue;
    const float value =
        std::log(q[i]) + gumbel_noise({.seed = place.seed, .position = place.position}, TokenId(i));
    if (best < 0 || value > best_value) best = TokenId(i), best_value = value;
  }
  return best;
}

Probs normalised(Probs p) {
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (float& x : p) x = float(x / sum);
  return p;
}

Probs random_probs(uint64_t seed, int n, double spread) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal(0, spread);
  Probs p(static_cast<size_t>(n));
  for (float& x : p) x = float(std::exp(normal(rng)));
  return normalised(p);
}

Probs keep_best(Probs q, size_t k) {
  Probs sorted = q;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (float& x : q) x = x >= sorted[k - 1] ? x : 0;
  return normalised(q);
}

struct Law {
  std::vector<int> seen;
  int n = 0, n_accepted = 0;
};

// Emits n tokens at positions 0 .. n-1: each a draft from q, tested against p.
template <class Form>
Law emit(const Probs& p, const Probs& q, Form form, uint64_t seed, int n, double exponent = 1) {
  Law law{std::vector<int>(p.size()), n, 0};
  for (int i = 0; i < n; ++i) {
    const TokenPlace place{.seed = seed, .position = uint32_t(i)};
    const TokenId draft = draw_draft(q, place);
    const Tested t = test_draft(p, draft, form, place, exponent);
    EXPECT_TRUE(!t.accepted || t.token == draft);
    ++law.seen[size_t(t.token)];
    law.n_accepted += t.accepted;
  }
  return law;
}

// Pearson's statistic over its quantile (Wilson, Hilferty 1931) at 1 - 0.001 / 20: twenty seeds share the
// 0.001.
double chi2_over_limit(const Law& law, const Probs& p) {
  double chi2 = 0, d = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      if (law.seen[i] > 0) return 1e9;
      continue;
    }
    const double want = law.n * double(p[i]);
    chi2 += (law.seen[i] - want) * (law.seen[i] - want) / want;
    ++d;
  }
  if (d == 0) return 0;
  return chi2 / (d * std::pow(1 - 2 / (9 * d) + 3.8906 * std::sqrt(2 / (9 * d)), 3));
}

double overlap(const Probs& p, const Probs& q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::min(p[i], q[i]);
  return sum;
}

constexpr int kSeeds = 20, kDraws = 20000;

// The law is p and the acceptance rate sum min(p, q) (within 4.5 standard deviations), over twenty seeds.
template <class Form>
void expect_law_p(const Probs& p, const Probs& q, Form form) {
  int64_t n_accepted = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Law law = emit(p, q, form, seed, kDraws);
    EXPECT_LT(chi2_over_limit(law, p), 1) << "seed " << seed;
    n_accepted += law.n_accepted;
  }
  const double n = double(kSeeds) * kDraws, rate = overlap(p, q);
  EXPECT_NEAR(double(n_accepted), n * rate, 4.5 * std::sqrt(n * rate * (1 - rate)) + 1e-4 * n);
}

TEST(Rejection, LawIsTheTargetsForADenseDrafter) {
  const Probs p = random_probs(1, 24, 1.0), q = random_probs(2, 24, 1.5);
  ASSERT_LT(overlap(p, q), 0.7);
  expect_law_p(p, q, DraftDistribution::dense(q));
}

TEST(Rejection, EqualDistributionsAcceptEverything) {
  const Probs p = random_probs(3, 16, 1.0);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const Law law = emit(p, p, DraftDistribution::dense(p), seed, kDraws);
    EXPECT_EQ(law.n_accepted, kDraws);
    EXPECT_LT(chi2_over_limit(law, p), 1) << seed;
  }
}

TEST(Rejection, DisjointSupportsRejectEverything) {
  Probs p = random_probs(4, 16, 1.0), q = p;
  for (size_t i = 0; i < p.size(); ++i) (i % 2 == 0 ? p : q)[i] = 0;
  p = normalised(p), q = normalised(q);
  expect_law_p(p, q, DraftDistribution::dense(q));
  EXPECT_EQ(emit(p, q, DraftDistribution::dense(q), 0, 1000).n_accepted, 0);
}

TEST(Rejection, LawIsTheTargetsForAnArgmaxDrafter) {
  const Probs p = random_probs(5, 16, 1.0);
  Probs q(p.size());
  q[3] = 1;
  expect_law_p(p, q, DraftDistribution::point_mass());
}

TEST(Rejection, LawIsTheTargetsForATruncatedSparseDrafter) {
  const Probs p = random_probs(6, 32, 1.2), q = keep_best(random_probs(7, 32, 1.2), 5);
  std::vector<TokenId> ids;
  Probs probs;
  for (size_t i = 0; i < q.size(); ++i) {
    if (q[i] > 0) ids.push_back(TokenId(i)), probs.push_back(q[i]);
  }
  ASSERT_EQ(ids.size(), 5u);
  expect_law_p(p, q, DraftDistribution::sparse(ids, probs));
  // The two forms are one rule.
  for (uint32_t i = 0; i < 2000; ++i) {
    const TokenPlace place{.seed = 9, .position = i};
    const TokenId draft = draw_draft(q, place);
    const Tested a = test_draft(p, draft, DraftDistribution::sparse(ids, probs), place);
    const Tested b = test_draft(p, draft, DraftDistribution::dense(q), place);
    ASSERT_EQ(a.accepted, b.accepted);
    ASSERT_EQ(a.token, b.token);
  }
}

TEST(Rejection, LawIsTheTargetsForATruncatedTarget) {
  const Probs p = keep_best(random_probs(8, 32, 1.2), 6), q = random_probs(9, 32, 1.0);
  expect_law_p(p, q, DraftDistribution::dense(q));
}

TEST(Rejection, TheTargetsOwnDrawHasItsLawAndIsIndependentOfTheDraft) {
  const Probs p = random_probs(10, 12, 1.0);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Law law{std::vector<int>(p.size()), 0, 0}, given_draft = law;
    for (uint32_t i = 0; i < uint32_t{kDraws}; ++i) {
      const TokenPlace place{.seed = seed, .position = i};
      const TokenId token = draw_target(p, place);
      ++law.seen[size_t(token)], ++law.n;
      if (draw_draft(p, place) == 0) ++given_draft.seen[size_t(token)], ++given_draft.n;
    }
    EXPECT_LT(chi2_over_limit(law, p), 1) << seed;
    EXPECT_GT(given_draft.n, 100);
    EXPECT_LT(chi2_over_limit(given_draft, p), 1) << seed;
  }
}

TEST(Rejection, AGreedyTargetKeepsItsOwnTokenAndNoOther) {
  Probs p(8, 0.0f);
  p[5] = 1;
  const Probs q = random_probs(11, 8, 1.0);
  for (uint32_t i = 0; i < 1000; ++i) {
    const TokenPlace place{.seed = 1, .position = i};
    for (const auto& form : {DraftDistribution::point_mass(), DraftDistribution::dense(q)}) {
      EXPECT_TRUE(test_draft(p, 5, form, place).accepted);
      const Tested wrong = test_draft(p, 4, form, place);
      EXPECT_FALSE(wrong.accepted);
      EXPECT_EQ(wrong.token, 5);
    }
  }
}

TEST(Rejection, DraftsOutsideTheVocabularyAreReplacedByTheLaw) {
  const Probs p = random_probs(12, 8, 1.0);
  for (const TokenId bad : {-1, 8, 1 << 30, std::numeric_limits<TokenId>::min()}) {
    Law law{std::vector<int>(p.size()), kDraws, 0};
    for (uint32_t i = 0; i < uint32_t{kDraws}; ++i) {
      const Tested t = test_draft(p, bad, DraftDistribution::point_mass(), {.seed = 2, .position = i});
      ASSERT_FALSE(t.accepted);
      ++law.seen[size_t(t.token)];
    }
    EXPECT_LT(chi2_over_limit(law, p), 1);
  }
}

TEST(Rejection, ResidualWinnersEqualASearchWithoutShortcuts) {
  const Probs p = random_probs(13, 997, 3.0);
  for (uint32_t i = 0; i < 300; ++i) {
    TokenId best = -1;
    float best_value = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      const NoiseKey key{.seed = 3, .position = i, .purpose = NoisePurpose::residual};
      const float value = std::log(p[j]) + gumbel_noise(key, TokenId(j));
      if (best < 0 || value > best_value) best = TokenId(j), best_value = value;
    }
    ASSERT_EQ(draw_target(p, {.seed = 3, .position = i}), best) << i;
  }
}

// The deviation from p is known in closed form, and equals the gain in acceptance.
TEST(Lenient, TotalVariationIsTheGainInAcceptance) {
  const Probs p = random_probs(14, 12, 1.0), q = random_probs(15, 12, 1.0);
  const DraftDistribution form = DraftDistribution::dense(q);
  for (const double exponent : {0.3, 0.7}) {
    const double tv = lenient_total_variation(p, 0, form, exponent);
    ASSERT_GT(tv, 0.02);
    // Law a + (1 - A) r with a = min(q, p^e q^(1-e)), A = sum a, r the residual.
    Probs law(p.size());
    double accept = 0, residual = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      law[i] = float(std::min(double(q[i]), std::pow(p[i], exponent) * std::pow(q[i], 1 - exponent)));
      accept += law[i];
      residual += std::max(0.0f, p[i] - q[i]);
    }
    EXPECT_NEAR(accept - overlap(p, q), tv, 1e-6);
    double distance = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      law[i] += float((1 - accept) * std::max(0.0f, p[i] - q[i]) / residual);
      distance += std::abs(double(law[i]) - p[i]) / 2;
    }
    EXPECT_NEAR(distance, tv, 1e-6);

    int64_t n_accepted = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      const Law seen = emit(p, q, form, seed, kDraws, exponent);
      EXPECT_LT(chi2_over_limit(seen, law), 1) << seed;
      EXPECT_GT(chi2_over_limit(seen, p), 1) << "this test cannot see a deviation; seed " << seed;
      n_accepted += seen.n_accepted;
    }
    const double n = double(kSeeds) * kDraws;
    EXPECT_NEAR(double(n_accepted), n * accept, 3 * std::sqrt(n * accept * (1 - accept)));
  }
  EXPECT_EQ(lenient_total_variation(p, 0, form, 1), 0);
}

TEST(Lenient, PriceOfAPointMassAndNoMaskedTokenEver) {
  const Probs p{0.25f, 0.75f, 0};
  EXPECT_NEAR(lenient_total_variation(p, 0, DraftDistribution::point_mass(), 0.5), 0.25, 1e-7);  // 0.5 - 0.25
  for (uint32_t i = 0; i < 1000; ++i) {
    EXPECT_FALSE(test_draft(p, 2, DraftDistribution::point_mass(), {.position = i}, 0.01).accepted);
  }
}

TEST(AcceptOptions, ParsesTheThreeModesAndNamesWhatIsWrong) {
  EXPECT_EQ(parse_accept_options("coupled")->mode, AcceptMode::coupled);
  EXPECT_EQ(parse_accept_options("rejection")->mode, AcceptMode::rejection);
  EXPECT_EQ(parse_accept_options("lenient:0.5")->mode, AcceptMode::lenient);
  EXPECT_EQ(parse_accept_options("lenient:0.5")->exponent, 0.5);
  for (const char* bad : {"", "greedy", "lenient", "lenient:", "lenient:0", "lenient:1.5", "lenient:-1",
                          "lenient:nan", "lenient:0.5x"}) {
    const auto parsed = parse_accept_options(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_NE(parsed.error().message.find('"' + std::string(bad) + '"'), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem
