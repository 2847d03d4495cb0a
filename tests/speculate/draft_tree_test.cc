#include "speculate/draft_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/count_allocations.h"

namespace tandem {
namespace {

struct Block {
  int n_slots = 0, top_k = 0;
  std::vector<TokenId> ids;
  std::vector<float> log_probs;

  SlotCandidates view() const { return {n_slots, top_k, ids, log_probs}; }
};

// Slots of `vocab` random probabilities, of which the best top_k are told.
Block random_block(std::mt19937& rng, int n_slots, int top_k, int vocab) {
  Block block{n_slots, top_k, {}, {}};
  for (int s = 0; s < n_slots; ++s) {
    std::vector<std::pair<double, TokenId>> row;
    double sum = 0;
    for (int i = 0; i < vocab; ++i) {
      row.push_back({std::exp(2 * std::normal_distribution<double>(0, 1)(rng)), 100 * s + i});
      sum += row.back().first;
    }
    std::sort(row.rbegin(), row.rend());
    for (int k = 0; k < top_k; ++k) {
      block.ids.push_back(row[size_t(k)].second);
      block.log_probs.push_back(float(std::log(row[size_t(k)].first / sum)));
    }
  }
  return block;
}

struct Tree {
  std::vector<TokenId> tokens;
  std::vector<int8_t> parents;
  double expected_accepted = 0;

  std::vector<TokenId> path(int node) const {
    std::vector<TokenId> reversed;
    for (; node >= 0; node = parents[size_t(node)]) reversed.push_back(tokens[size_t(node)]);
    return {reversed.rbegin(), reversed.rend()};
  }
};

Tree build(const SlotCandidates& slots, int max_nodes) {
  std::array<TokenId, kMaxDraft> tokens{};
  std::array<int8_t, kMaxDraft> parents{};
  const DraftTreeSize size = build_draft_tree(slots, max_nodes, tokens, parents);
  return {{tokens.begin(), tokens.begin() + size.n},
          {parents.begin(), parents.begin() + size.n},
          size.expected_accepted};
}

using Prefixes = std::vector<std::pair<double, std::vector<TokenId>>>;

void extend(const Block& block, double log_prob, std::vector<TokenId> path, Prefixes& all) {
  const size_t slot = path.size();
  if (int(slot) == block.n_slots) return;
  for (int k = 0; k < block.top_k; ++k) {
    const size_t at = slot * size_t(block.top_k) + size_t(k);
    std::vector<TokenId> longer = path;
    longer.push_back(block.ids[at]);
    all.push_back({log_prob + block.log_probs[at], longer});
    extend(block, all.back().first, longer, all);
  }
}

TEST(DraftTree, HoldsTheMostProbablePrefixes) {
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    const int n_slots = 1 + int(rng() % 4), top_k = 1 + int(rng() % 5);
    const Block block = random_block(rng, n_slots, top_k, top_k + int(rng() % 4));
    const int max_nodes = 1 + int(rng() % kMaxDraft);
    Prefixes all;
    extend(block, 0, {}, all);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    all.resize(std::min(all.size(), size_t(max_nodes)));
    double expected = 0;
    std::vector<std::vector<TokenId>> want, got;
    for (const auto& [log_prob, path] : all) want.push_back(path), expected += std::exp(log_prob);

    const Tree tree = build(block.view(), max_nodes);
    for (size_t i = 0; i < tree.tokens.size(); ++i) got.push_back(tree.path(int(i)));
    std::sort(want.begin(), want.end());
    std::sort(got.begin(), got.end());
    ASSERT_EQ(got, want) << "round " << round << ": " << n_slots << " slots, " << top_k << " candidates";
    ASSERT_NEAR(tree.expected_accepted, expected, 1e-9);
  }
}

// A block whose probabilities depend on the token before: candidate i of every slot has list i after it.
struct LinkedBlock {
  int n_slots = 0, top_k = 0;
  std::vector<TokenId> ids;  // [n_slots, top_k] of the slots
  std::vector<TokenId> listed;
  std::vector<float> log_probs;
  std::vector<uint8_t> next;

