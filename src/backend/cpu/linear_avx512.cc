// Inner loops with AVX-512 VNNI. The only file of the linear kernels compiled with these flags: nothing here
// may be inline in a shared header, or the linker could keep this copy for machines without AVX-512.
#include <immintrin.h>

#include <cstring>

#include "backend/cpu/linear_avx512_dense.h"
#include "backend/cpu/linear_kernels.h"

namespace tandem::cpu {
namespace avx512 {

// 32 scales or biases, widened.
[[gnu::always_inline]] inline void load_scales(const std::byte* p, DType dtype, __m512 (&out)[kVectors]) {
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    if (dtype == DType::f32) {
      out[v] = _mm512_loadu_ps(p + v * 64);
      continue;
    }
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + v * 32));
    out[v] = dtype == DType::f16 ? _mm512_cvtph_ps(half)
                                 : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
}

void unpack_step(const std::byte* packed, int bits, int64_t ahead, uint8_t* codes);

// Work      kTiles x kRows x 32 sums per step in registers: 2 weight vectors per tile and one broadcast per
// row feed
//           2 kTiles kRows byte dot products for each quad of columns; then one conversion, one product and
//           two fma per 16 outputs and row
// Bound     few rows: memory (2,176 bytes per 8-bit step and tile); many: the dot products, 32 kRows per step
// at two a
//           cycle
//
// kForm: 1 or 2 weight groups per step; 4: one group of 4-bit codes, which are taken apart in registers.
template <int kRows, int kTiles, int kForm>
void affine_steps(const AffineSteps& a) {
  constexpr bool kNibbles = kForm == 4;
  constexpr int kGroups = kForm == 2 ? 2 : 1;
  constexpr int kGroupQuads = kQuads / kGroups;
  const ActivationGroup* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = a.x[r];
  alignas(64) uint8_t here[kTiles][kStepCodes];
  const int64_t scale_bytes = 2 * kTile * (a.scale_dtype == DType::f32 ? 4 : 2);
  int64_t code_offset = 0, scale_offset = 0;
  for (int t = 0, in_block = 0; t < a.n_steps; ++t) {
    const int64_t ahead = a.ahead;
    const std::byte* step[kTiles];
    const uint8_t* codes[kTiles];
#pragma GCC unroll 2
    for (int i = 0; i < kTiles; ++i) {
      step[i] = a.codes[i] + code_offset + in_block * a.code_step;
      codes[i] = reinterpret_cast<const uint8_t*>(step[i]);
      if (!kNibbles && a.bits != 8) {
        uint8_t* unpacked = a.unpacked == nullptr ? here[i] : a.unpacked + t * kStepCodes;
        unpack_step(step[i], a.bits, ahead, unpacked);
        codes[i] = unpacked;
      }
    }
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
      __m512i dot[kTiles][kRows][kVectors];
#pragma GCC unroll 2
      for (int i = 0; i < kTiles; ++i) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) dot[i][r][v] = _mm512_setzero_si512();
        }
      }
#pragma GCC unroll 16
      for (int j = g * kGroupQuads; j < (g + 1) * kGroupQuads; ++j) {
        __m512i w[kTiles][kVectors];
#pragma GCC unroll 2
        for (int i = 0; i < kTiles; ++i) {
          if constexpr (kNibbles) {  // an even quad lies in the low halves of a row, the next one in the high
                                     // ones
            const __m512i mask = _mm512_set1_epi8(0x0f);
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) {
              const uint8_t* at = codes[i] + j / 2 * kQuadBytes + v * 64;
              const __m512i both = _mm512_loadu_si512(at);
              w[i][v] = _mm512_and_si512(j % 2 == 0 ? both : _mm512_srli_epi32(both, 4), mask);
              if (ahead != 0 && j % 2 == 0) ask(reinterpret_cast<const std::byte*>(at) + ahead);
            }
          } else {
            w[i][0] = _mm512_loadu_si512(codes[i] + j * kQuadBytes);
            w[i][1] = _mm512_loadu_si512(codes[i] + j * kQuadBytes + 64);
            if (ahead != 0 && a.bits == 8) {
              ask(step[i] + ahead + j * kQuadBytes);
              ask(step[i] + ahead + j * kQuadBytes + 64);
            }
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          int32_t quad;
          memcpy(&quad, x[r][t].q + 4 * j, 4);
          const __m512i b = _mm512_set1_epi32(quad);
#pragma GCC unroll 2
          for (int i = 0; i < kTiles; ++i) {
            dot[i][r][0] = _mm512_dpbusd_epi32(dot[i][r][0], w[i][0], b);
            dot[i][r][1] = _mm512_dpbusd_epi32(dot[i][r][1], w[i][1], b);
          }
        }
      }
