// Inner loops with AVX2, FMA and F16C. The only file of the linear kernels compiled with these flags (see
// linear_avx512.cc).
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "backend/cpu/linear_kernels.h"

namespace tandem::cpu {
namespace avx2 {

constexpr int kLanes = 8;
constexpr int kVectors = kTile / kLanes;

[[gnu::always_inline]] inline void ask(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

// 8 scales or biases, widened.
[[gnu::always_inline]] inline __m256 load_scales(const std::byte* p, DType dtype, int first) {
  if (dtype == DType::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p) + first);
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + first * 2));
  if (dtype == DType::f16) return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

template <int kWidth>
const std::byte* unpack_plane(const std::byte* in, int shift, int64_t ahead, uint8_t* codes) {
  constexpr int kPlaneQuads = 8 / kWidth;
  const __m256i mask = _mm256_set1_epi8((1 << kWidth) - 1);
  for (int p = 0; p < kQuads / kPlaneQuads; ++p, in += kQuadBytes) {
    for (int v = 0; v < kVectors; ++v) {
      const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + v * 32));
      if (ahead != 0) ask(in + v * 32 + ahead);
#pragma GCC unroll 8
      for (int i = 0; i < kPlaneQuads; ++i) {
        auto* out = reinterpret_cast<__m256i*>(codes + (p * kPlaneQuads + i) * kQuadBytes + v * 32);
        __m256i code = _mm256_and_si256(_mm256_srli_epi32(packed, i * kWidth), mask);
        if (shift != 0) code = _mm256_or_si256(_mm256_slli_epi32(code, shift), _mm256_loadu_si256(out));
        _mm256_storeu_si256(out, code);
      }
    }
  }
  return in;
}

void unpack_step(const std::byte* packed, int bits, int64_t ahead, uint8_t* codes) {
  switch (bits) {
    case 2:
      unpack_plane<2>(packed, 0, ahead, codes);
      break;
    case 3:
      unpack_plane<1>(unpack_plane<2>(packed, 0, ahead, codes), 2, ahead, codes);
      break;
    case 4:
      unpack_plane<4>(packed, 0, ahead, codes);
      break;
    case 5:
      unpack_plane<1>(unpack_plane<4>(packed, 0, ahead, codes), 4, ahead, codes);
      break;
    default:
      unpack_plane<2>(unpack_plane<4>(packed, 0, ahead, codes), 4, ahead, codes);
      break;
  }
}

// One step for rows [first_row, first_row + kRows). Byte products are widened to 16 bits and summed in pairs
// to 32 (vpmaddwd): exact, where vpmaddubsw would saturate. 16 outputs at a time; even and odd columns of a
// quad apart.
template <int kRows, int kGroups>
[[gnu::always_inline]] inline void affine_rows(const AffineSteps& a, int t, const uint8_t* codes,
                                               const std::byte* scales, float* acc_rows, int first_row) {
  constexpr int kGroupQuads = kQuads / kGroups;
  const int64_t scale_bytes = 2 * kTile * (a.scale_dtype == DType::f32 ? 4 : 2);
  const __m256i even = _mm256_set1_epi16(0xff);
  for (int g = 0; g < kGroups; ++g, codes += kGroupQuads * kQuadBytes, scales += scale_bytes) {
    for (int pair = 0; pair < kVectors; pair += 2) {
      __m256i dot[kRows][2];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
      for (int j = 0; j < kGroupQuads; ++j) {
        const auto* quad_codes = reinterpret_cast<const __m256i*>(codes + j * kQuadBytes + pair * 32);
        const __m256i w0 = _mm256_loadu_si256(quad_codes), w1 = _mm256_loadu_si256(quad_codes + 1);
        const __m256i w0_even = _mm256_and_si256(w0, even), w0_odd = _mm256_srli_epi16(w0, 8);
        const __m256i w1_even = _mm256_and_si256(w1, even), w1_odd = _mm256_srli_epi16(w1, 8);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          int32_t quad;
          memcpy(&quad, a.x[first_row + r][t].q + 4 * (g * kGroupQuads + j), 4);
          const __m256i x = _mm256_set1_epi32(quad);
          const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8),
                        x_odd = _mm256_srai_epi16(x, 8);
          dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(w0_even, x_even));
          dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(w0_odd, x_odd));
          dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(w1_even, x_even));
          dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(w1_odd, x_odd));
        }
      }
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const int o = (pair + v) * kLanes;
        const __m256 scale = load_scales(scales, a.scale_dtype, o);
        const __m256 bias = load_scales(scales + scale_bytes / 2, a.scale_dtype, o);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const ActivationGroup& x = a.x[first_row + r][t];
          const __m256 step = _mm256_set1_ps(x.step);
          const __m256 sum = _mm256_set1_ps(kGroups == 1 ? x.sum : x.half_sum[g]);
          float* out = acc_rows + (first_row + r) * kTile + o;
          __m256 acc = _mm256_loadu_ps(out);
          acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][v]), _mm256_mul_ps(scale, step), acc);
          acc = _mm256_fmadd_ps(bias, sum, acc);
          _mm256_storeu_ps(out, acc);
        }
      }
    }
  }
}

