// Greedy choice.
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

}  // namespace tandem
