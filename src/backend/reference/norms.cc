// Norms, pointwise products and the convolution of blocks.
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

void ReferenceBackend::do_block_conv(const Step& step, const BlockConv& a) {
  const int taps = a.base.rows, groups = a.dynamic.cols / taps, group = a.x.cols / groups;
  for (const SeqStep& seq : step.seqs) {
    for (int i = 0; i < seq.n_rows; ++i) {
      const int r = seq.first_row + i;
      for (int c = 0; c < a.x.cols; ++c) {
        double sum = 0;
        for (int t = 0; t < taps && t <= i; ++t) {
          const double w = double(ref::row(a.base, t)[c]) + ref::row(a.dynamic, r)[t * groups + c / group];
          sum += w * ref::row(a.x, r - t)[c];
        }
        // The convolution is rounded, then the residual added: as linear and linear_add do.
        ref::row(a.y, r)[c] = a.residual.empty() ? float(sum) : ref::row(a.residual, r)[c] + float(sum);
      }
    }
  }
}

}  // namespace tandem
