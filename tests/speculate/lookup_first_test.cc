// Lookup where the text repeats itself, the drafter behind it everywhere else.
#include "speculate/lookup_first.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

// Proposes 7 and counts what it is asked.
class Sevens final : public Drafter {
 public:
  explicit Sevens(int* n_asked) : n_asked_(n_asked) {}
  std::string_view name() const override { return "sevens"; }
  DraftCost cost() const override { return DraftCost::chain; }
  int max_draft() const override { return 5; }
  Status begin(int, const DraftedSequence&) override { return {}; }
  void end(int) override {}
  void observe(std::span<const Observation>) override {}
  void propose(std::span<const DraftRequest> requests) override {
    for (const DraftRequest& r : requests) {
      ++*n_asked_;
      r.draft->push(7);
    }
  }

 private:
  int* n_asked_;
};

class LookupFirstTest : public testing::Test {
 protected:
  LookupFirstTest() {
    for (int slot = 0; slot < 2; ++slot) {
      EXPECT_TRUE(drafter_.begin(slot, {.prompt = {}, .sampling = &sampling_}).ok());
    }
  }
  std::vector<TokenId> tokens(const Draft& d) { return {d.tokens.begin(), d.tokens.begin() + d.n}; }

  SamplingParams sampling_;
  int n_asked_ = 0;
  LookupFirst drafter_{std::make_unique<Sevens>(&n_asked_), 2};
  const std::vector<TokenId> repeats_{1, 2, 3, 4, 5, 6, 1, 2, 3, 4}, fresh_{1, 2, 3, 4, 5, 6, 9, 9, 8, 4};
};

TEST_F(LookupFirstTest, EachSequenceOfABatchGetsTheDraftThatFitsItsText) {
  EXPECT_EQ(drafter_.name(), "sevens+ngram");
  Draft a, b;
  const DraftRequest requests[] = {{.slot = 0, .max = 2, .text = repeats_, .draft = &a},
                                   {.slot = 1, .max = 2, .text = fresh_, .draft = &b}};
  drafter_.propose(requests);
  EXPECT_EQ(tokens(a), (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(tokens(b), std::vector<TokenId>{7});
  EXPECT_EQ(n_asked_, 1);
}

TEST_F(LookupFirstTest, LookupIsTheFirstSourceAndSaysHowMuchMatched) {
  const std::vector<Drafter*> sources = drafter_.sources();
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[0]->cost(), DraftCost::free);
  EXPECT_EQ(sources[1]->name(), "sevens");
  Draft a;
  const DraftRequest request{.slot = 0, .max = 3, .text = repeats_, .draft = &a};
  sources[0]->propose({&request, 1});
  EXPECT_EQ(tokens(a), (std::vector<TokenId>{5, 6, 1}));
  EXPECT_EQ(a.match, 4);
  EXPECT_EQ(n_asked_, 0);
}

TEST_F(LookupFirstTest, TreesAreTheDraftersOwn) {
  Draft a;
  const DraftRequest request{.slot = 0, .max = 2, .tree_nodes = 6, .text = repeats_, .draft = &a};
  drafter_.propose({&request, 1});
  EXPECT_EQ(tokens(a), std::vector<TokenId>{7});
}

TEST_F(LookupFirstTest, ASlotForgetsItsLastSequence) {
  Draft a;
  const DraftRequest request{.slot = 0, .max = 2, .text = repeats_, .draft = &a};
  drafter_.propose({&request, 1});
  EXPECT_TRUE(drafter_.begin(0, {.prompt = {}, .sampling = &sampling_}).ok());
  a.clear();
  const std::vector<TokenId> other{1, 2, 3, 4};
  const DraftRequest next{.slot = 0, .max = 2, .text = other, .draft = &a};
  drafter_.propose({&next, 1});
  EXPECT_EQ(tokens(a), std::vector<TokenId>{7});
}

}  // namespace
}  // namespace tandem
