// Element types of tensors, as safetensors spells them, and exact conversions between 16-bit floats and fp32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem {

enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean
};

size_t dtype_bytes(DType dtype);
// "F32", "BF16", ...: the names safetensors uses.
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

inline float float_from_bf16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// Round to nearest, ties to even; NaN stays NaN (quiet).
inline uint16_t bf16_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float float_from_f16(uint16_t x);
// Round to nearest, ties to even; beyond 65504 becomes infinity.
uint16_t f16_from_float(float x);

}  // namespace tandem
