// Choices among logits.
#include <algorithm>
#include <numeric>
#include <vector>

#include "backend/reference/reference.h"

namespace tandem {

void ReferenceBackend::do_choose_greedy(View logits, int n, View names, MutView ids) {
  for (int r = 0; r < logits.rows; ++r) {
    const float* l = ref::row(logits, r);
    int best = 0;
    for (int i = 0; i < n && best >= 0; ++i) {
      if (!std::isfinite(l[i])) {
        best = -1;
      } else if (l[i] > l[best]) {
        best = i;
      }
    }
    if (best >= 0 && !names.empty()) best = static_cast<const int32_t*>(names.data)[best];
    static_cast<int32_t*>(ids.data)[r * ids.stride] = best;
  }
}

void ReferenceBackend::do_choose_best(View logits, int n, MutView values, MutView ids) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  for (int r = 0; r < logits.rows; ++r) {
    const float* l = ref::row(logits, r);
    int32_t* id = static_cast<int32_t*>(ids.data) + r * ids.stride;
    if (!std::all_of(l, l + n, [](float x) { return std::isfinite(x); })) {
      id[0] = -1;
      continue;
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return l[a] > l[b]; });
    for (int i = 0; i < ids.cols; ++i) {
      id[i] = order[size_t(i)];
      ref::row(values, r)[i] = l[id[i]];
    }
  }
}

}  // namespace tandem
