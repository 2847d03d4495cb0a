#include "backend/cpu/activations.h"

#include <algorithm>
#include <cstdint>

#include "backend/cpu/linear_kernels.h"
#include "base/check.h"

namespace tandem::cpu {

QuantizedRows quantized_rows_in(std::span<std::byte> memory, int rows, int k) {
  TD_CHECK(memory.size() >= quantized_bytes(rows, k), "%zu bytes for %d quantised rows of %d columns\n",
           memory.size(), rows, k);
  TD_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % 16 == 0, "quantised rows at %p\n",
           static_cast<void*>(memory.data()));
  return {reinterpret_cast<ActivationGroup*>(memory.data()), rows, k};
}

void quantize_rows(ThreadTeam& team, Isa isa, const float* x, int64_t x_stride, const QuantizedRows& out) {
  const auto quantize = linear_kernels(isa).quantize_row;
  // A loop over threads costs about as much as quantising 8,000 values.
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max(1, out.k));
  team.parallel_for(out.rows, grain, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; ++r) quantize(x + r * x_stride, out.k, out.row(int(r)));
  });
}

RoundedRows rounded_rows_in(std::span<std::byte> memory, int rows, int k) {
  TD_CHECK(memory.size() >= rounded_bytes(rows, k), "%zu bytes for %d rounded rows of %d columns\n",
           memory.size(), rows, k);
  TD_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % 4 == 0, "rounded rows at %p\n",
           static_cast<void*>(memory.data()));
  return {reinterpret_cast<uint16_t*>(memory.data()), rows, k};
}

void round_rows(ThreadTeam& team, Isa isa, const float* x, int64_t x_stride, const RoundedRows& out) {
  const auto round = linear_kernels(isa).round_row;
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max(1, out.k));
  team.parallel_for(out.rows, grain, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; ++r) round(x + r * x_stride, out.k, out.row(int(r)));
  });
}

void quantize_row(Isa isa, const float* x, int k, ActivationGroup* out) {
  linear_kernels(isa).quantize_row(x, k, out);
}

}  // namespace tandem::cpu
