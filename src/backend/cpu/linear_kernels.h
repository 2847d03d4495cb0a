// The inner loops of a matrix product, one table per instruction set. Internal to backend/cpu.
// Every table computes the same bits: the order of each sum is part of a function's meaning (linear.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/activations.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/linear_layout.h"

namespace tandem::cpu {

inline constexpr int kMaxBlockRows = 8;  // rows that one kernel call takes
inline constexpr int kMaxPairRows = 4;  // up to here a call may take two tiles: two streams of memory at once
inline constexpr int kMaxTiles = 2;

// acc[i][r][o] += affine steps of tile i.
struct AffineSteps {
  // Step t lies at codes + (t / steps_per_block) * code_block + (t % steps_per_block) * code_step: u8 codes
  // [16 quads][32][4], or bit planes if bits < 8. Its scales lie at scales + (t / steps_per_block) *
  // scale_block.
  const std::byte* codes[kMaxTiles];
  const std::byte* scales[kMaxTiles];
  int64_t code_step, code_block, scale_block;
  int steps_per_block;
  int bits;
  uint8_t* unpacked;  // where bit planes go, 2,048 bytes a step, for calls after this one; null: nowhere
                      // (bits < 8)
  DType scale_dtype;
  int n_steps;
  const ActivationGroup* x[kMaxBlockRows];  // of the first step
  float* acc[kMaxTiles];                    // [rows][32]
  int64_t ahead;  // ask for memory this many bytes ahead of what is read (0: do not); never changes a result
};

// acc[i][r][o] += `n_columns` dense columns in steps of 64 (the last one may be shorter). Value: float, or
// uint16_t for activations rounded to bf16.
template <class Value>
struct DenseSteps {
  const std::byte* w[kMaxTiles];
  int n_columns;
  const Value* x[kMaxBlockRows];
  float* acc[kMaxTiles];  // [rows][32]
  int64_t ahead;          // as above
};

// Kernels for one tile by rows - 1, then for two.
template <class Steps>
struct ByRows {
  void (*one[kMaxBlockRows])(const Steps&);
  void (*two[kMaxPairRows])(const Steps&);
};

struct LinearKernels {
  ByRows<AffineSteps> affine;        // one weight group per step
  ByRows<AffineSteps> affine_half;   // two: groups of 32
  ByRows<AffineSteps> affine4 = {};  // one, 4-bit codes unpacked in registers, `unpacked` null; may be absent
  ByRows<DenseSteps<uint16_t>> dense_bf16;
  ByRows<DenseSteps<float>> dense_f16, dense_f32;

  // Bit planes of one step -> u8 codes [16][32][4]. bits < 8.
  void (*unpack_step)(const std::byte* packed, int bits, int64_t ahead, uint8_t* codes);
  // a[i] += b[i]; n a multiple of 32.
  void (*add)(float* a, const float* b, int n);
  void (*quantize_row)(const float* x, int k, ActivationGroup* out);
  void (*round_row)(const float* x, int k, uint16_t* out);
};

// The ByRows of a kernel template f<rows, tiles, arg>.
#define TD_ROWS(f, arg)                                       \
  {                                                           \
    {f<1, 1, arg>, f<2, 1, arg>, f<3, 1, arg>, f<4, 1, arg>,  \
     f<5, 1, arg>, f<6, 1, arg>, f<7, 1, arg>, f<8, 1, arg>}, \
    {                                                         \
      f<1, 2, arg>, f<2, 2, arg>, f<3, 2, arg>, f<4, 2, arg>  \
    }                                                         \
  }

const LinearKernels& linear_kernels(Isa isa);

extern const LinearKernels kPortableLinear;
#if defined(__x86_64__)
extern const LinearKernels kAvx2Linear;
extern const LinearKernels kAvx512Linear;
extern const ByRows<DenseSteps<uint16_t>>
    kAvx512Bf16Dense;  // in place of the table's where the CPU has AVX512_BF16
#endif

}  // namespace tandem::cpu
