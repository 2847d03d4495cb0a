#include "quant/affine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "quant/values.h"

namespace tandem {
namespace {

// 8 codes of B bits are B bytes, whatever B: the unit in which rows are packed and unpacked.
template <int B>
void unpack_bytes(const std::byte* in, std::span<uint8_t> codes) {
  constexpr uint64_t kMask = (1u << B) - 1;
  for (size_t i = 0; i < codes.size(); i += 8, in += B) {
    uint64_t word = 0;
    std::memcpy(&word, in, B);
    for (size_t j = 0; j < 8; ++j) codes[i + j] = uint8_t((word >> (j * B)) & kMask);
  }
}

template <int B>
void pack_bytes(std::span<const uint8_t> codes, std::byte* out) {
  for (size_t i = 0; i < codes.size(); i += 8, out += B) {
    uint64_t word = 0;
    for (size_t j = 0; j < 8; ++j) word |= uint64_t{codes[i + j]} << (j * B);
    std::memcpy(out, &word, B);
  }
}

void unpack(int bits, const std::byte* in, std::span<uint8_t> codes) {
  switch (bits) {
    case 2:
      return unpack_bytes<2>(in, codes);
    case 3:
      return unpack_bytes<3>(in, codes);
    case 4:
      return unpack_bytes<4>(in, codes);
    case 5:
      return unpack_bytes<5>(in, codes);
    case 6:
      return unpack_bytes<6>(in, codes);
    default:
      return unpack_bytes<8>(in, codes);
  }
}

void check_layout(const AffineMatrix& m, int64_t row) {
  TD_CHECK(is_affine_bits(m.bits) && is_affine_group(m.group) && m.k % m.group == 0 && row >= 0 && row < m.n,
           "row %lld of [%lld, %lld], %d bits, groups of %d", static_cast<long long>(row),
           static_cast<long long>(m.n), static_cast<long long>(m.k), m.bits, m.group);
}

Error tensor_error(const HostTensor& tensor, const std::string& text) {
  return Error{fmt::format("tensor '{}': {}", tensor.name, text)};
}

// Half to even, for |x| < 2^22: in x + 1.5 * 2^23 the last bit of the mantissa counts ones. Unlike a call of
// rint it becomes vector instructions on every x86.
float round_small(float x) {
  constexpr float kMagic = 12582912.0f;
  return (x + kMagic) - kMagic;
}

}  // namespace

bool is_affine_bits(int bits) {
  return std::find(kAffineBits.begin(), kAffineBits.end(), bits) != kAffineBits.end();
}

bool is_affine_group(int group) {
  return std::find(kAffineGroups.begin(), kAffineGroups.end(), group) != kAffineGroups.end();
}

Result<AffineMatrix> make_affine_matrix(const HostTensor& codes, const HostTensor& scales,
                                        const HostTensor& biases, int bits, int group) {
  TD_CHECK(is_affine_bits(bits) && is_affine_group(group), "%d bits, groups of %d", bits, group);
  if (codes.dtype != DType::u32) {
    return tensor_error(codes, fmt::format("expected codes of type U32, found {}", dtype_name(codes.dtype)));
  }
  if (codes.shape.size() < 2) {
    return tensor_error(codes,
                        fmt::format("expected at least two dimensions, found {}", shape_text(codes.shape)));
  }
  if (!is_dense_float(scales.dtype)) {
    return tensor_error(scales, fmt::format("expected F32, F16 or BF16, found {}", dtype_name(scales.dtype)));
  }
  if (biases.dtype != scales.dtype) {
    return tensor_error(biases, fmt::format("expected {} as in '{}', found {}", dtype_name(scales.dtype),
                                            scales.name, dtype_name(biases.dtype)));
  }
  AffineMatrix m;
  m.bits = bits;
  m.group = group;
  m.n = 1;
  for (size_t i = 0; i + 1 < codes.shape.size(); ++i) m.n *= codes.shape[i];
  const int64_t words = codes.shape.back();
  if (words * 32 % bits != 0 || words * 32 / bits % group != 0) {
    return tensor_error(
        codes, fmt::format("rows of {} words hold no whole number of groups of {} codes of {} bits", words,
                           group, bits));
  }
  m.k = words * 32 / bits;
  std::vector<int64_t> expected = codes.shape;
  expected.back() = m.k / group;
  for (const HostTensor* t : {&scales, &biases}) {
    if (t->shape != expected) {
      return tensor_error(*t,
                          fmt::format("expected shape {} beside '{}' {} ({} bits, groups of {}), found {}",
                                      shape_text(expected), codes.name, shape_text(codes.shape), bits, group,
                                      shape_text(t->shape)));
    }
  }
  m.codes = codes.bytes.data();
  m.scales = scales.bytes.data();
  m.biases = biases.bytes.data();
  m.scale_dtype = scales.dtype;
  return m;
}

uint8_t affine_code(const std::byte* row, int64_t j, int bits) {
  const int64_t bit = j * bits;
  const int shift = int(bit % 8);
  unsigned word = unsigned(row[bit / 8]);
  if (shift + bits > 8) word |= unsigned(row[bit / 8 + 1]) << 8;
  return uint8_t((word >> shift) & ((1u << bits) - 1));
}

void unpack_codes_row(const AffineMatrix& m, int64_t row, std::span<uint8_t> codes) {
  check_layout(m, row);
  TD_CHECK(int64_t(codes.size()) == m.k, "%zu codes", codes.size());
  unpack(m.bits, m.codes + row * m.row_code_bytes(), codes);
}

void unpack_scales_row(const AffineMatrix& m, int64_t row, std::span<float> scales, std::span<float> biases) {
  check_layout(m, row);
  TD_CHECK(int64_t(scales.size()) == m.groups_per_row() && scales.size() == biases.size(),
           "%zu scales, %zu biases", scales.size(), biases.size());
  convert_to_f32(m.scale_dtype, m.scales + row * m.row_scale_bytes(), scales);
  convert_to_f32(m.scale_dtype, m.biases + row * m.row_scale_bytes(), biases);
}

void dequantize_row(const AffineMatrix& m, int64_t row, std::span<float> out) {
  check_layout(m, row);
  TD_CHECK(int64_t(out.size()) == m.k, "%zu values", out.size());
  const auto group = size_t(m.group), scale_bytes = dtype_bytes(m.scale_dtype);
  const std::byte* code_at = m.codes + row * m.row_code_bytes();
  const std::byte* scale_at = m.scales + row * m.row_scale_bytes();
  const std::byte* bias_at = m.biases + row * m.row_scale_bytes();
  std::array<uint8_t, kAffineGroups.back()> codes;
  for (size_t begin = 0; begin < out.size(); begin += group) {
    float scale = 0, bias = 0;
    convert_to_f32(m.scale_dtype, scale_at, {&scale, 1});
    convert_to_f32(m.scale_dtype, bias_at, {&bias, 1});
    unpack(m.bits, code_at, std::span(codes).first(group));
    for (size_t j = 0; j < group; ++j) out[begin + j] = scale * float(codes[j]) + bias;
    code_at += group * size_t(m.bits) / 8;
    scale_at += scale_bytes;
    bias_at += scale_bytes;
  }
}

void pack_codes(std::span<const uint8_t> codes, int bits, std::span<std::byte> out) {
  TD_CHECK(is_affine_bits(bits) && codes.size() % 32 == 0 && out.size() == codes.size() * size_t(bits) / 8,
           "%zu codes of %d bits into %zu bytes", codes.size(), bits, out.size());
  switch (bits) {
    case 2:
      return pack_bytes<2>(codes, out.data());
    case 3:
      return pack_bytes<3>(codes, out.data());
    case 4:
      return pack_bytes<4>(codes, out.data());
    case 5:
      return pack_bytes<5>(codes, out.data());
    case 6:
      return pack_bytes<6>(codes, out.data());
    default:
      return pack_bytes<8>(codes, out.data());
  }
}

AffineGroup quantize_group(std::span<const float> w, int bits, std::span<uint8_t> codes) {
  TD_CHECK(!w.empty() && codes.size() == w.size(), "%zu values, %zu codes", w.size(), codes.size());
  const auto [low, high] = std::minmax_element(w.begin(), w.end());
  const float lo = *low, hi = *high;
  const auto n = float((1 << bits) - 1);
  const float step = std::max((hi - lo) / n, 1e-7f);
  const bool edge_is_low = std::abs(lo) > std::abs(hi);
  const float edge = edge_is_low ? lo : hi;
  AffineGroup group{.scale = edge_is_low ? step : -step, .bias = 0};
  const float q0 = std::nearbyint(edge / group.scale);
  if (q0 != 0) group = {.scale = edge / q0, .bias = edge};
  for (size_t j = 0; j < w.size(); ++j) {
    // Clamped before rounding, which is the same since the bounds are whole. A NaN (only from values near the
    // end of fp32's range) becomes 0 here, and quantize_row reports the scale behind it.
    const float x = (w[j] - group.bias) / group.scale;
    codes[j] = uint8_t(round_small(x > 0 ? std::min(x, n) : 0.0f));
  }
  return group;
}

bool quantize_row(std::span<const float> w, int bits, int group, const AffineRowOut& out) {
  TD_CHECK(is_affine_group(group) && w.size() % size_t(group) == 0, "%zu values in groups of %d", w.size(),
           group);
  const size_t n_groups = w.size() / size_t(group), scale_bytes = dtype_bytes(out.scale_dtype);
  const size_t code_bytes = size_t(group * bits) / 8;
  TD_CHECK(out.codes.size() == n_groups * code_bytes && out.scales.size() == n_groups * scale_bytes &&
               out.biases.size() == out.scales.size(),
           "%zu, %zu, %zu bytes for %zu groups", out.codes.size(), out.scales.size(), out.biases.size(),
           n_groups);
  std::array<uint8_t, kAffineGroups.back()> buffer;
  const auto codes = std::span(buffer).first(size_t(group));
  bool usable = true;
  for (size_t g = 0; g < n_groups; ++g) {
    const AffineGroup fitted = quantize_group(w.subspan(g * size_t(group), size_t(group)), bits, codes);
    pack_codes(codes, bits, out.codes.subspan(g * code_bytes, code_bytes));
    convert_from_f32({&fitted.scale, 1}, out.scale_dtype, out.scales.data() + g * scale_bytes);
    convert_from_f32({&fitted.bias, 1}, out.scale_dtype, out.biases.data() + g * scale_bytes);
    usable = usable && fitted.scale != 0;
  }
  return usable && find_non_finite(out.scale_dtype, out.scales.data(), int64_t(n_groups)).count == 0 &&
         find_non_finite(out.scale_dtype, out.biases.data(), int64_t(n_groups)).count == 0;
}

}  // namespace tandem
