// The candidate selector: its walk against all paths, its distribution, and the law of what rejection
// sampling makes of it.
#include "speculate/candidate_selector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "sample/philox.h"
#include "sample/rejection.h"

namespace tandem {
namespace {

// Random slots over a vocabulary: the memory behind SelectorSlots, and both codebooks whole.
struct Block {
  int n_slots, k, rank, n_vocab;
  TokenId anchor;
  std::vector<TokenId> ids;
  std::vector<float> unary, hidden, a, b;  // a, b [n_vocab, rank]
  std::vector<float> predecessors, successors;

  Block(std::mt19937& rng, int slots, int candidates, int r, int vocabulary, float scale = 1)
      : n_slots(slots),
        k(candidates),
        rank(r),
        n_vocab(vocabulary),
        anchor(TokenId(rng() % unsigned(vocabulary))) {
    std::normal_distribution<float> normal(0, scale);
    const auto fill = [&](std::vector<float>& v, int n) {
      v.resize(size_t(n));
      for (float& x : v) x = normal(rng);
    };
    fill(unary, n_slots * k);
    fill(hidden, n_slots * rank);
    fill(a, n_vocab * rank);
    fill(b, n_vocab * rank);
    std::vector<TokenId> all(size_t(n_vocab), 0);
    for (int i = 0; i < n_vocab; ++i) all[size_t(i)] = i;
    for (int j = 0; j < n_slots; ++j) {
      std::shuffle(all.begin(), all.end(), rng);
      ids.insert(ids.end(), all.begin(), all.begin() + k);
    }
    for (const TokenId id : ids) {
      predecessors.insert(predecessors.end(), a.begin() + id * rank, a.begin() + (id + 1) * rank);
      successors.insert(successors.end(), b.begin() + id * rank, b.begin() + (id + 1) * rank);
    }
  }

  SelectorSlots slots() const {
    return {.n_slots = n_slots,
            .n_candidates = k,
            .rank = rank,
            .ids = ids,
            .unary = unary,
            .hidden = hidden,
            .first = std::span(a).subspan(size_t(anchor) * size_t(rank), size_t(rank)),
            .predecessors = predecessors,
            .successors = successors};
  }
  TokenId id(int slot, int i) const { return ids[size_t(slot * k + i)]; }
  // S_slot(before, candidate i), from the definition.
  double score(int slot, TokenId before, int i) const {
    double sum = unary[size_t(slot * k + i)];
    for (int r = 0; r < rank; ++r) {
      sum += double(a[size_t(before * rank + r)]) * hidden[size_t(slot * rank + r)] *
             b[size_t(id(slot, i) * rank + r)];
    }
    return sum;
  }
};

// The path whose scores are largest slot by slot, from left to right, of all paths; `noise` is added to a
// score.
template <class Noise>
std::vector<int> best_of_all_paths(const Block& block, Noise noise) {
  std::vector<int> path(size_t(block.n_slots), 0), best;
  std::vector<double> best_scores;
  while (true) {
    std::vector<double> scores;
    TokenId before = block.anchor;
    for (int j = 0; j < block.n_slots; ++j) {
      scores.push_back(noise(j, block.id(j, path[size_t(j)]), block.score(j, before, path[size_t(j)])));
      before = block.id(j, path[size_t(j)]);
    }
    if (best.empty() || scores > best_scores) {
      best = path;
      best_scores = scores;
    }
    int j = block.n_slots - 1;
    while (j >= 0 && ++path[size_t(j)] == block.k) path[size_t(j--)] = 0;
    if (j < 0) return best;
  }
}

std::vector<int> choices(const SelectorWalk& walk, int n) {
  std::vector<int> all;
  for (int j = 0; j < n; ++j) all.push_back(walk.choice(j));
  return all;
}

TEST(CandidateSelector, GreedyWalkIsTheBestOfAllPathsFromLeftToRight) {
  std::mt19937 rng(1);
  SelectorWalk walk;
  for (int i = 0; i < 20; ++i) {
    const Block block(rng, 3, 16, 8, 40);
    ASSERT_EQ(walk.run(block.slots(), {}, 5), 3);
    EXPECT_EQ(choices(walk, 3), best_of_all_paths(block, [](int, TokenId, double s) { return s; })) << i;
    for (int j = 0; j < 3; ++j) EXPECT_EQ(walk.probabilities(j)[size_t(walk.choice(j))], 1);
  }
}

// The noise is the target's: keyed by seed, absolute position and token.
TEST(CandidateSelector, SampledWalkIsTheBestOfAllPathsWithTheTargetsNoise) {
  std::mt19937 rng(2);
  SelectorWalk walk;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Block block(rng, 3, 16, 8, 40, 0.7f);
    const float temperature = 0.6f;
    const auto noisy = [&](int slot, TokenId id, double s) {
      return s / temperature + gumbel_noise({.seed = seed, .position = 100u + uint32_t(slot)}, id);
    };
    ASSERT_EQ(walk.run(block.slots(), {.temperature = temperature, .seed = seed}, 100), 3);
    EXPECT_EQ(choices(walk, 3), best_of_all_paths(block, noisy)) << seed;
  }
}

TEST(CandidateSelector, ItsDistributionIsTheSoftmaxOfTheScoresAfterTheChosenToken) {
  std::mt19937 rng(3);
  SelectorWalk walk;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Block block(rng, 5, 16, 12, 30);
    const float temperature = 0.3f + float(seed % 5) / 2;
    ASSERT_EQ(walk.run(block.slots(), {.temperature = temperature, .seed = seed}, 7), 5);
    TokenId before = block.anchor;
    for (int j = 0; j < 5; ++j) {
      double sum = 0, of_q = 0;
      for (int i = 0; i < 16; ++i) sum += std::exp(block.score(j, before, i) / temperature);
      for (int i = 0; i < 16; ++i) {
        const double q = walk.probabilities(j)[size_t(i)];
        // Scores of a few units in fp32, an exponential and a quotient: a few 1e-6 of q.
        EXPECT_NEAR(q, std::exp(block.score(j, before, i) / temperature) / sum, 1e-4 * q + 1e-12);
        of_q += q;
      }
      EXPECT_NEAR(of_q, 1, 16 * 0x1p-24);
      before = block.id(j, walk.choice(j));
    }
  }
}

