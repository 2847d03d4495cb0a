#include "sample/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace tandem {
namespace {

// Known answers published with the generator (Random123, kat_vectors: philox4x32 10).
TEST(Philox, MatchesThePublishedKnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The layout is a promise: another program can recompute every draw from it.
TEST(Noise, CounterIsPositionBlockPurposeZeroUnderTheSeed) {
  const NoiseKey key{.seed = 0x299f31d0a4093822u, .position = 77, .purpose = NoisePurpose::residual};
  const PhiloxBlock block = philox4x32_10({77, 1234, 2, 0}, {0xa4093822u, 0x299f31d0u});
  for (uint32_t j = 0; j < 4; ++j) EXPECT_EQ(noise_bits(key, TokenId(4 * 1234 + j)), block[j]);
}

TEST(Noise, SeedPositionTokenAndPurposeEachChangeIt) {
  const NoiseKey key{.seed = 1, .position = 2};
  std::set<uint32_t> seen{noise_bits(key, 3)};
  EXPECT_TRUE(seen.insert(noise_bits(key, 4)).second);
  EXPECT_TRUE(seen.insert(noise_bits({.seed = 2, .position = 2}, 3)).second);
  EXPECT_TRUE(seen.insert(noise_bits({.seed = uint64_t{1} << 32 | 1, .position = 2}, 3)).second);
  EXPECT_TRUE(seen.insert(noise_bits({.seed = 1, .position = 3}, 3)).second);
  EXPECT_TRUE(seen.insert(noise_bits({.seed = 1, .position = 2, .purpose = NoisePurpose::accept}, 3)).second);
}

TEST(Noise, NoBitsGivePositiveInfinityOrNaN) {
  EXPECT_EQ(uniform_from_bits(0xffffffffu), 1.0f);
  EXPECT_EQ(gumbel_from_bits(0xffffffffu), -std::numeric_limits<float>::infinity());
  EXPECT_NEAR(gumbel_from_bits(0), 22.873857f, 1e-5f);
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 65521) {
    ASSERT_LT(gumbel_from_bits(uint32_t(bits)), 23.0f) << bits;  // false for NaN
    ASSERT_LT(gumbel_from_bits(uint32_t(0xffffffffu - bits / 65521)), 23.0f) << bits;
  }
}

TEST(Noise, UpperBoundIsNeverBelowTheNoise) {
  std::mt19937 rng(1);
  for (int i = 0; i < 200000; ++i) {
    const uint32_t bits = uint32_t(rng()) >> (i % 32);
    ASSERT_GE(gumbel_upper_bound(bits), gumbel_from_bits(bits)) << bits;
  }
}

// Mean of the standard Gumbel distribution is Euler's constant, its variance pi^2 / 6.
TEST(Noise, HasTheMomentsOfTheGumbelDistribution) {
  constexpr int n = 1 << 18;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const double g = gumbel_noise({.seed = 5, .position = uint32_t(i / 512)}, i % 512);
    sum += g;
    squares += g * g;
  }
  const double mean = sum / n, variance = squares / n - mean * mean;
  const double sigma = 1.2825;  // pi / sqrt(6)
  EXPECT_NEAR(mean, 0.57721566, 5 * sigma / std::sqrt(n));
  EXPECT_NEAR(variance, sigma * sigma,
              5 * std::sqrt(4.4) * sigma * sigma / std::sqrt(n));  // excess kurtosis 2.4
}

}  // namespace
}  // namespace tandem
