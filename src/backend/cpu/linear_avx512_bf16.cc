// Dense bf16 products with AVX512_BF16: one instruction for two columns of 16 outputs. It adds the odd
// column's product, then the even one's, each rounded once: what Bf16Columns of linear_avx512.cc does with
// fma (but subnormal numbers are taken and given as zero).
#include "backend/cpu/linear_avx512_dense.h"

namespace tandem::cpu {
namespace avx512 {
namespace {

struct Bf16Dot {
  using Value = uint16_t;
  template <int kRows, int kColumns>
  [[gnu::always_inline]] static void add(const std::byte*& w, const uint16_t* const* x, int c,
                                         __m512 (&part)[kRows][kVectors]) {
    __m512i pair[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) pair[v] = _mm512_loadu_si512(w + v * 64);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i b = activation_pair<kColumns>(x[r] + c);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        part[r][v] =
            _mm512_dpbf16_ps(part[r][v], reinterpret_cast<__m512bh>(pair[v]), reinterpret_cast<__m512bh>(b));
      }
    }
    w += kTile * 4;
  }
};

}  // namespace
}  // namespace avx512

const ByRows<DenseSteps<uint16_t>> kAvx512Bf16Dense = TD_ROWS(avx512::dense_steps, avx512::Bf16Dot);

}  // namespace tandem::cpu
