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

// acc[r][o] += `n_steps` affine steps. codes: u8 [step][16][32][4], code_stride bytes from step to step.
// scales: fp32 [step][group of the step][scale, bias][32]. x[r]: the rows' activation groups, first step
// first.
struct AffineSteps {
  const uint8_t* codes;
  int64_t code_stride;
  const float* scales;
  int n_steps;
  const ActivationGroup* x[kMaxBlockRows];
  float* acc;  // [rows][32]
};

// acc[r][o] += `n_columns` dense columns in steps of 64 (the last one may be shorter).
struct DenseSteps {
  const std::byte* w;
  int n_columns;
  const float* x[kMaxBlockRows];
  float* acc;  // [rows][32]
};

struct LinearKernels {
  // By rows - 1.
  void (*affine[kMaxBlockRows])(const AffineSteps&);       // one weight group per step
  void (*affine_half[kMaxBlockRows])(const AffineSteps&);  // two: groups of 32
  void (*dense_bf16[kMaxBlockRows])(const DenseSteps&);
  void (*dense_f16[kMaxBlockRows])(const DenseSteps&);
  void (*dense_f32[kMaxBlockRows])(const DenseSteps&);

  // Bit planes of one step -> u8 codes [16][32][4]. bits < 8.
  void (*unpack_step)(const std::byte* packed, int bits, uint8_t* codes);
  // `n` values (a multiple of 32) widened to fp32.
  void (*widen)(const std::byte* values, DType dtype, int n, float* out);
  void (*quantize_row)(const float* x, int k, ActivationGroup* out);
};

const LinearKernels& linear_kernels(Isa isa);

extern const LinearKernels kPortableLinear;
#if defined(__x86_64__)
extern const LinearKernels kAvx2Linear;
extern const LinearKernels kAvx512Linear;
#endif

}  // namespace tandem::cpu
