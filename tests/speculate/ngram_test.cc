#include "speculate/ngram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <vector>

#include "support/count_allocations.h"

namespace tandem {
namespace {

using Tokens = std::vector<TokenId>;

Tokens propose(const NgramIndex& index, int max) {
  Tokens out(static_cast<size_t>(max), -7);
  const NgramProposal p = index.propose(out);
  EXPECT_EQ(p.n_tokens == 0, p.match == 0);
  out.resize(size_t(p.n_tokens));
  return out;
}

NgramIndex index_of(const Tokens& text, NgramOptions options = {.max_tokens = 1000}) {
  NgramIndex index(options);
  index.append(text);
  return index;
}

// The definition: longest match first, of equals the last, read off the text by looking everywhere.
struct Found {
  int match = 0;
  Tokens tokens;
};
Found search(const Tokens& text, const NgramOptions& o, int max) {
  const int n = int(text.size());
  for (int length = std::min(o.max_match, n); length >= o.min_match; --length) {
    for (int end = n - 1; end >= length; --end) {
      if (!std::equal(text.end() - length, text.end(), text.begin() + end - length)) continue;
      Tokens more = text;
      for (int i = 0; i < max; ++i) more.push_back(more[size_t(end + i)]);
      return {length, Tokens(more.begin() + n, more.end())};
    }
  }
  return {};
}

TEST(Ngram, ProposesWhatFollowedBefore) {
  EXPECT_EQ(propose(index_of({1, 2, 3, 4, 5, 1, 2}), 3), (Tokens{3, 4, 5}));
  EXPECT_EQ(propose(index_of({1, 2, 3}), 3), Tokens{});
  EXPECT_EQ(propose(index_of({}), 3), Tokens{});
  EXPECT_EQ(propose(index_of({1, 9, 1}), 3), Tokens{}) << "one token is no match by default";
  EXPECT_EQ(propose(index_of({1, 9, 1}, {.min_match = 1, .max_tokens = 100}), 2), (Tokens{9, 1}));
}

TEST(Ngram, TheLongestMatchWinsAndOfEqualsTheLast) {
  // ... 2 3 -> 50 lately, 1 2 3 -> 40 before.
  EXPECT_EQ(propose(index_of({1, 2, 3, 40, 9, 2, 3, 50, 1, 2, 3}), 1), Tokens{40});
  EXPECT_EQ(propose(index_of({2, 3, 40, 2, 3, 50, 2, 3}), 1), Tokens{50});
}

TEST(Ngram, ALoopIsContinued) {
  EXPECT_EQ(propose(index_of({7, 1, 2, 1, 2, 1, 2}), 7), (Tokens{1, 2, 1, 2, 1, 2, 1}));
  EXPECT_EQ(propose(index_of({5, 5, 5}), 4), (Tokens{5, 5, 5, 5}));
}

TEST(Ngram, EqualsASearchOfTheWholeTextAtEveryStep) {
  std::mt19937 rng(1);
  for (int round = 0; round < 60; ++round) {
    const NgramOptions options{
        .min_match = 1 + int(rng() % 3), .max_match = 3 + int(rng() % 4), .max_tokens = 400};
    const int vocab = 1 + int(rng() % 6);
    NgramIndex index(options);
    Tokens text;
    for (int i = 0; i < 300; ++i) {
      const Found want = search(text, options, 8);
      Tokens got(8);
      const NgramProposal p = index.propose(got);
      ASSERT_EQ(p.match, want.match) << "round " << round << " token " << i;
      got.resize(size_t(p.n_tokens));
      ASSERT_EQ(got, want.tokens) << "round " << round << " token " << i;
      // Copies of earlier stretches, and noise.
      const TokenId token =
          !text.empty() && rng() % 3 == 0 ? text[rng() % text.size()] : TokenId(rng() % uint32_t(vocab));
      text.push_back(token);
      index.append(token);
    }
  }
}

// The oldest half goes when the memory is full; what is left is searched as before.
TEST(Ngram, ForgetsTheOlderHalfAndStaysExact) {
  std::mt19937 rng(2);
  const NgramOptions options{.min_match = 2, .max_match = 4, .max_tokens = 64};
  NgramIndex index(options);
  Tokens text;
  for (int i = 0; i < 2000; ++i) {
    if (text.size() == 64) text.erase(text.begin(), text.begin() + 32);
    const TokenId token = TokenId(rng() % 4);
    text.push_back(token);
    index.append(token);
    ASSERT_EQ(index.n_tokens(), int(text.size()));
    ASSERT_EQ(propose(index, 5), search(text, options, 5).tokens) << i;
  }
}

TEST(Ngram, AnyIdsAreTokens) {
  const TokenId low = std::numeric_limits<TokenId>::min(), high = std::numeric_limits<TokenId>::max();
  EXPECT_EQ(propose(index_of({low, -1, high, 0, low, -1}), 2), (Tokens{high, 0}));
}

TEST(Ngram, ClearForgetsEverything) {
  NgramIndex index = index_of({1, 2, 3, 1, 2});
  index.clear();
  EXPECT_EQ(index.n_tokens(), 0);
  index.append(Tokens{1, 2});
  EXPECT_EQ(propose(index, 3), Tokens{});
}

TEST(Ngram, ProposesIntoNothingAndTakesNoMemoryOnceMade) {
  NgramIndex index({.max_tokens = 256});
  std::mt19937 rng(3);
  std::array<TokenId, 8> out;
  const int64_t before = allocations_so_far();
  for (int i = 0; i < 2000; ++i) {
    index.append(TokenId(rng() % 9));
    index.propose(out);
    index.propose({});
  }
  EXPECT_EQ(allocations_so_far(), before);
}

}  // namespace
}  // namespace tandem
