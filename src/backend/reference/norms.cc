// Norms and pointwise products.
#include "backend/reference/reference.h"

namespace tandem {

void ref::rms_norm(const float* x, const float* gain, float eps, int n, float* y) {
  const double inv = 1 / std::sqrt(dot(x, x, n) / n + eps);
  for (int i = 0; i < n; ++i) y[i] = float(x[i] * inv * (gain ? gain[i] : 1.0f));
}

void ReferenceBackend::do_rms_norm(View x, View gain, float eps, MutView y) {
  for (int r = 0; r < x.rows; ++r)
    ref::rms_norm(ref::row(x, r), ref::row(gain, 0), eps, x.cols, ref::row(y, r));
}

void ReferenceBackend::do_silu_mul(View gate_up, MutView y) {
  for (int r = 0; r < y.rows; ++r) {
    const float* gate = ref::row(gate_up, r);
    const float* up = gate + y.cols;
    for (int i = 0; i < y.cols; ++i) ref::row(y, r)[i] = float(ref::silu(gate[i]) * up[i]);
  }
}

void ReferenceBackend::do_gated_norm(View o, View z, View gain, float eps, MutView y) {
  const int d_v = gain.cols;
  const float* w = ref::row(gain, 0);
  for (int r = 0; r < o.rows; ++r) {
    for (int first = 0; first < o.cols; first += d_v) {
      const float* head = ref::row(o, r) + first;
      const float* gate = ref::row(z, r) + first;
      float* out = ref::row(y, r) + first;
      const double inv = 1 / std::sqrt(ref::dot(head, head, d_v) / d_v + eps);
      for (int i = 0; i < d_v; ++i) out[i] = float(head[i] * inv * w[i] * ref::silu(gate[i]));
    }
  }
}

}  // namespace tandem
