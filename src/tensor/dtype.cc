#include "tensor/dtype.h"

#include <array>
#include <cmath>

#include "base/check.h"

namespace tandem {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  size_t bytes;
};

constexpr std::array<Row, 15> kTable{{
    {DType::f64, "F64", 8},
    {DType::f32, "F32", 4},
    {DType::f16, "F16", 2},
    {DType::bf16, "BF16", 2},
    {DType::f8_e4m3, "F8_E4M3", 1},
    {DType::f8_e5m2, "F8_E5M2", 1},
    {DType::i64, "I64", 8},
    {DType::i32, "I32", 4},
    {DType::i16, "I16", 2},
    {DType::i8, "I8", 1},
    {DType::u64, "U64", 8},
    {DType::u32, "U32", 4},
    {DType::u16, "U16", 2},
    {DType::u8, "U8", 1},
    {DType::boolean, "BOOL", 1},
}};

const Row& row(DType dtype) {
  const auto i = size_t(dtype);
  TD_CHECK(i < kTable.size() && kTable[i].dtype == dtype, "dtype %zu", i);
  return kTable[i];
}

}  // namespace

size_t dtype_bytes(DType dtype) { return row(dtype).bytes; }

std::string_view dtype_name(DType dtype) { return row(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& r : kTable) {
    if (r.name == name) return r.dtype;
  }
  return std::nullopt;
}

float float_from_f16(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t exponent = (x >> 10) & 0x1fu;
  const uint32_t mantissa = x & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = std::ldexp(float(mantissa), -24);  // zero or subnormal
  return sign != 0 ? -magnitude : magnitude;
}

uint16_t f16_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds beyond 65504
  if (magnitude < 0x38800000u) {                                  // subnormal result: count of 2^-24
    return uint16_t(sign | uint16_t(std::nearbyint(std::ldexp(std::bit_cast<float>(magnitude), 24))));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return uint16_t(sign | ((rounded - (112u << 23)) >> 13));
}

}  // namespace tandem
