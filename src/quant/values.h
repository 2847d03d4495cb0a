// Dense values of a checkpoint tensor as fp32, and a look for those that are not numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace tandem {

bool is_dense_float(DType dtype);  // f32, f16 or bf16

// out.size() values of `dtype` (f32, f16 or bf16) from `bytes`, which may be misaligned.
void convert_to_f32(DType dtype, const std::byte* bytes, std::span<float> out);

// fp32 values into `dtype` (f32, f16 or bf16), rounded to nearest even; `out` may be misaligned.
void convert_from_f32(std::span<const float> values, DType dtype, std::byte* out);

struct NonFinite {
  int64_t count = 0;
  int64_t first = -1;  // index of the first NaN or infinity, -1 if there is none
};

// Counts NaN and infinity among n values of `dtype` (f32, f16 or bf16) at `bytes`, which may be misaligned.
NonFinite find_non_finite(DType dtype, const std::byte* bytes, int64_t n);

}  // namespace tandem
