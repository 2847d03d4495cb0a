#include "quant/affine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "quant/values.h"

namespace tandem {
namespace {

std::vector<float> gaussian(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::vector<float> values(n);
  for (float& x : values) x = normal(rng);
  return values;
}

// A quantised matrix that owns its bytes, one byte off any alignment.
struct Encoded {
  std::vector<std::byte> codes, scales, biases;
  AffineMatrix matrix;
};

Encoded encode(const std::vector<float>& w, int64_t n, int bits, int group, DType scale_dtype) {
  const int64_t k = int64_t(w.size()) / n;
  Encoded e;
  AffineMatrix& m = e.matrix;
  m = {.n = n, .k = k, .bits = bits, .group = group};
  m.scale_dtype = scale_dtype;
  e.codes.resize(size_t(n * m.row_code_bytes()) + 1);
  e.scales.resize(size_t(n * m.row_scale_bytes()) + 1);
  e.biases.resize(e.scales.size());
  m.codes = e.codes.data() + 1;
  m.scales = e.scales.data() + 1;
  m.biases = e.biases.data() + 1;
  for (int64_t row = 0; row < n; ++row) {
    const auto part = [row](std::vector<std::byte>& bytes, int64_t row_bytes) {
      return std::span(bytes).subspan(size_t(1 + row * row_bytes), size_t(row_bytes));
    };
    EXPECT_TRUE(quantize_row(std::span(w).subspan(size_t(row * k), size_t(k)), bits, group,
                             {.codes = part(e.codes, m.row_code_bytes()),
                              .scales = part(e.scales, m.row_scale_bytes()),
                              .biases = part(e.biases, m.row_scale_bytes()),
                              .scale_dtype = scale_dtype}));
  }
  return e;
}

TEST(AffineCodes, PackedCodesAreReadBackByBothReaders) {
  std::mt19937 rng(3);
  for (const int bits : kAffineBits) {
    for (const int group : kAffineGroups) {
      const int64_t n = 3, k = group * (1 + int64_t(rng() % 5));
      AffineMatrix m{.n = n, .k = k, .bits = bits, .group = group};
      std::vector<std::byte> packed(size_t(n * m.row_code_bytes()));
      std::vector<uint8_t> codes(size_t(n * k));
      for (uint8_t& c : codes) c = uint8_t(rng() & ((1u << bits) - 1));
      for (int64_t row = 0; row < n; ++row) {
        pack_codes(std::span(codes).subspan(size_t(row * k), size_t(k)), bits,
                   std::span(packed).subspan(size_t(row * m.row_code_bytes()), size_t(m.row_code_bytes())));
      }
      m.codes = packed.data();
      for (int64_t row = 0; row < n; ++row) {
        std::vector<uint8_t> unpacked(static_cast<size_t>(k));
        unpack_codes_row(m, row, unpacked);
        for (int64_t j = 0; j < k; ++j) {
          const uint8_t expected = codes[size_t(row * k + j)];
          ASSERT_EQ(unpacked[size_t(j)], expected) << bits << " bits, row " << row << ", code " << j;
          ASSERT_EQ(affine_code(m.codes + row * m.row_code_bytes(), j, bits), expected)
              << bits << " bits, code " << j;
        }
      }
    }
  }
}

// The layout by hand: code 0 in the lowest bits of the first byte; 3, 5 and 6 bits run across byte borders.
TEST(AffineCodes, TheLayoutIsALittleEndianStreamOfBits) {
  struct Case {
    int bits;
    std::vector<uint8_t> first_bytes;  // of the codes 1, 2, 3, 0, 0, 0, 0, 1
  };
  const std::vector<Case> cases{
      {2, {0b00'11'10'01, 0b01'00'00'00}},
      {3, {0b11'010'001, 0b0'000'000'0, 0b001'000'00}},
      {4, {0x21, 0x03, 0x00, 0x10}},
      {5, {0b010'00001, 0b0'00011'00, 0, 0, 0b00001'000}},
      {6, {0b10'000001, 0b0011'0000, 0b000000'00, 0, 0, 0b000001'00}},
      {8, {1, 2, 3, 0, 0, 0, 0, 1}},
  };
  std::vector<uint8_t> codes(32, 0);
  codes[0] = 1;
  codes[1] = 2;
  codes[2] = 3;
  codes[7] = 1;
  for (const Case& c : cases) {
    std::vector<std::byte> packed(codes.size() * size_t(c.bits) / 8);
    pack_codes(codes, c.bits, packed);
    for (size_t i = 0; i < c.first_bytes.size(); ++i) {
      EXPECT_EQ(uint8_t(packed[i]), c.first_bytes[i]) << c.bits << " bits, byte " << i;
    }
  }
}

// The encoder's definition, step by step.
AffineGroup encode_by_definition(const std::vector<float>& w, int bits, std::vector<uint8_t>& codes) {
  const float n = float((1 << bits) - 1);
  const float lo = *std::min_element(w.begin(), w.end()), hi = *std::max_element(w.begin(), w.end());
  const float step = std::max((hi - lo) / n, 1e-7f);
  float edge = hi, s = -step, b = 0;
  if (std::fabs(lo) > std::fabs(hi)) {
    edge = lo;
    s = step;
  }
  const float q0 = std::rint(edge / s);
  if (q0 != 0) {
    s = edge / q0;
    b = edge;
  }
  codes.clear();
  for (const float x : w) codes.push_back(uint8_t(std::clamp(std::rint((x - b) / s), 0.0f, n)));
  return {.scale = s, .bias = b};
}

TEST(AffineEncoder, FollowsItsDefinitionBitForBit) {
  std::mt19937 rng(4);
  for (int i = 0; i < 3000; ++i) {
    const int bits = kAffineBits[rng() % kAffineBits.size()],
              group = kAffineGroups[rng() % kAffineGroups.size()];
    std::vector<float> w = gaussian(size_t(group), rng());
    const float shift = i % 3 == 0 ? 0.3f : 0.0f, scale = std::ldexp(1.0f, int(rng() % 40) - 30);
    for (float& x : w) x = float_from_bf16(bf16_from_float((x + shift) * scale));
    if (i % 50 == 0) w.assign(w.size(), i % 100 == 0 ? 0.0f : scale);  // constant groups: the 1e-7 floor
    std::vector<uint8_t> expected, codes(w.size());
    const AffineGroup by_definition = encode_by_definition(w, bits, expected);
    const AffineGroup group_result = quantize_group(w, bits, codes);
    ASSERT_EQ(group_result.scale, by_definition.scale) << "case " << i;
    ASSERT_EQ(group_result.bias, by_definition.bias) << "case " << i;
    ASSERT_EQ(codes, expected) << "case " << i;
  }
}

TEST(AffineEncoder, TheExtremeOfLargerMagnitudeAndZeroAreExact) {
  std::vector<float> w(64, 0.0f);
  w[3] = -1.5f;
  w[9] = 0.7f;
  const Encoded e = encode(w, 1, 4, 64, DType::f32);
  std::vector<float> back(64);
  dequantize_row(e.matrix, 0, back);
  EXPECT_EQ(back[3], -1.5f);
  EXPECT_NEAR(back[0], 0.0f, 1e-7f);
  float scale = 0, bias = 0;
  unpack_scales_row(e.matrix, 0, {&scale, 1}, {&bias, 1});
  EXPECT_GT(scale, 0);
  w[9] = 1.7f;  // now the greatest value is the larger: the scale turns negative
  const Encoded f = encode(w, 1, 4, 64, DType::f32);
  unpack_scales_row(f.matrix, 0, {&scale, 1}, {&bias, 1});
  EXPECT_LT(scale, 0);
  EXPECT_EQ(bias, 1.7f);
}

TEST(AffineEncoder, AZeroMatrixStaysZero) {
  for (const int bits : kAffineBits) {
    const Encoded e = encode(std::vector<float>(256, 0.0f), 2, bits, 32, DType::bf16);
    std::vector<float> back(128, 1.0f);
    dequantize_row(e.matrix, 1, back);
    EXPECT_EQ(back, std::vector<float>(128, 0.0f)) << bits << " bits";
  }
}

// Relative RMS error on Gaussian weights, groups of 64, bf16 scales: what each width costs. It halves with
// each bit until the rounding of scales and biases to bf16 shows, at 8 bits.
TEST(AffineEncoder, TheErrorOfEachWidthIsAsExpected) {
  struct Case {
    int bits;
    double low, high;
  };
  for (const Case& c : {Case{8, 6.5e-3, 8.0e-3}, Case{6, 2.15e-2, 2.25e-2}, Case{5, 4.35e-2, 4.45e-2},
                        Case{4, 9.05e-2, 9.15e-2}, Case{3, 0.185, 0.195}, Case{2, 0.385, 0.405}}) {
    std::vector<float> w = gaussian(512 * 256, 5);
    for (float& x : w) x = float_from_bf16(bf16_from_float(x));
    const Encoded e = encode(w, 512, c.bits, 64, DType::bf16);
    std::vector<float> back(256);
    double error = 0, total = 0;
    for (int64_t row = 0; row < 512; ++row) {
      dequantize_row(e.matrix, row, back);
      for (size_t j = 0; j < 256; ++j) {
        const double x = w[size_t(row) * 256 + j];
        error += (x - back[j]) * (x - back[j]);
        total += x * x;
      }
    }
    const double relative = std::sqrt(error / total);
    EXPECT_GE(relative, c.low) << c.bits << " bits";
    EXPECT_LE(relative, c.high) << c.bits << " bits";
  }
}

TEST(AffineEncoder, ScalesAreStoredInEachFloatType) {
  const std::vector<float> w = gaussian(3 * 128, 6);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Encoded e = encode(w, 3, 8, 32, dtype);
    for (int64_t row = 0; row < 3; ++row) {
      std::vector<float> scales(4), biases(4), back(128);
      unpack_scales_row(e.matrix, row, scales, biases);
      dequantize_row(e.matrix, row, back);
      for (size_t j = 0; j < 128; ++j) {
        const uint8_t code = affine_code(e.matrix.codes + row * e.matrix.row_code_bytes(), int64_t(j), 8);
        ASSERT_EQ(back[j], scales[j / 32] * float(code) + biases[j / 32]);
        ASSERT_NEAR(back[j], w[size_t(row) * 128 + j], 4e-3f) << dtype_name(dtype);
      }
    }
  }
}

TEST(AffineEncoder, ValuesBeyondWhatCanBeStoredAreReported) {
  const auto usable = [](float value, DType dtype) {
    std::vector<float> w(32, 0.0f);
    w[0] = value;
    w[1] = -value;
    std::vector<std::byte> codes(32), scales(dtype_bytes(dtype)), biases(dtype_bytes(dtype));
    return quantize_row(w, 8, 32, {.codes = codes, .scales = scales, .biases = biases, .scale_dtype = dtype});
  };
  EXPECT_TRUE(usable(60000.0f, DType::f16));
  EXPECT_FALSE(usable(1e6f, DType::f16));
  EXPECT_TRUE(usable(1e6f, DType::bf16));
  EXPECT_FALSE(usable(3e38f, DType::bf16));
  std::vector<float> constant(32, 1e35f);  // edge / 1e-7 is infinite
  std::vector<std::byte> codes(32), scales(4), biases(4);
  EXPECT_FALSE(quantize_row(constant, 8, 32,
                            {.codes = codes, .scales = scales, .biases = biases, .scale_dtype = DType::f32}));
}

TEST(AffineMatrixOfTensors, TakesStacksOfMatrices) {
  const std::vector<std::byte> bytes(4096);
  const HostTensor codes{
      .name = "w", .dtype = DType::u32, .shape = {3, 2, 24}, .bytes = std::span(bytes).first(576)};
  const HostTensor scales{
      .name = "s", .dtype = DType::f16, .shape = {3, 2, 2}, .bytes = std::span(bytes).first(24)};
  const auto m = make_affine_matrix(codes, scales, scales, 6, 64);
  ASSERT_TRUE(m.ok()) << m.error().message;
  EXPECT_EQ(m->n, 6);
  EXPECT_EQ(m->k, 128);
  EXPECT_EQ(m->groups_per_row(), 2);
  EXPECT_EQ(m->row_code_bytes(), 96);
  EXPECT_EQ(m->scale_dtype, DType::f16);
}

TEST(AffineMatrixOfTensors, TensorsThatDoNotFitAreNamed) {
  const HostTensor codes{.name = "m.weight", .dtype = DType::u32, .shape = {4, 16}, .bytes = {}};
  const HostTensor scales{.name = "m.scales", .dtype = DType::bf16, .shape = {4, 1}, .bytes = {}};
  const auto error = [](const HostTensor& c, const HostTensor& s, const HostTensor& b, int bits, int group) {
    const auto m = make_affine_matrix(c, s, b, bits, group);
    return m.ok() ? std::string("no error") : m.error().message;
  };
  EXPECT_EQ(error(codes, scales, scales, 8, 64), "no error");
  HostTensor other = codes;
  other.dtype = DType::bf16;
  EXPECT_EQ(error(other, scales, scales, 8, 64), "tensor 'm.weight': expected codes of type U32, found BF16");
  other = codes;
  other.shape = {64};
  EXPECT_EQ(error(other, scales, scales, 8, 64),
            "tensor 'm.weight': expected at least two dimensions, found [64]");
  other.shape = {4, 17};
  EXPECT_EQ(error(other, scales, scales, 8, 64),
            "tensor 'm.weight': rows of 17 words hold no whole number of groups of 64 codes of 8 bits");
  other.shape = {4, 16};
  EXPECT_EQ(error(other, scales, scales, 3, 64),
            "tensor 'm.weight': rows of 16 words hold no whole number of groups of 64 codes of 3 bits");
  EXPECT_EQ(error(codes, scales, scales, 4, 64),
            "tensor 'm.scales': expected shape [4, 2] beside 'm.weight' [4, 16] (4 bits, groups of 64), "
            "found [4, 1]");
  HostTensor bad = scales;
  bad.dtype = DType::u8;
  EXPECT_EQ(error(codes, bad, scales, 8, 64), "tensor 'm.scales': expected F32, F16 or BF16, found U8");
  bad = scales;
  bad.name = "m.biases";
  bad.dtype = DType::f32;
  EXPECT_EQ(error(codes, scales, bad, 8, 64), "tensor 'm.biases': expected BF16 as in 'm.scales', found F32");
}

TEST(Values, ConvertBothWaysFromMisalignedBytes) {
  const std::vector<float> values{0.0f, -1.5f, 3.0e-5f, 65504.0f, -0.0f};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<std::byte> bytes(1 + values.size() * dtype_bytes(dtype));
    convert_from_f32(values, dtype, bytes.data() + 1);
    std::vector<float> back(values.size());
    convert_to_f32(dtype, bytes.data() + 1, back);
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = dtype == DType::f32   ? values[i]
                             : dtype == DType::f16 ? float_from_f16(f16_from_float(values[i]))
                                                   : float_from_bf16(bf16_from_float(values[i]));
      EXPECT_EQ(back[i], expected) << dtype_name(dtype);
    }
  }
}

TEST(Values, NaNAndInfinityAreCountedAndTheFirstIsFound) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<float> values(10000, 1.0f);
    std::vector<std::byte> bytes(1 + values.size() * dtype_bytes(dtype));
    convert_from_f32(values, dtype, bytes.data() + 1);
    NonFinite found = find_non_finite(dtype, bytes.data() + 1, int64_t(values.size()));
    EXPECT_EQ(found.count, 0);
    EXPECT_EQ(found.first, -1);
    values[8191] = -std::numeric_limits<float>::infinity();
    values[5000] = std::numeric_limits<float>::quiet_NaN();
    values[9999] = std::numeric_limits<float>::infinity();
    convert_from_f32(values, dtype, bytes.data() + 1);
    found = find_non_finite(dtype, bytes.data() + 1, int64_t(values.size()));
    EXPECT_EQ(found.count, 3) << dtype_name(dtype);
    EXPECT_EQ(found.first, 5000) << dtype_name(dtype);
    EXPECT_EQ(find_non_finite(dtype, bytes.data() + 1, 0).count, 0);
  }
}

}  // namespace
}  // namespace tandem