// A filter of the request keeps what it would keep of a vocabulary of these candidates.
TEST(CandidateSelector, FiltersOfTheRequestCutTheCandidates) {
  std::mt19937 rng(4);
  const Block block(rng, 1, 16, 4, 20);
  const auto kept = [&](const SamplingParams& sampling) {
    SelectorWalk walk;
    walk.run(block.slots(), sampling, 0);
    int n = 0;
    double sum = 0;
    for (const float q : walk.probabilities(0)) {
      n += q > 0;
      sum += q;
    }
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_GT(walk.probabilities(0)[size_t(walk.choice(0))], 0);
    return n;
  };
  EXPECT_EQ(kept({.temperature = 1}), 16);
  EXPECT_EQ(kept({.temperature = 1, .top_k = 3}), 3);
  EXPECT_EQ(kept({.temperature = 1, .top_k = 100}), 16);
  EXPECT_EQ(kept({.temperature = 1, .top_p = 1e-6}), 1);
  EXPECT_EQ(kept({.temperature = 1, .min_p = 1}), 1);
  EXPECT_EQ(kept({.temperature = 5, .top_k = 5, .top_p = 0.999999, .min_p = 1e-9}), 5);
}

TEST(CandidateSelector, EqualScoresGoToTheLowerId) {
  std::mt19937 rng(5);
  Block block(rng, 1, 16, 4, 16);  // all ids, shuffled
  std::fill(block.unary.begin(), block.unary.end(), 1.0f);
  std::fill(block.hidden.begin(), block.hidden.end(), 0.0f);
  SelectorWalk walk;
  walk.run(block.slots(), {}, 0);
  EXPECT_EQ(block.id(0, walk.choice(0)), 0);
}

TEST(CandidateSelector, StopsBeforeAScoreThatIsNoNumber) {
  std::mt19937 rng(6);
  SelectorWalk walk;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    Block block(rng, 3, 4, 4, 16);
    block.unary[6] = bad;
    EXPECT_EQ(walk.run(block.slots(), {}, 0), 1);
    EXPECT_EQ(walk.run(block.slots(), {.temperature = 1}, 0), 1);
  }
}

// Drafts drawn by the walk and tested against p give p, token by token: chi-square at 0.001.
TEST(CandidateSelector, RejectionSamplingOfItsDraftsHasTheLawOfTheTarget) {
  std::mt19937 rng(7);
  const Block block(rng, 1, 4, 3, 8);
  std::vector<float> p(8);
  double total = 0;
  for (float& x : p) total += x = std::exp(std::normal_distribution<float>(0, 1)(rng));
  for (float& x : p) x = float(x / total);
  constexpr int kDraws = 40000;
  std::array<int, 8> count{};
  SelectorWalk walk;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    walk.run(block.slots(), {.temperature = 0.8f, .seed = seed}, 3);
    std::map<TokenId, float> q;
    for (int i = 0; i < 4; ++i) q[block.id(0, i)] = walk.probabilities(0)[size_t(i)];
    std::vector<TokenId> ids;
    std::vector<float> probs;
    for (const auto& [id, x] : q) {
      ids.push_back(id);
      probs.push_back(x);
    }
    const Tested t = test_draft(p, block.id(0, walk.choice(0)), DraftDistribution::sparse(ids, probs),
                                {.seed = seed, .position = 3});
    ++count[size_t(t.token)];
  }
  double chi = 0;
  for (size_t i = 0; i < 8; ++i) {
    const double want = p[i] * kDraws;
    chi += (count[i] - want) * (count[i] - want) / want;
  }
  EXPECT_LT(chi, 24.32);  // 7 degrees of freedom
}

}  // namespace
}  // namespace tandem
