// What a pack request means to every backend.
#include "backend/weight.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

TEST(KSlices, AreAsManyAsTheUnitAllowsUpToEight) {
  EXPECT_EQ(k_slices(1024, 64), 8);
  EXPECT_EQ(k_slices(512, 128), 4);
  EXPECT_EQ(k_slices(384, 64), 2);
  EXPECT_EQ(k_slices(320, 64), 1);  // five units cannot be halved
  EXPECT_EQ(k_slices(64, 64), 1);
  EXPECT_EQ(k_slices(24, 1), 8);
}

TEST(PackShape, CountsTheRowsOfAllRunsPerExpert) {
  const std::vector<float> values(6 * 4);
  const HostMatrix m{.name = "m", .n = 6, .k = 4, .data = reinterpret_cast<const std::byte*>(values.data())};
  const std::vector<RowRun> runs = {{&m, 4, 2}, {&m, 0, 4}};
  const PackShape one = pack_shape({.name = "w", .rows = runs});
  EXPECT_EQ(one.n, 6);
  EXPECT_EQ(one.k, 4);
  EXPECT_EQ(pack_shape({.name = "w", .rows = runs, .n_experts = 3, .n_slices = 2}).n, 2);
}

TEST(PackShapeDeathTest, NamesTheWeightThatCannotBePacked) {
  const std::vector<float> values(6 * 4);
  const HostMatrix m{.name = "m", .n = 6, .k = 4, .data = reinterpret_cast<const std::byte*>(values.data())};
  const RowRun outside{&m, 5, 2}, all{&m, 0, 6};
  EXPECT_DEATH(pack_shape({.name = "w_q", .rows = {&outside, 1}}), "w_q: rows 5 \\+ 2 of 6");
  EXPECT_DEATH(pack_shape({.name = "w_q", .rows = {&all, 1}, .n_slices = 8}), "w_q: k 4 in 8 slices");
  EXPECT_DEATH(pack_shape({.name = "w_q", .rows = {&all, 1}, .n_experts = 4}), "w_q: 6 rows for 4 experts");
}

TEST(RowAsF32, ReadsDenseRowsOfEveryTypeAtAnyAddress) {
  const std::vector<float> want = {1.5f, -2, 0.15625f, 100};
  std::vector<std::byte> bytes(1);  // so that nothing is aligned
  for (const float x : want) {
    const uint16_t half = bf16_from_float(x);
    bytes.push_back(std::byte(half & 0xff));
    bytes.push_back(std::byte(half >> 8));
  }
  const HostMatrix m{.name = "m", .n = 2, .k = 2, .dtype = DType::bf16, .data = bytes.data() + 1};
  std::vector<float> row(2);
  row_as_f32(m, 1, row);
  EXPECT_EQ(row, std::vector<float>({0.15625f, 100}));
}

// 4-bit codes 0..15 twice, low nibble first; scale 0.5 and bias -2 for the group of 32.
TEST(RowAsF32, AffineRowsAreScaleTimesCodePlusBias) {
  std::vector<std::byte> codes;
  for (int j = 0; j < 32; j += 2) codes.push_back(std::byte((j % 16) | ((j + 1) % 16) << 4));
  const float scale = 0.5f, bias = -2;
  const HostMatrix m{.name = "m",
                     .n = 1,
                     .k = 32,
                     .data = codes.data(),
                     .bits = 4,
                     .group = 32,
                     .scale_dtype = DType::f32,
                     .scales = reinterpret_cast<const std::byte*>(&scale),
                     .biases = reinterpret_cast<const std::byte*>(&bias)};
  std::vector<float> row(32);
  row_as_f32(m, 0, row);
  for (int j = 0; j < 32; ++j) EXPECT_EQ(row[size_t(j)], 0.5f * float(j % 16) - 2) << j;
}

}  // namespace
}  // namespace tandem
