// Sparse mixture of experts.
#include <algorithm>
#include <vector>

#include "backend/reference/reference.h"
#include "base/check.h"

namespace tandem {
namespace {

const ReferenceWeight& ours(const Weight* w) { return static_cast<const ReferenceWeight&>(*w); }

// inner = silu(gate x) * (up x) of one expert; gate rows come first.
void expert_inner(const float* x, const ReferenceWeight& gate_up, int expert, std::vector<float>& inner) {
  const int width = gate_up.n() / 2;
  inner.resize(width);
  for (int i = 0; i < width; ++i) {
    const double gate = ref::output(x, gate_up, expert, i);
    inner[i] = float(ref::silu(gate) * ref::output(x, gate_up, expert, width + i));
  }
}

// sums[i][s] += weight * (slice s of output i of the expert's down product)
void add_down(const std::vector<float>& inner, const ReferenceWeight& down, int expert, double weight,
              std::vector<double>& sums) {
  for (int i = 0; i < down.n(); ++i) {
    for (int s = 0; s < down.n_slices(); ++s) {
      sums[size_t(i) * down.n_slices() + s] += weight * ref::slice_dot(inner.data(), down, expert, i, s);
    }
  }
}

}  // namespace

void ReferenceBackend::do_moe_route(View logits, bool normalise, MutView ids, MutView weights) {
  std::vector<int> order(logits.cols);
  for (int r = 0; r < logits.rows; ++r) {
    const float* l = ref::row(logits, r);
    for (int e = 0; e < logits.cols; ++e) order[e] = e;
    // NaN counts as lowest.
    const auto rank = [&](int e) { return std::isnan(l[e]) ? -INFINITY : l[e]; };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rank(a) > rank(b); });
    const float highest = l[order[0]];
    double total = 0;
    for (int i = 0; i < (normalise ? ids.cols : logits.cols); ++i)
      total += std::exp(double(l[order[i]]) - highest);
    std::sort(order.begin(), order.begin() + ids.cols);
    for (int i = 0; i < ids.cols; ++i) {
      static_cast<int32_t*>(ids.data)[r * ids.stride + i] = order[i];
      ref::row(weights, r)[i] = float(std::exp(double(l[order[i]]) - highest) / total);
    }
  }
}

void ReferenceBackend::do_moe_experts(Path, const MoeExperts& a) {
  const ReferenceWeight& down = ours(a.weights.down);
  const int n_slices = down.n_slices();
  std::vector<float> inner;
  std::vector<double> sums;
  for (int r = 0; r < a.x.rows; ++r) {
    const float* x = ref::row(a.x, r);
    sums.assign(size_t(down.n()) * n_slices, 0.0);
    for (int c = 0; c < a.weights.top_k; ++c) {
      const int expert = static_cast<const int32_t*>(a.ids.data)[r * a.ids.stride + c];
      TD_CHECK(expert >= 0 && expert < down.n_experts(), "expert %d of %d", expert, down.n_experts());
      expert_inner(x, ours(a.weights.gate_up), expert, inner);
      add_down(inner, down, expert, ref::row(a.choice_weights, r)[c], sums);
    }
    if (a.weights.shared_down != nullptr) {
      expert_inner(x, ours(a.weights.shared_gate_up), 0, inner);
      const double gate = ref::sigmoid(ref::output(x, ours(a.weights.shared_gate), 0, 0));
      add_down(inner, ours(a.weights.shared_down), 0, gate, sums);
    }
    for (int i = 0; i < down.n(); ++i) {
      float parts[8];
      for (int s = 0; s < n_slices; ++s) parts[s] = float(sums[size_t(i) * n_slices + s]);
      ref::row(a.residual, r)[i] += ref::tree_sum({parts, size_t(n_slices)});
    }
  }
}

}  // namespace tandem
