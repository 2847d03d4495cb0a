#include "speculate/kod.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem {
namespace {

void feed(KodRule& rule, int width, int n_accepted, double seconds) {
  for (int i = 0; i < 16; ++i) rule.observe(width, n_accepted, seconds);
}

TEST(Kod, KeepsTheBaseWidthUntilTwoRounds) {
  KodRule rule(6);
  EXPECT_EQ(rule.next_width(), 6);
  rule.observe(6, 5, 0.1);
  EXPECT_EQ(rule.next_width(), 6);
}

// As published: with drafts right 4 times in 5, its share of the window reads 0.26 at width 16 (3.9 of 15)
// and 0.8 at width 2, and with its default costs it answers 2 and 6.
TEST(Kod, OscillatesBecauseItsEstimateDependsOnTheWidth) {
  KodRule wide(16), narrow(16);
  for (int i = 0; i < 8; ++i) wide.observe(16, i == 0 ? 3 : 4, 0.18);  // mean share 0.258
  EXPECT_EQ(wide.next_width(), 2);
  for (int i = 0; i < 10; ++i) narrow.observe(2, i % 4 != 0, 0.06);  // 6 of the last 8
  EXPECT_EQ(narrow.next_width(), 5);
}

TEST(Kod, LearnsTheCostLineAndTheMeanOfTheLastEight) {
  const auto cost = [](int width) { return (20 + 0.5 * width) * 1e-3; };
  KodRule rule(8);
  feed(rule, 4, 0, cost(4));
  for (const int width : {5, 9, 5, 9, 5, 9, 5, 9}) rule.observe(width, width == 5 ? 3 : 6, cost(width));
  // a = 0.75, A = 20, B = 0.5: the best of 2 .. 16 by the formula.
  int best = 2;
  const auto rate = [](int b) { return (1 + 0.75 * (1 - std::pow(0.75, b - 1)) / 0.25) / (20 + 0.5 * b); };
  for (int b = 3; b <= 16; ++b) best = rate(b) > rate(best) ? b : best;
  EXPECT_EQ(rule.next_width(), best);
}

TEST(Kod, StaysBetweenTwoAndTwiceTheBaseAndSixteen) {
  KodRule small(3), large(16), hopeless(16);
  feed(small, 3, 2, 0.05);
  EXPECT_EQ(small.next_width(), 6);
  feed(large, 16, 15, 0.05);
  EXPECT_EQ(large.next_width(), 16);
  feed(hopeless, 16, 0, 0.05);
  EXPECT_EQ(hopeless.next_width(), 2);
}

}  // namespace
}  // namespace tandem
