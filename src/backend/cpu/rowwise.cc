// Operations over rows that look at nothing else or at the rows before them, and products with packed
// weights.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "base/check.h"

namespace tandem::cpu {

// An id of -1 is in no part.
void CpuBackend::do_embed_chosen(const Weight& table, View ids, MutView y) {
  do_embed(table, {static_cast<const int32_t*>(ids.data), size_t(ids.rows)}, y);
}

void CpuBackend::do_embed(const Weight& table, std::span<const int32_t> ids, MutView y) {
  const CpuWeight& w = ours(table);
  for_rows(int(ids.size()), 500, [&](int r) {
    const int id = ids[size_t(r)];
    for (const CpuWeight::Part& part : w.parts()) {
      const int i = id - part.first;
      if (i >= 0 && i < part.packed.shape.n) unpack_row(part.packed, i, row(y, r));
    }
  });
}

void CpuBackend::do_copy_rows(View x, std::span<const int32_t> rows, MutView y) {
  for_rows(y.rows, 0.05 * y.cols, [&](int r) {
    memcpy(row(y, r), row(x, rows.empty() ? r : rows[size_t(r)]), size_t(y.cols) * sizeof(float));
  });
}

LinearInput CpuBackend::input_of(View x, const CpuWeight& w, ScratchBuffer& memory) {
  LinearInput in{.values = row(x, 0), .stride = x.stride, .quantized = {}, .rounded = {}};
  const size_t bytes = w.input_bytes(x.rows);
  std::span<std::byte> free{memory.need(bytes), bytes};
  if (w.any_affine()) {
    in.quantized = quantized_rows_in(free, x.rows, w.k());
    quantize_rows(team_, isa_, in.values, in.stride, in.quantized);
    free = free.subspan(quantized_bytes(x.rows, w.k()));
  }
  if (w.any_bf16()) {
    in.rounded = rounded_rows_in(free, x.rows, w.k());
    round_rows(team_, isa_, in.values, in.stride, in.rounded);
  }
  return in;
}

void CpuBackend::product(View x, const CpuWeight& w, MutView y, const float* residual,
                         int64_t residual_stride) {
  const LinearInput in = input_of(x, w, input_);
  for (const CpuWeight::Part& part : w.parts()) {
    cpu::linear(team_, isa_, part.packed, in, x.rows,
                {.y = row(y, 0) + part.first,
                 .stride = y.stride,
                 .bias = w.bias() != nullptr ? w.bias() + part.first : nullptr,
                 .residual = residual != nullptr ? residual + part.first : nullptr,
                 .residual_stride = residual_stride});
  }
}

void CpuBackend::do_linear(Path, View x, const Weight& w, MutView y) { product(x, ours(w), y, nullptr, 0); }

void CpuBackend::do_linear_add(Path, View x, const Weight& w, MutView residual) {
  product(x, ours(w), residual, row(residual, 0), residual.stride);
}

void CpuBackend::do_rms_norm(View x, View gain, float eps, MutView y) {
  for_rows(x.rows, 0.1 * x.cols,
           [&](int r) { kernels_.rms_norm(row(x, r), row(gain, 0), eps, x.cols, row(y, r)); });
}

void CpuBackend::do_silu_mul(View gate_up, MutView y) {
  for_rows(y.rows, 0.5 * y.cols, [&](int r) {
    const float* gate = row(gate_up, r);
    kernels_.silu_mul(gate, gate + y.cols, y.cols, row(y, r));
  });
}

void CpuBackend::do_gated_norm(View o, View z, View gain, float eps, MutView y) {
  const int d_v = gain.cols;
  for_rows(o.rows, 0.6 * o.cols, [&](int r) {
    for (int c = 0; c < o.cols; c += d_v) {
      kernels_.gated_norm(row(o, r) + c, row(z, r) + c, row(gain, 0), eps, d_v, row(y, r) + c);
    }
  });
}

void CpuBackend::do_block_conv(const Step& step, const BlockConv& a) {
  const int taps = a.base.rows, groups = a.dynamic.cols / taps;
  for (const SeqStep& seq : step.seqs) {
    for_rows(seq.n_rows, 0.2 * taps * a.x.cols, [&](int i) {
      const int r = seq.first_row + i;
      kernels_.block_conv({.n = a.x.cols,
                           .group = a.x.cols / groups,
                           .n_taps = std::min(taps, i + 1),
                           .x = row(a.x, r),
                           .x_stride = a.x.stride,
                           .base = row(a.base, 0),
                           .base_stride = a.base.stride,
                           .dynamic = row(a.dynamic, r),
                           .residual = a.residual.empty() ? nullptr : row(a.residual, r),
                           .y = row(a.y, r)});
    });
  }
}

void CpuBackend::do_choose_greedy(View logits, int n, View names, MutView ids) {
  for_rows(logits.rows, 0.2 * n, [&](int r) {
    int id = kernels_.highest(row(logits, r), n);
    if (id >= 0 && !names.empty()) id = static_cast<const int32_t*>(names.data)[id];
    static_cast<int32_t*>(ids.data)[r * ids.stride] = id;
  });
}

void CpuBackend::do_choose_best(View logits, int n, MutView values, MutView ids) {
  const int k = ids.cols;
  for_rows(logits.rows, 0.7 * n, [&](int r) {
    const float* l = row(logits, r);
    float* value = row(values, r);
    int32_t* id = static_cast<int32_t*>(ids.data) + r * ids.stride;
    id[0] = kernels_.highest(l, n);
    if (id[0] < 0) return;
    int held = 0;
    float least = -INFINITY;  // of those held, once they are k
    for (int i = 0; i < n; ++i) {
      if (!(l[i] > least)) continue;
      int at = held < k ? held++ : k - 1;
      for (; at > 0 && l[i] > value[at - 1]; --at) {
        value[at] = value[at - 1];
        id[at] = id[at - 1];
      }
      value[at] = l[i];
      id[at] = i;
      if (held == k) least = value[k - 1];
    }
  });
}

void CpuBackend::do_rope_angles(const Step& step, View frequencies, float m, MutView angles) {
  const int n = frequencies.cols;
  const float* f = row(frequencies, 0);
  for (const SeqStep& seq : step.seqs) {
    for_rows(seq.n_rows, 50.0 * n, [&](int t) {
      float* out = row(angles, seq.first_row + t);
      const float position = float(seq.start + seq.depth(t));
      for (int i = 0; i < n; ++i) {
        const float angle = position * f[i];  // rounded to fp32, as the models were trained
        out[i] = float(std::cos(double(angle)) * m);
        out[n + i] = float(std::sin(double(angle)) * m);
      }
    });
  }
}

}  // namespace tandem::cpu
