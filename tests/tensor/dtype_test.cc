#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tensor/host_tensor.h"

namespace tandem {
namespace {

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

TEST(DType, NamesAndSizesAreThoseOfSafetensors) {
  EXPECT_EQ(dtype_name(DType::bf16), "BF16");
  EXPECT_EQ(dtype_bytes(DType::bf16), 2u);
  EXPECT_EQ(dtype_bytes(DType::f64), 8u);
  EXPECT_EQ(dtype_bytes(DType::boolean), 1u);
  for (int i = 0; i <= int(DType::boolean); ++i) {
    const DType dtype = DType(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype) << dtype_name(dtype);
  }
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

TEST(DType, EveryBf16ComesBackFromFp32) {
  for (uint32_t x = 0; x < 0x10000; ++x) {
    const float wide = float_from_bf16(uint16_t(x));
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(wide)))) << std::hex << x;
    } else {
      ASSERT_EQ(bf16_from_float(wide), x) << std::hex << x;
    }
  }
}

TEST(DType, EveryF16ComesBackFromFp32) {
  for (uint32_t x = 0; x < 0x10000; ++x) {
    const float wide = float_from_f16(uint16_t(x));
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(wide)))) << std::hex << x;
    } else {
      ASSERT_EQ(f16_from_float(wide), x) << std::hex << x;
    }
  }
}

TEST(DType, F16ValuesAreThoseOfTheirBits) {
  for (uint32_t x = 0; x < 0x10000; ++x) {
    const int exponent = int(x >> 10) & 0x1f, mantissa = int(x) & 0x3ff;
    if (exponent == 0x1f) continue;  // infinities and NaN
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(double(float_from_f16(uint16_t(x))), (x & 0x8000) != 0 ? -magnitude : magnitude)
        << std::hex << x;
  }
  EXPECT_EQ(float_from_f16(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(float_from_f16(0xfc00), -std::numeric_limits<float>::infinity());
}

// Between two neighbours a < b of a 16-bit format: below the midpoint rounds to a, above it to b, the
// midpoint itself to the even one.
template <class Widen, class Round>
void expect_nearest_even(uint32_t first, uint32_t last, Widen widen, Round round) {
  for (uint32_t x = first; x < last; ++x) {
    const float a = widen(uint16_t(x)), b = widen(uint16_t(x + 1));
    const float middle = float((double(a) + double(b)) / 2);  // exact: both formats have fewer bits than fp32
    ASSERT_EQ(round(middle), x % 2 == 0 ? x : x + 1) << std::hex << x;
    ASSERT_EQ(round(from_bits(bits_of(middle) - 1)), x) << std::hex << x;
    ASSERT_EQ(round(from_bits(bits_of(middle) + 1)), x + 1) << std::hex << x;
    ASSERT_EQ(round(-middle), (x % 2 == 0 ? x : x + 1) | 0x8000) << std::hex << x;
  }
}

TEST(DType, Bf16RoundsToNearestEven) { expect_nearest_even(0, 0x7f7f, float_from_bf16, bf16_from_float); }

TEST(DType, F16RoundsToNearestEven) { expect_nearest_even(0, 0x7bff, float_from_f16, f16_from_float); }

TEST(DType, RoundingOverflowsToInfinity) {
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_from_float(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_EQ(f16_from_float(65504.0f), 0x7bff);
  EXPECT_EQ(f16_from_float(65519.996f), 0x7bff);
  EXPECT_EQ(f16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_float(-1e30f), 0xfc00);
}

TEST(DType, SignsOfZeroAndTinyValuesAreKept) {
  EXPECT_EQ(bf16_from_float(-0.0f), 0x8000);
  EXPECT_EQ(f16_from_float(-0.0f), 0x8000);
  EXPECT_EQ(f16_from_float(-1e-30f), 0x8000);
  EXPECT_TRUE(std::signbit(float_from_f16(0x8000)));
}

TEST(DType, NaNWithALowPayloadStaysNaN) {
  // The payload bits that a 16-bit format drops must not leave an infinity behind.
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(from_bits(0x7f800001)))));
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(from_bits(0xffffffff)))));
  EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(from_bits(0x7f800001)))));
}

TEST(HostTensor, CountsElementsAndPrintsShapes) {
  HostTensor t;
  EXPECT_EQ(t.elements(), 1);
  EXPECT_EQ(shape_text(t.shape), "[]");
  t.shape = {768, 4, 1};
  EXPECT_EQ(t.elements(), 3072);
  EXPECT_EQ(shape_text(t.shape), "[768, 4, 1]");
  t.shape = {5, 0};
  EXPECT_EQ(t.elements(), 0);
}

}  // namespace
}  // namespace tandem
