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

TEST(AcceptCoupledDeathTest, WantsOneTargetTokenMoreThanDrafts) {
  EXPECT_DEATH(accept({1, 2}, {1, 2}), "2 for 2");
}

}  // namespace
}  // namespace tandem