template <int kRows, int kGroups>
[[gnu::always_inline]] inline void affine_tile(const AffineSteps& a, int tile) {
  alignas(32) uint8_t here[kStepCodes];
  for (int t = 0; t < a.n_steps; ++t) {
    const int64_t ahead = a.ahead;
    const std::byte* step =
        a.codes[tile] + t / a.steps_per_block * a.code_block + t % a.steps_per_block * a.code_step;
    const std::byte* scales = a.scales[tile] + t / a.steps_per_block * a.scale_block;
    uint8_t* unpacked = a.unpacked == nullptr ? here : a.unpacked + t * kStepCodes;
    const uint8_t* codes = unpacked;
    if (a.bits == 8) {
      codes = reinterpret_cast<const uint8_t*>(step);
      if (ahead != 0) {
        for (int i = 0; i < kStepCodes; i += 64) ask(step + ahead + i);
      }
    } else {
      unpack_step(step, a.bits, ahead, unpacked);
    }
    if constexpr (kRows > 4) {
      affine_rows<4, kGroups>(a, t, codes, scales, a.acc[tile], 0);
      affine_rows<kRows - 4, kGroups>(a, t, codes, scales, a.acc[tile], 4);
    } else {
      affine_rows<kRows, kGroups>(a, t, codes, scales, a.acc[tile], 0);
    }
  }
}

template <int kRows, int kTiles, int kGroups>
void affine_steps(const AffineSteps& a) {
  for (int i = 0; i < kTiles; ++i) affine_tile<kRows, kGroups>(a, i);
}

// Eight weights of column c (outputs from 8 v), widened.
template <DType kType>
[[gnu::always_inline]] inline __m256 weights(const std::byte* w, int c, int v) {
  if constexpr (kType == DType::f32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(w) + c * kTile + v * kLanes);
  } else if constexpr (kType == DType::f16) {
    return _mm256_cvtph_ps(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + (c * kTile + v * kLanes) * 2)));
  } else {
    const __m256i pair =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + (c / 2 * kTile + v * kLanes) * 4));
    return _mm256_castsi256_ps(c % 2 == 0 ? _mm256_slli_epi32(pair, 16)
                                          : _mm256_and_si256(pair, _mm256_set1_epi32(int32_t(0xffff0000))));
  }
}

template <DType kType>
using Value = std::conditional_t<kType == DType::bf16, uint16_t, float>;

[[gnu::always_inline]] inline __m256 broadcast(const float* x) { return _mm256_set1_ps(*x); }
[[gnu::always_inline]] inline __m256 broadcast(const uint16_t* x) {
  return _mm256_castsi256_ps(_mm256_set1_epi32(int32_t(uint32_t{*x} << 16)));
}

template <int kRows, DType kType>
[[gnu::always_inline]] inline void dense_rows(const DenseSteps<Value<kType>>& a, int tile, int first_row) {
  // bf16: the odd column of a pair comes first (linear.h).
  constexpr int kFlip = kType == DType::bf16 ? 1 : 0;
  for (int first = 0; first < a.n_columns; first += kStep) {
    const int last = first + kStep < a.n_columns ? first + kStep : a.n_columns;
    if (const int64_t ahead = a.ahead; ahead != 0 && first_row == 0) {
      constexpr int kBytes = kStep * kTile * (kType == DType::f32 ? 4 : 2);
      const std::byte* step = a.w[tile] + int64_t{first} / kStep * kBytes;
      for (int i = 0; i < kBytes; i += 64) ask(step + ahead + i);
    }
    for (int pair = 0; pair < kVectors; pair += 2) {
      __m256 part[kRows][2];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) part[r][0] = part[r][1] = _mm256_setzero_ps();
      const auto column = [&](int c) __attribute__((always_inline)) {
        const __m256 w0 = weights<kType>(a.w[tile], c, pair), w1 = weights<kType>(a.w[tile], c, pair + 1);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256 x = broadcast(&a.x[first_row + r][c]);
          part[r][0] = _mm256_fmadd_ps(w0, x, part[r][0]);
          part[r][1] = _mm256_fmadd_ps(w1, x, part[r][1]);
        }
      };
      int c = first;
      for (; c + 2 <= last; c += 2) {
        column(c ^ kFlip);
        column((c + 1) ^ kFlip);
      }
      if (c < last) column(c);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          float* acc = a.acc[tile] + (first_row + r) * kTile + (pair + v) * kLanes;
          _mm256_storeu_ps(acc, _mm256_add_ps(_mm256_loadu_ps(acc), part[r][v]));
        }
      }
    }
  }
}