  SlotCandidates view() const {
    return {.n_slots = n_slots,
            .top_k = top_k,
            .ids = listed,
            .log_probs = log_probs,
            .n_lists = top_k,
            .next_list = next};
  }
};

LinkedBlock random_linked_block(std::mt19937& rng, int n_slots, int top_k) {
  LinkedBlock block{.n_slots = n_slots, .top_k = top_k, .ids = {}, .listed = {}, .log_probs = {}, .next = {}};
  for (int s = 0; s < n_slots; ++s) {
    for (int i = 0; i < top_k; ++i) block.ids.push_back(100 * s + int(rng() % 3) * 30 + i);
    for (int list = 0; list < top_k; ++list) {
      std::vector<std::pair<float, int>> row;
      for (int i = 0; i < top_k; ++i) {
        row.push_back({-std::abs(std::normal_distribution<float>(0, 2)(rng)) - 0.1f, i});
      }
      std::sort(row.rbegin(), row.rend());
      for (const auto& [log_prob, i] : row) {
        block.listed.push_back(block.ids[size_t(s * top_k + i)]);
        block.log_probs.push_back(log_prob);
        block.next.push_back(uint8_t(i));
      }
    }
  }
  return block;
}

void extend(const LinkedBlock& block, double log_prob, int list, std::vector<TokenId> path, Prefixes& all) {
  const size_t slot = path.size();
  if (int(slot) == block.n_slots) return;
  for (int k = 0; k < block.top_k; ++k) {
    const size_t at = (slot * size_t(block.top_k) + size_t(list)) * size_t(block.top_k) + size_t(k);
    std::vector<TokenId> longer = path;
    longer.push_back(block.listed[at]);
    all.push_back({log_prob + block.log_probs[at], longer});
    extend(block, log_prob + block.log_probs[at], block.next[at], longer, all);
  }
}

TEST(DraftTree, HoldsTheMostProbablePrefixesWhereATokenDependsOnTheOneBefore) {
  std::mt19937 rng(11);
  for (int round = 0; round < 200; ++round) {
    const LinkedBlock block = random_linked_block(rng, 1 + int(rng() % 4), 2 + int(rng() % 4));
    const int max_nodes = 1 + int(rng() % kMaxDraft);
    Prefixes all;
    extend(block, 0, 0, {}, all);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    all.resize(std::min(all.size(), size_t(max_nodes)));
    std::vector<std::vector<TokenId>> want, got;
    for (const auto& [log_prob, path] : all) want.push_back(path);
    const Tree tree = build(block.view(), max_nodes);
    for (size_t i = 0; i < tree.tokens.size(); ++i) got.push_back(tree.path(int(i)));
    std::sort(want.begin(), want.end());
    std::sort(got.begin(), got.end());
    ASSERT_EQ(got, want) << "round " << round;
  }
}

// What the recurrence walks: a node's parent is the last node of its depth - 1.
TEST(DraftTree, IsDepthFirstWithOneStatePerDepth) {
  std::mt19937 rng(2);
  for (int round = 0; round < 200; ++round) {
    const Block block = random_block(rng, 1 + int(rng() % 15), 8, 12);
    const Tree tree = build(block.view(), 1 + int(rng() % kMaxDraft));
    std::vector<int> last_of_depth{-1};
    for (int i = 0; i < int(tree.tokens.size()); ++i) {
      const size_t depth = tree.path(i).size();
      ASSERT_LE(depth, size_t(block.n_slots));
      ASSERT_LE(depth, last_of_depth.size());
      last_of_depth.resize(depth);
      ASSERT_EQ(tree.parents[size_t(i)], last_of_depth.back()) << i;
      last_of_depth.push_back(i);
    }
  }
}

TEST(DraftTree, ACertainDrafterGivesAChain) {
  Block block{15, 3, {}, {}};
  for (TokenId s = 0; s < 15; ++s) {
    block.ids.insert(block.ids.end(), {s, 100 + s, 200 + s});
    block.log_probs.insert(block.log_probs.end(), {0, -50, -60});
  }
  const Tree tree = build(block.view(), 15);
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(tree.tokens[size_t(i)], i);
    EXPECT_EQ(tree.parents[size_t(i)], i - 1);
  }
  EXPECT_NEAR(tree.expected_accepted, 15, 1e-9);
}

