#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem {
namespace {

TEST(Rope, PlainFrequenciesAreAGeometricSeries) {
  const RopeTable t = rope_table({.theta = 1e7, .rotary_dims = 64});
  ASSERT_EQ(t.frequencies.size(), 32u);
  EXPECT_EQ(t.frequencies[0], 1.0f);
  EXPECT_EQ(t.factor, 1.0f);
  EXPECT_FLOAT_EQ(t.frequencies[31], float(std::pow(1e7, -62.0 / 64)));
}

TEST(Rope, LinearDividesEveryFrequency) {
  const RopeTable plain = rope_table({.theta = 1e4, .rotary_dims = 32});
  const RopeTable t = rope_table({.type = RopeConfig::Type::linear, .theta = 1e4, .rotary_dims = 32, .factor = 4});
  for (size_t i = 0; i < 16; ++i) EXPECT_FLOAT_EQ(t.frequencies[i], plain.frequencies[i] / 4);
}

TEST(Rope, YarnKeepsShortWavelengthsAndStretchesLongOnes) {
  // Published shape: 64 dimensions, base 1e7, 262144 positions stretched by 4: dimensions 0..14 kept, 22..31 divided.
  const RopeTable plain = rope_table({.theta = 1e7, .rotary_dims = 64});
  const RopeTable t = rope_table({.type = RopeConfig::Type::yarn,
                                  .theta = 1e7,
                                  .rotary_dims = 64,
                                  .factor = 4,
                                  .original_max_position = 262144});
  for (size_t i = 0; i <= 14; ++i) EXPECT_FLOAT_EQ(t.frequencies[i], plain.frequencies[i]) << i;
  for (size_t i = 22; i < 32; ++i) EXPECT_FLOAT_EQ(t.frequencies[i], plain.frequencies[i] / 4) << i;
  EXPECT_LT(t.frequencies[18], plain.frequencies[18]);
  EXPECT_GT(t.frequencies[18], plain.frequencies[18] / 4);
  EXPECT_NEAR(t.factor, 1.138629, 1e-6);
}

TEST(Rope, Llama3BlendsBetweenItsTwoWavelengths) {
  RopeConfig c{.type = RopeConfig::Type::llama3, .theta = 5e5, .rotary_dims = 128, .factor = 8};
  c.original_max_position = 8192;
  const RopeTable plain = rope_table({.theta = 5e5, .rotary_dims = 128});
  const RopeTable t = rope_table(c);
  EXPECT_EQ(t.frequencies[0], plain.frequencies[0]);
  EXPECT_FLOAT_EQ(t.frequencies[63], plain.frequencies[63] / 8);
  int n_between = 0;
  for (size_t i = 0; i < 64; ++i) {
    n_between += t.frequencies[i] < plain.frequencies[i] * 0.999f && t.frequencies[i] > plain.frequencies[i] / 7.99f;
  }
  EXPECT_GT(n_between, 3);
}

}  // namespace
}  // namespace tandem
