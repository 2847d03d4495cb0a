#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem {
namespace {

RopeConfig plain_config(double theta, int rotary_dims) {
  RopeConfig c;
  c.theta = theta;
  c.rotary_dims = rotary_dims;
  return c;
}

RopeConfig stretched(RopeConfig c, RopeConfig::Type type, double factor, int original = 0) {
  c.type = type;
  c.factor = factor;
  c.original_max_position = original;
  return c;
}

TEST(Rope, PlainFrequenciesAreAGeometricSeries) {
  const RopeTable t = rope_table(plain_config(1e7, 64));
  ASSERT_EQ(t.frequencies.size(), 32u);
  EXPECT_EQ(t.frequencies[0], 1.0f);
  EXPECT_EQ(t.factor, 1.0f);
  EXPECT_FLOAT_EQ(t.frequencies[31], float(std::pow(1e7, -62.0 / 64)));
}

TEST(Rope, LinearDividesEveryFrequency) {
  const RopeTable plain = rope_table(plain_config(1e4, 32));
  const RopeTable t = rope_table(stretched(plain_config(1e4, 32), RopeConfig::Type::linear, 4));
  for (size_t i = 0; i < 16; ++i) EXPECT_FLOAT_EQ(t.frequencies[i], plain.frequencies[i] / 4);
}

TEST(Rope, YarnKeepsShortWavelengthsAndStretchesLongOnes) {
  // Published shape: 64 dimensions, base 1e7, 262144 positions stretched by 4: dimensions 0..14 kept, 22..31
  // divided.
  const RopeTable plain = rope_table(plain_config(1e7, 64));
  const RopeTable t = rope_table(stretched(plain_config(1e7, 64), RopeConfig::Type::yarn, 4, 262144));
  for (size_t i = 0; i <= 14; ++i) EXPECT_FLOAT_EQ(t.frequencies[i], plain.frequencies[i]) << i;
  for (size_t i = 22; i < 32; ++i) EXPECT_FLOAT_EQ(t.frequencies[i], plain.frequencies[i] / 4) << i;
  EXPECT_LT(t.frequencies[18], plain.frequencies[18]);
  EXPECT_GT(t.frequencies[18], plain.frequencies[18] / 4);
  EXPECT_NEAR(t.factor, 1.138629, 1e-6);
}

TEST(Rope, Llama3BlendsBetweenItsTwoWavelengths) {
  const RopeTable plain = rope_table(plain_config(5e5, 128));
  const RopeTable t = rope_table(stretched(plain_config(5e5, 128), RopeConfig::Type::llama3, 8, 8192));
  EXPECT_EQ(t.frequencies[0], plain.frequencies[0]);
  EXPECT_FLOAT_EQ(t.frequencies[63], plain.frequencies[63] / 8);
  int n_between = 0;
  for (size_t i = 0; i < 64; ++i) {
    n_between +=
        t.frequencies[i] < plain.frequencies[i] * 0.999f && t.frequencies[i] > plain.frequencies[i] / 7.99f;
  }
  EXPECT_GT(n_between, 3);
}

}  // namespace
}  // namespace tandem
