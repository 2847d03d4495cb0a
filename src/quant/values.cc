#include "quant/values.h"

#include <cstring>

#include "base/check.h"

namespace tandem {
namespace {

template <class T>
T load(const std::byte* at) {
  T x;
  std::memcpy(&x, at, sizeof(T));
  return x;
}

// An exponent of all ones is a NaN or an infinity in each of the formats.
template <class T>
NonFinite count_non_finite(const std::byte* bytes, int64_t n, T exponent) {
  NonFinite found;
  constexpr int64_t kBlock = 4096;  // counted without a branch, searched only where something was counted
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) count += (load<T>(bytes + i * sizeof(T)) & exponent) == exponent;
    if (count > 0 && found.count == 0) {
      found.first = begin;
      while ((load<T>(bytes + found.first * sizeof(T)) & exponent) != exponent) ++found.first;
    }
    found.count += count;
  }
  return found;
}

}  // namespace

bool is_dense_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

void convert_to_f32(DType dtype, const std::byte* bytes, std::span<float> out) {
  if (out.empty()) return;
  if (dtype == DType::f32) {
    std::memcpy(out.data(), bytes, out.size() * sizeof(float));
  } else if (dtype == DType::bf16) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = float_from_bf16(load<uint16_t>(bytes + 2 * i));
  } else {
    TD_CHECK(dtype == DType::f16, "dtype %d is not a dense float", int(dtype));
    for (size_t i = 0; i < out.size(); ++i) out[i] = float_from_f16(load<uint16_t>(bytes + 2 * i));
  }
}

void convert_from_f32(std::span<const float> values, DType dtype, std::byte* out) {
  if (values.empty()) return;
  if (dtype == DType::f32) {
    std::memcpy(out, values.data(), values.size() * sizeof(float));
    return;
  }
  TD_CHECK(dtype == DType::bf16 || dtype == DType::f16, "dtype %d is not a dense float", int(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t x = dtype == DType::bf16 ? bf16_from_float(values[i]) : f16_from_float(values[i]);
    std::memcpy(out + 2 * i, &x, 2);
  }
}

NonFinite find_non_finite(DType dtype, const std::byte* bytes, int64_t n) {
  switch (dtype) {
    case DType::f32:
      return count_non_finite<uint32_t>(bytes, n, 0x7f800000u);
    case DType::bf16:
      return count_non_finite<uint16_t>(bytes, n, 0x7f80u);
    default:
      TD_CHECK(dtype == DType::f16, "dtype %d is not a dense float", int(dtype));
      return count_non_finite<uint16_t>(bytes, n, 0x7c00u);
  }
}

}  // namespace tandem
