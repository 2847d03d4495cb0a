// Affine group quantisation in the layout of MLX checkpoints. A matrix [n, k] is cut along k into groups of g
// values; a group has a scale s and a bias b, and each value is an unsigned code q of `bits` bits:
//
//     w = s * q + b,   0 <= q <= 2^bits - 1          s may be negative, and b need not be the minimum
//
// Storage:
//   codes    [n, k * bits / 32] u32. A row is one little-endian stream of bits: code j is bits [j * bits,
//            (j + 1) * bits) of it, least significant first. The 3, 5 and 6 bit codes straddle words.
//   scales, biases   [n, k / g], both f32, f16 or bf16
// A stack of experts [e, n, k] is the matrix [e * n, k].
//
// The encoder, per group (lo, hi: least and greatest value; fp32 throughout, rounding half to even):
//     step = max((hi - lo) / (2^bits - 1), 1e-7)
//     |lo| > |hi|:  edge = lo, s = step        else:  edge = hi, s = -step
//     q0 = round(edge / s);   q0 != 0:  s = edge / q0, b = edge        else:  b = 0
//     q  = clamp(round((w - b) / s), 0, 2^bits - 1)
// so the extreme of larger magnitude (and 0, where it is near a code) is hit exactly. q comes from s and b as
// computed; they are rounded to their storage type afterwards.
// Source: MLX, affine mode of quantize and dequantize (its documentation and CPU kernels).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "tensor/dtype.h"
#include "tensor/host_tensor.h"

namespace tandem {

constexpr std::array<int, 6> kAffineBits{2, 3, 4, 5, 6, 8};
constexpr std::array<int, 3> kAffineGroups{32, 64, 128};
bool is_affine_bits(int bits);
bool is_affine_group(int group);

// One quantised matrix where it lies. Pointers may be misaligned for any type: everything is read byte by
// byte or by memcpy. Does not own.
struct AffineMatrix {
  int64_t n = 0, k = 0;
  int bits = 0, group = 0;
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
  DType scale_dtype = DType::bf16;  // of scales and biases

  int64_t groups_per_row() const { return k / group; }
  int64_t row_code_bytes() const { return k * bits / 8; }
  int64_t row_scale_bytes() const { return groups_per_row() * int64_t(dtype_bytes(scale_dtype)); }
};

// The matrix that three tensors of a checkpoint make; all dimensions before the last two count as rows.
// Errors name the tensor, the expected shape or dtype, and the found: codes not u32, scales and biases of
// different dtype or not floating point, shapes that do not fit each other, `bits` and `group`.
Result<AffineMatrix> make_affine_matrix(const HostTensor& codes, const HostTensor& scales,
                                        const HostTensor& biases, int bits, int group);

// Code j of a row that begins at `row`. The definition; slow.
uint8_t affine_code(const std::byte* row, int64_t j, int bits);

// All k codes of a row, one byte each. codes.size() == m.k
void unpack_codes_row(const AffineMatrix& m, int64_t row, std::span<uint8_t> codes);

// The scales and biases of a row, in fp32. Both spans hold m.groups_per_row().
void unpack_scales_row(const AffineMatrix& m, int64_t row, std::span<float> scales, std::span<float> biases);

// Row in fp32: s * q + b with one rounding each for the product and the sum. out.size() == m.k
void dequantize_row(const AffineMatrix& m, int64_t row, std::span<float> out);

// Packs codes (each below 2^bits) as the layout above says; out holds codes.size() * bits / 8 bytes, and
// codes.size() is a multiple of 32.
void pack_codes(std::span<const uint8_t> codes, int bits, std::span<std::byte> out);

struct AffineGroup {
  float scale = 0, bias = 0;  // as computed, not yet rounded to a storage type
};

// Encodes one group of finite values. codes.size() == w.size()
AffineGroup quantize_group(std::span<const float> w, int bits, std::span<uint8_t> codes);

// Where an encoded row goes.
struct AffineRowOut {
  std::span<std::byte> codes;   // k * bits / 8
  std::span<std::byte> scales;  // k / group values of scale_dtype
  std::span<std::byte> biases;
  DType scale_dtype = DType::bf16;
};

// Encodes a row of k finite values, k a multiple of `group`. False if a group's values are so large (beyond
// about 1e31, or what scale_dtype can hold) that its scale or bias is not finite in storage; the row is
// unusable then.
[[nodiscard]] bool quantize_row(std::span<const float> w, int bits, int group, const AffineRowOut& out);

}  // namespace tandem
