// Sparse mixture of experts: routing, grouping of rows by expert, and the weighted sum over slices.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu.h"
#include "base/check.h"

namespace tandem::cpu {
namespace {

constexpr int kMaxTopK = 63;
constexpr size_t kDownBytes = size_t{32} << 20;  // of down products kept apart at a time

int32_t* id_row(View ids, int r) {
  return static_cast<int32_t*>(const_cast<void*>(ids.data)) + r * ids.stride;
}

// The n ids of the highest logits, ties to the lower id, ascending. NaN counts as lowest.
void choose(const float* logits, int n_all, int n, int32_t* ids) {
  const auto value = [&](int e) { return std::isnan(logits[e]) ? -INFINITY : logits[e]; };
  int held = 0;
  for (int e = 0; e < n_all; ++e) {  // ids[0, held): highest first
    const float l = value(e);
    if (held == n && !(l > value(ids[n - 1]))) continue;
    int at = held < n ? held++ : n - 1;
    for (; at > 0 && l > value(ids[at - 1]); --at) ids[at] = ids[at - 1];
    ids[at] = e;
  }
  std::sort(ids, ids + n);
}

}  // namespace

int moe_block_rows(const Weight& down, int top_k) {
  const size_t row_bytes = size_t(top_k + 1) * size_t(down.n_slices()) * size_t(down.n()) * sizeof(float);
  return std::max(kMaxDecodeRows, int(kDownBytes / row_bytes));
}

ExpertMemory::ExpertMemory(int rows, int top_k, int inner_width, int shared_inner,
                           const Weight& down_weight) {
  const size_t n_rows = size_t(rows), entries = n_rows * size_t(top_k),
               n_experts = size_t(down_weight.n_experts());
  const size_t widest = std::max(entries * size_t(inner_width), n_rows * size_t(shared_inner));
  lists = (2 * entries + n_experts + 1) * sizeof(int32_t) + n_experts * sizeof(ExpertRows);
  gate_up = 2 * widest * sizeof(float);
  inner = widest * sizeof(float);
  down = ((entries + n_rows) * size_t(down_weight.n()) * size_t(down_weight.n_slices()) + n_rows) *
         sizeof(float);
  const auto bytes = [](int n, int k) { return quantized_bytes(n, k) + rounded_bytes(n, k); };
  input = std::max(bytes(int(entries), inner_width), bytes(rows, shared_inner));
}

void ExpertMemory::grow_to(const ExpertMemory& other) {
  lists = std::max(lists, other.lists);
  gate_up = std::max(gate_up, other.gate_up);
  inner = std::max(inner, other.inner);
  down = std::max(down, other.down);
  input = std::max(input, other.input);
}

Result<ExpertMemory> expert_memory(const Reserve& largest) {
  if (largest.moe_top_k > kMaxTopK) {
    return Error{"the cpu backend adds at most " + std::to_string(kMaxTopK) +
                 " experts per token; this model asks for " + std::to_string(largest.moe_top_k)};
  }
  ExpertMemory memory;
  for (const Weight* w : largest.weights) {
    if (largest.moe_top_k == 0 || w->n_experts() == 1) continue;
    // Either of gate_up and down; a shared expert is at most as wide as the widest input of a matrix of the
    // same n.
    int shared = 0;
    for (const Weight* other : largest.weights) {
      if (other->n_experts() == 1 && other->n() == w->n()) shared = std::max(shared, other->k());
    }
    const int rows = std::min(largest.max_rows, moe_block_rows(*w, largest.moe_top_k));
    memory.grow_to(ExpertMemory(rows, largest.moe_top_k, w->k(), shared, *w));
  }
  return memory;
}

void CpuBackend::need(const ExpertMemory& memory) {
  moe_lists_.need(memory.lists);
  moe_gate_up_.need(memory.gate_up);
  moe_inner_.need(memory.inner);
  moe_down_.need(memory.down);
  input2_.need(memory.input);
}

void CpuBackend::do_moe_route(View logits, bool normalise, MutView ids, MutView weights) {
  for_rows(logits.rows, 3.0 * logits.cols, [&](int r) {
    int32_t* chosen = id_row(ids, r);
    choose(row(logits, r), logits.cols, ids.cols, chosen);
    kernels_.route_weights(row(logits, r), normalise ? 0 : logits.cols, chosen, ids.cols, row(weights, r));
  });
}

void CpuBackend::do_moe_experts(Path, const MoeExperts& a) {
  const int block = moe_block_rows(*a.weights.down, a.weights.top_k);
  for (int first = 0; first < a.x.rows; first += block) mix_rows(a, first, std::min(block, a.x.rows - first));
}

void CpuBackend::mix_rows(const MoeExperts& a, int first_row, int n_rows) {
  const MoeWeights& m = a.weights;
  const CpuWeight &gate_up = ours(*m.gate_up), &down = ours(*m.down);
  const int n_experts = gate_up.n_experts(), top_k = m.top_k, inner = down.k(), width = down.n();
  const int shared_inner = m.shared_down != nullptr ? m.shared_down->k() : 0;
  const int entries = n_rows * top_k;
  TD_CHECK(top_k <= kMaxTopK, "top_k %d", top_k);
  need(ExpertMemory(n_rows, top_k, inner, shared_inner, down));
  const View x{row(a.x, first_row), a.x.dtype, n_rows, a.x.cols, a.x.stride};

  // Entry e = row * top_k + choice. Grouped by expert (counting sort), entries ascending in each group.
  auto* groups = reinterpret_cast<ExpertRows*>(moe_lists_.need(0));
  auto* in_rows = reinterpret_cast<int32_t*>(groups + n_experts);
  int32_t* out_rows = in_rows + entries;
  int32_t* starts = out_rows + entries;  // [n_experts + 1]
  std::fill_n(starts, n_experts + 1, 0);
  for (int e = 0; e < entries; ++e) {
    const int32_t expert = id_row(a.ids, first_row + e / top_k)[e % top_k];
    TD_CHECK(expert >= 0 && expert < n_experts, "expert %d of %d", expert, n_experts);
    ++starts[expert + 1];
  }
  size_t n_groups = 0;
  for (int expert = 0; expert < n_experts; ++expert) {
    if (starts[expert + 1] > 0) groups[n_groups++] = {expert, starts[expert], starts[expert + 1]};
    starts[expert + 1] += starts[expert];
  }
  for (int e = 0; e < entries; ++e) out_rows[starts[id_row(a.ids, first_row + e / top_k)[e % top_k]]++] = e;
  for (int i = 0; i < entries; ++i) in_rows[i] = out_rows[i] / top_k;

  const LinearInput in = input_of(x, gate_up, input_);
  const auto run_experts = [&](const CpuWeight& w, const LinearInput& input, const int32_t* from, float* y,
                               int64_t slice_stride) {
    for (const CpuWeight::Part& part : w.parts()) {
      linear_experts(team_, isa_, part.packed, input,
                     {.groups = {groups, n_groups}, .in_rows = from, .out_rows = out_rows},
                     {.y = y + part.first, .stride = w.n(), .slice_stride = slice_stride});
    }
  };
  const auto activate = [&](int rows, int n) {
    do_silu_mul({moe_gate_up_.need_floats(0), DType::f32, rows, 2 * n, 2 * n},
                {moe_inner_.need_floats(0), DType::f32, rows, n, n});
    return View{moe_inner_.need_floats(0), DType::f32, rows, n, n};
  };
  float* parts = moe_down_.need_floats(0);
  const int n_entries = entries + (shared_inner > 0 ? n_rows : 0);  // the shared expert's rows come last
  const int64_t slice_stride = int64_t{n_entries} * width;

  run_experts(gate_up, in, in_rows, moe_gate_up_.need_floats(0), 0);
  run_experts(down, input_of(activate(entries, inner), down, input2_), out_rows, parts, slice_stride);

  float* shared_weights = parts + slice_stride * down.n_slices();  // [n_rows]
  if (shared_inner > 0) {
    TD_CHECK(m.shared_down->n_slices() == down.n_slices() && m.shared_down->n() == width,
             "shared expert [%d, ] of %d slices beside experts [%d, ] of %d", m.shared_down->n(),
             m.shared_down->n_slices(), width, down.n_slices());
    do_linear(Path::decode, x, *m.shared_gate, {shared_weights, DType::f32, n_rows, 1, 1});
    do_linear(Path::decode, x, *m.shared_gate_up,
              {moe_gate_up_.need_floats(0), DType::f32, n_rows, 2 * shared_inner, 2 * shared_inner});
    const CpuWeight& shared_down = ours(*m.shared_down);
    const LinearInput shared_in = input_of(activate(n_rows, shared_inner), shared_down, input2_);
    for (const CpuWeight::Part& part : shared_down.parts()) {
      cpu::linear(team_, isa_, part.packed, shared_in, n_rows,
                  {.y = parts + int64_t{entries} * width + part.first,
                   .stride = width,
                   .slice_stride = slice_stride});
    }
  }
  for_rows(n_rows, 0.1 * (top_k + 1) * down.n_slices() * width, [&](int r) {
    const float* of_row[kMaxTopK + 1];
    float weights[kMaxTopK + 1];
    int n = 0;
    for (; n < top_k; ++n) {
      of_row[n] = parts + (int64_t{r} * top_k + n) * width;
      weights[n] = row(a.choice_weights, first_row + r)[n];
    }
    if (shared_inner > 0) {
      of_row[n] = parts + (int64_t{entries} + r) * width;
      weights[n++] = kernels_.sigmoid(shared_weights[r]);
    }
    kernels_.mix_experts(of_row, weights, n, down.n_slices(), slice_stride, width,
                         row(a.residual, first_row + r));
  });
}

}  // namespace tandem::cpu
