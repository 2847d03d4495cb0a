// The table of kernels of the instruction set that TD_ISA names.
#pragma once

#include "backend/cpu/attention_impl.h"
#include "backend/cpu/delta_chunk_impl.h"
#include "backend/cpu/delta_closed_impl.h"
#include "backend/cpu/delta_impl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/rowwise_impl.h"

namespace tandem::cpu::TD_ISA {

const Kernels& table();

const Kernels& table() {
  static constexpr Kernels kTable = {
      .isa = Isa::TD_ISA,
      .rms_norm = rms_norm,
      .silu_mul = silu_mul,
      .gated_norm = gated_norm,
      .block_conv = block_conv,
      .rotate = rotate,
      .store_kv = store_kv,
      .attention = attention,
      .attention_merge = attention_merge,
      .conv = conv,
      .delta_gates = delta_gates,
      .delta_step = delta_step,
      .delta_chunks = delta_chunks,
      .delta_closed = delta_closed,
      .route_weights = route_weights,
      .mix_experts = mix_experts,
      .sigmoid = sigmoid_of,
      .highest = highest,
  };
  return kTable;
}

}  // namespace tandem::cpu::TD_ISA