#pragma GCC unroll 2
      for (int i = 0; i < kTiles; ++i) {
        __m512 scale[kVectors], bias[kVectors];
        const std::byte* scales = a.scales[i] + scale_offset + g * scale_bytes;
        load_scales(scales, a.scale_dtype, scale);
        load_scales(scales + scale_bytes / 2, a.scale_dtype, bias);
        if (ahead != 0) {
          ask(scales + ahead);
          ask(scales + ahead + 64);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m512 x_step = _mm512_set1_ps(x[r][t].step);
          const __m512 x_sum = _mm512_set1_ps(kGroups == 1 ? x[r][t].sum : x[r][t].half_sum[g]);
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            float* out = a.acc[i] + r * kTile + v * kLanes;
            __m512 acc = _mm512_loadu_ps(out);
            acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[i][r][v]), _mm512_mul_ps(scale[v], x_step), acc);
            acc = _mm512_fmadd_ps(bias[v], x_sum, acc);
            _mm512_storeu_ps(out, acc);
          }
        }
      }
    }
    if (++in_block == a.steps_per_block) {
      in_block = 0;
      code_offset += a.code_block;
      scale_offset += a.scale_block;
    }
  }
}

// Sums of one step, in registers: part[r] += w x over two columns, or one.
struct Bf16Columns {
  using Value = uint16_t;
  // The odd column of a pair comes first, as in the instruction that does both (linear_avx512_bf16.cc).
  template <int kRows, int kColumns>
  [[gnu::always_inline]] static void add(const std::byte*& w, const uint16_t* const* x, int c,
                                         __m512 (&part)[kRows][kVectors]) {
    const __m512i high = _mm512_set1_epi32(int32_t(0xffff0000));
    __m512i pair[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) pair[v] = _mm512_loadu_si512(w + v * 64);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i b = activation_pair<kColumns>(x[r] + c);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        __m512& sum = part[r][v];
        if (kColumns == 2) {
          sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(pair[v], high)),
                                _mm512_castsi512_ps(_mm512_and_si512(b, high)), sum);
        }
        sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pair[v], 16)),
                              _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), sum);
      }
    }
    w += kTile * 4;
  }
};

template <DType kType>
struct PlainColumns {
  using Value = float;
  template <int kRows, int kColumns>
  [[gnu::always_inline]] static void add(const std::byte*& w, const float* const* x, int c,
                                         __m512 (&part)[kRows][kVectors]) {
#pragma GCC unroll 2
    for (int h = 0; h < kColumns; ++h) {
      __m512 wide[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kType == DType::f32) {
          wide[v] = _mm512_loadu_ps(w + v * 64);
        } else {
          wide[v] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + v * 32)));
        }
      }
      w += kType == DType::f32 ? kTile * 4 : kTile * 2;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512 b = _mm512_set1_ps(x[r][c + h]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) part[r][v] = _mm512_fmadd_ps(wide[v], b, part[r][v]);
      }
    }
  }
};

