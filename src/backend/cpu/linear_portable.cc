// Inner loops in plain C++: for any machine, and the readable form of what the SIMD tables do.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "backend/cpu/linear_kernels.h"

namespace tandem::cpu {
namespace portable {

void unpack_step(const std::byte* packed, int bits, int64_t, uint8_t* codes) {
  std::fill(codes, codes + kStepCodes, uint8_t{0});
  const auto* in = reinterpret_cast<const uint8_t*>(packed);
  int shift = 0;
  for (const int width : plane_widths(bits)) {
    if (width == 0) break;
    const int quads = 8 / width;
    for (int p = 0; p < kQuads / quads; ++p, in += kQuadBytes) {
      for (int i = 0; i < quads; ++i) {
        uint8_t* out = codes + (p * quads + i) * kQuadBytes;
        for (int b = 0; b < kQuadBytes; ++b) {
          out[b] = uint8_t(out[b] | ((in[b] >> (i * width)) & ((1 << width) - 1)) << shift);
        }
      }
    }
    shift += width;
  }
}

float scale_at(const std::byte* scales, DType dtype, int i) {
  if (dtype == DType::f32) {
    float v;
    memcpy(&v, scales + size_t(i) * 4, 4);
    return v;
  }
  uint16_t v;
  memcpy(&v, scales + size_t(i) * 2, 2);
  return dtype == DType::bf16 ? float_from_bf16(v) : float_from_f16(v);
}

template <int kRows, int kGroups>
void affine_tile(const AffineSteps& a, int tile) {
  constexpr int kGroupQuads = kQuads / kGroups;
  for (int t = 0; t < a.n_steps; ++t) {
    const std::byte* step =
        a.codes[tile] + t / a.steps_per_block * a.code_block + t % a.steps_per_block * a.code_step;
    const std::byte* scales = a.scales[tile] + t / a.steps_per_block * a.scale_block;
    uint8_t here[kStepCodes];
    uint8_t* unpacked = a.unpacked == nullptr ? here : a.unpacked + t * kStepCodes;
    if (a.bits != 8) unpack_step(step, a.bits, 0, unpacked);
    for (int g = 0; g < kGroups; ++g) {
      const uint8_t* codes = a.bits == 8 ? reinterpret_cast<const uint8_t*>(step) : unpacked;
      codes += g * kGroupQuads * kQuadBytes;
      float scale[kTile], bias[kTile];
      for (int o = 0; o < kTile; ++o) {
        scale[o] = scale_at(scales, a.scale_dtype, 2 * g * kTile + o);
        bias[o] = scale_at(scales, a.scale_dtype, (2 * g + 1) * kTile + o);
      }
      for (int r = 0; r < kRows; ++r) {
        const ActivationGroup& x = a.x[r][t];
        const int8_t* q = x.q + g * kGroupQuads * 4;
        int32_t dot[kTile] = {};
        for (int j = 0; j < kGroupQuads; ++j) {
          for (int o = 0; o < kTile; ++o) {
            const uint8_t* c = codes + j * kQuadBytes + o * 4;
            dot[o] += c[0] * q[4 * j] + c[1] * q[4 * j + 1] + c[2] * q[4 * j + 2] + c[3] * q[4 * j + 3];
          }
        }
        const float sum = kGroups == 1 ? x.sum : x.half_sum[g];
        float* acc = a.acc[tile] + r * kTile;
        for (int o = 0; o < kTile; ++o) {
          acc[o] = std::fma(float(dot[o]), scale[o] * x.step, acc[o]);
          acc[o] = std::fma(bias[o], sum, acc[o]);
        }
      }
    }
  }
}

template <int kRows, int kTiles, int kGroups>
void affine_steps(const AffineSteps& a) {
  for (int i = 0; i < kTiles; ++i) affine_tile<kRows, kGroups>(a, i);
}

float value_at(const std::byte* w, DType dtype, int column, int o) {
  if (dtype == DType::f32) {
    float v;
    memcpy(&v, w + (size_t(column) * kTile + size_t(o)) * 4, 4);
    return v;
  }
  uint16_t v;
  if (dtype == DType::f16) {
    memcpy(&v, w + (size_t(column) * kTile + size_t(o)) * 2, 2);
    return float_from_f16(v);
  }
  memcpy(&v, w + (size_t(column / 2) * kTile * 2 + size_t(o) * 2 + size_t(column % 2)) * 2, 2);
  return float_from_bf16(v);
}

template <DType kType>
using Value = std::conditional_t<kType == DType::bf16, uint16_t, float>;

float activation(float x) { return x; }
float activation(uint16_t x) { return float_from_bf16(x); }

template <int kRows, DType kType>
void dense_tile(const DenseSteps<Value<kType>>& a, int tile) {
  for (int first = 0; first < a.n_columns; first += kStep) {
    const int last = std::min(first + kStep, a.n_columns);
    float part[kRows][kTile] = {};
    for (int i = first; i < last; ++i) {
      // bf16: the odd column of a pair comes first.
      const int c = kType == DType::bf16 && (i ^ 1) < last ? i ^ 1 : i;
      for (int o = 0; o < kTile; ++o) {
        const float w = value_at(a.w[tile], kType, c, o);
        for (int r = 0; r < kRows; ++r) part[r][o] = std::fma(w, activation(a.x[r][c]), part[r][o]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int o = 0; o < kTile; ++o) a.acc[tile][r * kTile + o] += part[r][o];
    }
  }
}

template <int kRows, int kTiles, DType kType>
void dense_steps(const DenseSteps<Value<kType>>& a) {
  for (int i = 0; i < kTiles; ++i) dense_tile<kRows, kType>(a, i);
}

void add(float* a, const float* b, int n) {
  for (int i = 0; i < n; ++i) a[i] += b[i];
}

void quantize_row(const float* x, int k, ActivationGroup* out) {
  for (int first = 0; first < k; first += kActivationGroup, ++out) {
    const int n = std::min(kActivationGroup, k - first);
    // Magnitudes compared as integers: the same order, with infinity and NaN on top.
    uint32_t largest = 0;
    for (int i = 0; i < n; ++i)
      largest = std::max(largest, std::bit_cast<uint32_t>(x[first + i]) & 0x7fffffffu);
    const float a = std::bit_cast<float>(largest);
    const float inverse = a > 0 ? 127.0f / a : 0.0f;
    int32_t sum[2] = {};
    for (int i = 0; i < kActivationGroup; ++i) {
      const float scaled = i < n ? x[first + i] * inverse : 0.0f;
      // What a NaN or an overflow becomes does not matter, `step` carries it; but it must be the same
      // everywhere.
      const int32_t q = std::fabs(scaled) <= 127.5f ? int32_t(std::nearbyint(scaled)) : 0;
      out->q[i] = int8_t(std::clamp(q, -127, 127));
      sum[i / 32] += out->q[i];
    }
    out->step = a / 127.0f;
    out->sum = out->step * float(sum[0] + sum[1]);
    out->half_sum[0] = out->step * float(sum[0]);
    out->half_sum[1] = out->step * float(sum[1]);
  }
}

void round_row(const float* x, int k, uint16_t* out) {
  for (int c = 0; c < k; ++c) out[c] = bf16_from_float(x[c]);
}

}  // namespace portable

const LinearKernels kPortableLinear = {
    .affine = TD_ROWS(portable::affine_steps, 1),
    .affine_half = TD_ROWS(portable::affine_steps, 2),
    .dense_bf16 = TD_ROWS(portable::dense_steps, DType::bf16),
    .dense_f16 = TD_ROWS(portable::dense_steps, DType::f16),
    .dense_f32 = TD_ROWS(portable::dense_steps, DType::f32),
    .unpack_step = portable::unpack_step,
    .add = portable::add,
    .quantize_row = portable::quantize_row,
    .round_row = portable::round_row,
};

}  // namespace tandem::cpu
