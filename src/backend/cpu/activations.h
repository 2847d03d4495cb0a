// Activations in the form that matrix products read: signed bytes for quantised weights, bf16 for bf16
// weights.
//
// Signed bytes: each row is cut into groups of 64 columns (the last one padded with zeros), and each group is
// quantised from its own values alone:  a = max |x|;  step = a / 127;  q = round to nearest even (x * (127 /
// a)), all in fp32; a = 0 gives zeros. A row's record depends on that row only: never on its neighbours or
// its place (row independence). NaN and infinity end up in `step` and so in every product of the row: they
// are not hidden.
//
// bf16: each value rounded to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/isa.h"
#include "base/thread_team.h"

namespace tandem::cpu {

inline constexpr int kActivationGroup = 64;

// One group of one row. The sums multiply the weights' biases, so they are taken over the quantised values.
struct ActivationGroup {
  int8_t q[kActivationGroup];
  float step;
  float sum;          // step * sum of all q
  float half_sum[2];  // step * sum of q[0..31], step * sum of q[32..63]: for weight groups of 32
};
static_assert(sizeof(ActivationGroup) == 80);

inline int activation_groups(int k) { return (k + kActivationGroup - 1) / kActivationGroup; }

// Quantised rows [rows, activation_groups(k)], row-major and dense. Borrows.
struct QuantizedRows {
  ActivationGroup* groups = nullptr;
  int rows = 0;
  int k = 0;

  ActivationGroup* row(int r) const { return groups + int64_t{r} * activation_groups(k); }
};

inline size_t quantized_bytes(int rows, int k) {
  return size_t(rows) * size_t(activation_groups(k)) * sizeof(ActivationGroup);
}
// Views `memory` (at least quantized_bytes, 16-byte aligned) as quantised rows.
QuantizedRows quantized_rows_in(std::span<std::byte> memory, int rows, int k);

// x [out.rows, out.k] fp32, rows x_stride elements apart -> out.
void quantize_rows(ThreadTeam& team, Isa isa, const float* x, int64_t x_stride, const QuantizedRows& out);
// One row on the calling thread (for callers that fuse it into their own loop).
void quantize_row(Isa isa, const float* x, int k, ActivationGroup* out);

// Rows [rows, k] rounded to bf16, `stride` values apart. Borrows.
struct RoundedRows {
  uint16_t* values = nullptr;
  int rows = 0;
  int k = 0;

  int64_t stride() const { return (k + 1) / 2 * 2; }  // whole pairs
  uint16_t* row(int r) const { return values + r * stride(); }
};

inline size_t rounded_bytes(int rows, int k) { return size_t(rows) * size_t((k + 1) / 2) * 4; }
// Views `memory` (at least rounded_bytes, 4-byte aligned) as rounded rows.
RoundedRows rounded_rows_in(std::span<std::byte> memory, int rows, int k);

// x [out.rows, out.k] fp32, rows x_stride elements apart -> out.
void round_rows(ThreadTeam& team, Isa isa, const float* x, int64_t x_stride, const RoundedRows& out);

}  // namespace tandem::cpu