template <int kWidth>
const std::byte* unpack_plane(const std::byte* in, int shift, int64_t ahead, uint8_t* codes) {
  constexpr int kPlaneQuads = 8 / kWidth;
  const __m512i mask = _mm512_set1_epi8((1 << kWidth) - 1);
  for (int p = 0; p < kQuads / kPlaneQuads; ++p, in += kQuadBytes) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const __m512i packed = _mm512_loadu_si512(in + v * 64);
      if (ahead != 0) ask(in + v * 64 + ahead);
#pragma GCC unroll 8
      for (int i = 0; i < kPlaneQuads; ++i) {
        uint8_t* out = codes + (p * kPlaneQuads + i) * kQuadBytes + v * 64;
        __m512i code = _mm512_and_si512(_mm512_srli_epi32(packed, unsigned(i * kWidth)), mask);
        if (shift != 0)
          code = _mm512_or_si512(_mm512_slli_epi32(code, unsigned(shift)), _mm512_loadu_si512(out));
        _mm512_storeu_si512(out, code);
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

void add(float* a, const float* b, int n) {
  for (int i = 0; i < n; i += kLanes)
    _mm512_storeu_ps(a + i, _mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i)));
}

void quantize_row(const float* x, int k, ActivationGroup* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int first = 0; first < k; first += kActivationGroup, ++out) {
    const int n = k - first < kActivationGroup ? k - first : kActivationGroup;
    const uint64_t present = n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    __m512 value[4];
    __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      value[i] = _mm512_maskz_loadu_ps(__mmask16(present >> (16 * i)), x + first + 16 * i);
      largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(value[i]), magnitude));
    }
    const uint32_t top = _mm512_reduce_max_epu32(largest);
    float a;
    memcpy(&a, &top, 4);
    const float inverse = a > 0 ? 127.0f / a : 0.0f;
    __m512i q[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512 scaled = _mm512_mul_ps(value[i], _mm512_set1_ps(inverse));
      const __mmask16 sane = _mm512_cmp_ps_mask(_mm512_abs_ps(scaled), _mm512_set1_ps(127.5f), _CMP_LE_OQ);
      q[i] = _mm512_maskz_cvt_roundps_epi32(sane, scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      q[i] = _mm512_min_epi32(q[i], _mm512_set1_epi32(127));
      q[i] = _mm512_max_epi32(q[i], _mm512_set1_epi32(-127));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q + 16 * i), _mm512_cvtepi32_epi8(q[i]));
    }
    const int32_t low = _mm512_reduce_add_epi32(_mm512_add_epi32(q[0], q[1]));
    const int32_t high = _mm512_reduce_add_epi32(_mm512_add_epi32(q[2], q[3]));
    out->step = a / 127.0f;
    out->sum = out->step * float(low + high);
    out->half_sum[0] = out->step * float(low);
    out->half_sum[1] = out->step * float(high);
  }
}

// Round to nearest even by integers; a NaN keeps its upper half and becomes quiet.
void round_row(const float* x, int k, uint16_t* out) {
  for (int c = 0; c < k; c += kLanes) {
    const __mmask16 present = k - c < kLanes ? __mmask16((1u << (k - c)) - 1) : __mmask16(0xffff);
    const __m512 value = _mm512_maskz_loadu_ps(present, x + c);
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_srli_epi32(_mm512_mask_mov_epi32(nearest, nan, quiet), 16);
    _mm512_mask_cvtepi32_storeu_epi16(out + c, present, rounded);
  }
}

}  // namespace avx512

const LinearKernels kAvx512Linear = {
    .affine = TD_ROWS(avx512::affine_steps, 1),
    .affine_half = TD_ROWS(avx512::affine_steps, 2),
    .affine4 = TD_ROWS(avx512::affine_steps, 4),
    .dense_bf16 = TD_ROWS(avx512::dense_steps, avx512::Bf16Columns),
    .dense_f16 = TD_ROWS(avx512::dense_steps, avx512::PlainColumns<DType::f16>),
    .dense_f32 = TD_ROWS(avx512::dense_steps, avx512::PlainColumns<DType::f32>),
    .unpack_step = avx512::unpack_step,
    .add = avx512::add,
    .quantize_row = avx512::quantize_row,
    .round_row = avx512::round_row,
};

}  // namespace tandem::cpu