template <int kRows, int kTiles, DType kType>
void dense_steps(const DenseSteps<Value<kType>>& a) {
  for (int i = 0; i < kTiles; ++i) {
    if constexpr (kRows > 4) {
      dense_rows<4, kType>(a, i, 0);
      dense_rows<kRows - 4, kType>(a, i, 4);
    } else {
      dense_rows<kRows, kType>(a, i, 0);
    }
  }
}

void add(float* a, const float* b, int n) {
  for (int i = 0; i < n; i += kLanes)
    _mm256_storeu_ps(a + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
}

uint32_t largest_lane(__m256i v) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return uint32_t(_mm_cvtsi128_si32(m));
}

void quantize_row(const float* x, int k, ActivationGroup* out) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (int first = 0; first < k; first += kActivationGroup, ++out) {
    float padded[kActivationGroup];
    const float* group = x + first;
    if (k - first < kActivationGroup) {
      memset(padded, 0, sizeof padded);
      memcpy(padded, group, size_t(k - first) * 4);
      group = padded;
    }
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < kActivationGroup; i += kLanes) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group + i));
      largest = _mm256_max_epu32(largest, _mm256_and_si256(bits, magnitude));
    }
    const uint32_t top = largest_lane(largest);
    float a;
    memcpy(&a, &top, 4);
    const __m256 inverse = _mm256_set1_ps(a > 0 ? 127.0f / a : 0.0f);
    int32_t q[kActivationGroup];
    int32_t sum[2] = {};
    for (int i = 0; i < kActivationGroup; i += kLanes) {
      const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(group + i), inverse);
      const __m256 size = _mm256_and_ps(scaled, _mm256_castsi256_ps(magnitude));
      const __m256i sane = _mm256_castps_si256(_mm256_cmp_ps(size, _mm256_set1_ps(127.5f), _CMP_LE_OQ));
      __m256i rounded =
          _mm256_cvtps_epi32(_mm256_round_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
      rounded = _mm256_and_si256(rounded, sane);
      rounded = _mm256_min_epi32(rounded, _mm256_set1_epi32(127));
      rounded = _mm256_max_epi32(rounded, _mm256_set1_epi32(-127));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i), rounded);
    }
    for (int i = 0; i < kActivationGroup; ++i) {
      out->q[i] = int8_t(q[i]);
      sum[i / 32] += q[i];
    }
    out->step = a / 127.0f;
    out->sum = out->step * float(sum[0] + sum[1]);
    out->half_sum[0] = out->step * float(sum[0]);
    out->half_sum[1] = out->step * float(sum[1]);
  }
}

// As in linear_avx512.cc.
void round_row(const float* x, int k, uint16_t* out) {
  for (int c = 0; c < k; c += kLanes) {
    const int n = k - c < kLanes ? k - c : kLanes;
    alignas(32) float in[kLanes] = {};
    memcpy(in, x + c, size_t(n) * sizeof(float));
    const __m256 value = _mm256_load_ps(in);
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_srli_epi32(_mm256_blendv_epi8(nearest, quiet, nan), 16);
    const __m128i half =
        _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
    alignas(16) uint16_t rest[kLanes];
    _mm_store_si128(reinterpret_cast<__m128i*>(rest), half);
    memcpy(out + c, rest, size_t(n) * sizeof(uint16_t));
  }
}

}  // namespace avx2

const LinearKernels kAvx2Linear = {
    .affine = TD_ROWS(avx2::affine_steps, 1),
    .affine_half = TD_ROWS(avx2::affine_steps, 2),
    .dense_bf16 = TD_ROWS(avx2::dense_steps, DType::bf16),
    .dense_f16 = TD_ROWS(avx2::dense_steps, DType::f16),
    .dense_f32 = TD_ROWS(avx2::dense_steps, DType::f32),
    .unpack_step = avx2::unpack_step,
    .add = avx2::add,
    .quantize_row = avx2::quantize_row,
    .round_row = avx2::round_row,
};

}  // namespace tandem::cpu
