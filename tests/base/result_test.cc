#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace tandem {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return Error{"odd: " + std::to_string(x)};
  return x / 2;
}

Status check_small(int x) {
  if (x > 10) return Error{"too large: " + std::to_string(x)};
  return {};
}

Result<int> quarter_of_small(int x) {
  TD_RETURN_IF_ERROR(check_small(x));
  TD_ASSIGN_OR_RETURN(const int once, half(x));
  TD_ASSIGN_OR_RETURN(const int twice, half(once));
  return twice;
}

TEST(Result, HoldsAValueOrAnError) {
  EXPECT_TRUE(half(4).ok());
  EXPECT_EQ(*half(4), 2);
  EXPECT_FALSE(half(3));
  EXPECT_EQ(half(3).error().message, "odd: 3");
}

TEST(Result, TheMacrosPassOnTheFirstError) {
  EXPECT_EQ(*quarter_of_small(8), 2);
  EXPECT_EQ(quarter_of_small(12).error().message, "too large: 12");
  EXPECT_EQ(quarter_of_small(5).error().message, "odd: 5");
  EXPECT_EQ(quarter_of_small(6).error().message, "odd: 3");
}

TEST(Result, ValuesThatOnlyMoveCanBeTakenOut) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  const std::unique_ptr<int> taken = *std::move(result);
  EXPECT_EQ(*taken, 7);
}

TEST(Status, IsFineUntilItHoldsAnError) {
  EXPECT_TRUE(Status().ok());
  EXPECT_TRUE(check_small(1).ok());
  EXPECT_EQ(check_small(11).error().message, "too large: 11");
}

}  // namespace
}  // namespace tandem