TEST(DraftTree, OneSlotGivesSiblingsByRank) {
  const Block block{1, 3, {7, 5, 9}, {-0.5f, -1.5f, -2.5f}};
  const Tree tree = build(block.view(), 31);
  EXPECT_EQ(tree.tokens, (std::vector<TokenId>{7, 5, 9}));
  EXPECT_EQ(tree.parents, (std::vector<int8_t>{-1, -1, -1}));
}

TEST(DraftTree, LeavesOutWhatIsImpossibleOrNotANumber) {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Block block{2, 2, {1, 2, 3, 4}, {-0.1f, -inf, -0.2f, nan}};
  EXPECT_EQ(build(block.view(), 31).tokens, (std::vector<TokenId>{1, 3}));
  const Block none{2, 1, {1, 2}, {nan, -0.1f}};
  EXPECT_EQ(build(none.view(), 31).tokens.size(), 0u);
  EXPECT_EQ(build({}, 31).tokens.size(), 0u);
}

TEST(DraftTree, TiesAreBrokenTheSameWayAlways) {
  const Block block{3, 2, {1, 2, 3, 4, 5, 6}, {0, 0, 0, 0, 0, 0}};
  const Tree tree = build(block.view(), 5);  // shallow first: 1 2 | 1-3 1-4 2-3
  EXPECT_EQ(tree.tokens, (std::vector<TokenId>{1, 3, 4, 2, 3}));
  EXPECT_EQ(tree.parents, (std::vector<int8_t>{-1, 0, 0, -1, 3}));
}

TEST(DraftTree, FindsTheChildWithAToken) {
  const std::vector<TokenId> tokens{1, 3, 4, 2, 3};
  const std::vector<int8_t> parents{-1, 0, 0, -1, 3};
  EXPECT_EQ(child_with_token(tokens, parents, -1, 1), 0);
  EXPECT_EQ(child_with_token(tokens, parents, -1, 2), 3);
  EXPECT_EQ(child_with_token(tokens, parents, -1, 3), -1);
  EXPECT_EQ(child_with_token(tokens, parents, 0, 3), 1);
  EXPECT_EQ(child_with_token(tokens, parents, 3, 3), 4);
  EXPECT_EQ(child_with_token(tokens, parents, 4, 3), -1);
}

TEST(DraftTree, DoesNotAllocate) {
  std::mt19937 rng(3);
  const Block block = random_block(rng, 15, 31, 64);
  std::array<TokenId, kMaxDraft> tokens;
  std::array<int8_t, kMaxDraft> parents;
  const int64_t before = allocations_so_far();
  EXPECT_EQ(build_draft_tree(block.view(), kMaxDraft, tokens, parents).n, kMaxDraft);
  EXPECT_EQ(allocations_so_far(), before);
}

TEST(DraftTreeDeathTest, RefusesMoreNodesThanAStepHolds) {
  std::array<TokenId, 64> tokens;
  std::array<int8_t, 64> parents;
  EXPECT_DEATH(build_draft_tree({}, 32, tokens, parents), "32 nodes");
  EXPECT_DEATH(build_draft_tree({1, 2, {}, {}}, 3, tokens, parents), "1 slots of 2");
}

}  // namespace
}  // namespace tandem
