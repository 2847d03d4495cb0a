#include "sample/accept.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

Verdict accept(std::vector<TokenId> draft, std::vector<TokenId> target) {
  return accept_coupled(draft, target);
}

TEST(AcceptCoupled, KeepsTheLongestPrefixThatTheTargetChoosesItself) {
  EXPECT_EQ(accept({}, {7}).n_accepted, 0);
  EXPECT_EQ(accept({}, {7}).next, 7);
  EXPECT_EQ(accept({1, 2, 3}, {1, 2, 3, 4}).n_accepted, 3);
  EXPECT_EQ(accept({1, 2, 3}, {1, 2, 3, 4}).next, 4);  // the bonus token
  EXPECT_EQ(accept({1, 9, 3}, {1, 2, 3, 4}).n_accepted, 1);
  EXPECT_EQ(accept({1, 9, 3}, {1, 2, 3, 4}).next, 2);  // the correction
  EXPECT_EQ(accept({9, 2, 3}, {1, 2, 3, 4}).n_accepted,
            0);  // agreement after the first error is worth nothing
  EXPECT_EQ(accept({9, 2, 3}, {1, 2, 3, 4}).next, 1);
}

TEST(AcceptCoupled, NothingEverythingAndAllBetweenAtEveryLength) {
  for (TokenId length = 0; length <= 31; ++length) {
    std::vector<TokenId> target;
    for (TokenId i = 0; i <= length; ++i) target.push_back(100 + i);
    for (TokenId wrong = 0; wrong <= length; ++wrong) {  // at `length`: none is wrong
      std::vector<TokenId> draft(target.begin(), target.end() - 1);
      for (size_t i = size_t(wrong); i < draft.size(); ++i) draft[i] = -1;
      const Verdict verdict = accept(draft, target);
      EXPECT_EQ(verdict.n_accepted, wrong);
      EXPECT_EQ(verdict.next, 100 + wrong);
    }
  }
}

TEST(AcceptCoupledDeathTest, WantsOneTargetTokenMoreThanDrafts) {
  EXPECT_DEATH(accept({1, 2}, {1, 2}), "2 for 2");
}

}  // namespace
}  // namespace tandem
