// Gated DeltaNet: causal convolution, gates and the gated delta rule (gated delta networks paper, recurrent
// form). Prefill uses the same token-by-token arithmetic as decode and advances the state in place.
#include <algorithm>
#include <vector>

#include "backend/reference/reference.h"

namespace tandem {
namespace {

constexpr int kWindow = kConvTaps - 1;

// Index of a row of one of a slot's two tapes.
int64_t tape_row(const DeltaState& state, const SeqStep& seq, int tape, int row) {
  return (int64_t{seq.slot} * 2 + tape) * state.tape_rows + row;
}

float* window_of(const DeltaShape& shape, const DeltaState& state, int slot) {
  return state.conv + int64_t{slot} * kWindow * shape.conv_dim();
}

// Row i (of d_v) of value head h's state: d_k values.
float* state_row(const DeltaShape& shape, const DeltaState& state, int slot, int h, int i) {
  return state.s + ((int64_t{slot} * shape.n_v_heads + h) * shape.d_v + i) * shape.d_k;
}

// The window drops its oldest row and takes m.
void push(float* window, const float* m, int conv_dim) {
  std::copy(window + conv_dim, window + kWindow * conv_dim, window);
  std::copy_n(m, conv_dim, window + (kWindow - 1) * conv_dim);
}

// The convolution's input `back` rows above `row` of a sequence; above its first row lies the stored window.
const float* input_above(const SeqStep& seq, View projection, const float* stored, int conv_dim, int row,
                         int back) {
  for (; back > 0 && row >= 0; --back) row = seq.parent(row);
  return row >= 0 ? ref::row(projection, seq.first_row + row) : stored + (kWindow - 1 - back) * conv_dim;
}

void fold_conv(const SeqStep& seq, const DeltaShape& shape, const DeltaState& state) {
  for (const uint8_t row : seq.pending) {
    push(window_of(shape, state, seq.slot),
         state.tape_conv + tape_row(state, seq, seq.tape, row) * shape.conv_dim(), shape.conv_dim());
  }
}

// The two halves of a token's update of one row s of S. What decode and prefill apply is what a fold replays.
void decay(float* s, float g, int d_k) {
  for (int j = 0; j < d_k; ++j) s[j] *= g;
}
void add_outer(float* s, float delta, const float* k, int d_k) {
  for (int j = 0; j < d_k; ++j) s[j] = float(s[j] + double(delta) * k[j]);
}

void fold_state_row(const SeqStep& seq, const DeltaShape& shape, const DeltaState& state, int h, int i) {
  float* s = state_row(shape, state, seq.slot, h, i);
  const int key_head = h / (shape.n_v_heads / shape.n_k_heads);
  for (const uint8_t row : seq.pending) {
    const int64_t t = tape_row(state, seq, seq.tape, row);
    decay(s, state.tape_g[t * shape.n_v_heads + h], shape.d_k);
    add_outer(s, state.tape_delta[t * shape.value_dim() + h * shape.d_v + i],
              state.tape_k + t * shape.key_dim() + key_head * shape.d_k, shape.d_k);
  }
}

// Heads of x (n columns each) scaled to unit length, times `scale`.
void unit_heads(const float* x, int n_heads, int n, double scale, float* y) {
  for (int h = 0; h < n_heads; ++h, x += n, y += n) {
    const double inv = scale / std::sqrt(ref::dot(x, x, n) + 1e-6);
    for (int i = 0; i < n; ++i) y[i] = float(x[i] * inv);
  }
}

// What the closed form needs of the tokens of a step for one value head (backend.h: DeltaStep).
struct ClosedForm {
  int n = 0;
  std::vector<double> k_k, k_q;  // [n, n], j <= t: exp(G_t - G_j) k_j . k_t and exp(G_t - G_j) k_j . q_t
  std::vector<double> decay;     // [n]: exp(G_t)
};
// k and q: those of the first token, `stride` floats from one to the next.
ClosedForm closed_form(int n, const float* k, const float* q, int64_t stride, int d_k, View log_decay,
                       int first_row, int h) {
  ClosedForm c{.n = n,
               .k_k = std::vector<double>(size_t(n * n)),
               .k_q = std::vector<double>(size_t(n * n)),
               .decay = {}};
  std::vector<double> sums;
  double sum = 0;
  for (int t = 0; t < n; ++t) {
    sum += ref::row(log_decay, first_row + t)[h];
    sums.push_back(sum);
    c.decay.push_back(std::exp(sum));
    for (int j = 0; j <= t; ++j) {
      const double between = std::exp(sum - sums[size_t(j)]);
      c.k_k[size_t(t * n + j)] = between * ref::dot(k + j * stride, k + t * stride, d_k);
      c.k_q[size_t(t * n + j)] = between * ref::dot(k + j * stride, q + t * stride, d_k);
    }
  }
  return c;
}

}  // namespace

void ReferenceBackend::do_delta_conv(const Step& step, const DeltaConv& a) {
  const DeltaShape& shape = a.shape;
  const int c_dim = shape.conv_dim();
  const float* window[kWindow];
  for (const SeqStep& seq : step.seqs) {
    float* stored = window_of(shape, a.state, seq.slot);
    if (seq.start == 0) std::fill_n(stored, kWindow * c_dim, 0.0f);
    fold_conv(seq, shape, a.state);
    for (int t = 0; t < seq.n_rows; ++t) {
      const int r = seq.first_row + t;
      const float* m = ref::row(a.projection, r);
      for (int tap = 0; tap < kWindow; ++tap) {
        window[tap] = input_above(seq, a.projection, stored, c_dim, t, kWindow - tap);
      }
      for (int c = 0; c < c_dim; ++c) {
        const float* w = ref::row(a.conv_weight, c);
        double u = 0;
        for (int tap = 0; tap < kWindow; ++tap) u += double(w[tap]) * window[tap][c];
        u += double(w[kWindow]) * m[c];
        ref::row(a.qkv, r)[c] = float(ref::silu(u));
      }
      if (step.path == Path::decode) {
        std::copy_n(m, c_dim, a.state.tape_conv + tape_row(a.state, seq, 1 - seq.tape, t) * c_dim);
      }

      const float* b = m + c_dim + shape.value_dim();
      const float* alpha = b + shape.n_v_heads;
      for (int h = 0; h < shape.n_v_heads; ++h) {
        const double x = double(alpha[h]) + ref::row(a.dt_bias, 0)[h];
        const double softplus = x > 20 ? x : std::log1p(std::exp(x));
        ref::row(a.log_decay, r)[h] = float(-std::exp(double(ref::row(a.a_log, 0)[h])) * softplus);
        ref::row(a.beta, r)[h] = float(ref::sigmoid(b[h]));
      }
    }
    for (int t = 0; t < seq.n_rows && step.path == Path::prefill; ++t) {
      push(stored, ref::row(a.projection, seq.first_row + t), c_dim);
    }
  }
}

void ReferenceBackend::do_delta_step(const Step& step, const DeltaStep& a) {
  const DeltaShape& shape = a.shape;
  const int d_k = shape.d_k, d_v = shape.d_v, key_dim = shape.key_dim();
  std::vector<float> q(size_t(step.n_rows) * key_dim), k(q.size());
  // Decode: what the fold left, then what the last row of each depth left.
  std::vector<float> states(size_t(kMaxDecodeRows + 1) * d_k);
  std::vector<float> deltas(kMaxDecodeRows);  // closed form: of one row of S
  for (int r = 0; r < step.n_rows; ++r) {
    const float* qkv = ref::row(a.qkv, r);
    unit_heads(qkv, shape.n_k_heads, d_k, 1 / std::sqrt(double(d_k)), &q[size_t(r) * key_dim]);
    unit_heads(qkv + key_dim, shape.n_k_heads, d_k, 1, &k[size_t(r) * key_dim]);
  }
  for (const SeqStep& seq : step.seqs) {
    const bool closed =
        delta_ == DeltaForm::closed && step.path == Path::decode && seq.n_rows > 1 && seq.parents.empty();
    for (int h = 0; h < shape.n_v_heads; ++h) {
      const int key_head = h / (shape.n_v_heads / shape.n_k_heads);
      ClosedForm form;
      if (closed) {
        const size_t first = size_t(seq.first_row) * key_dim + size_t(key_head) * d_k;
        form = closed_form(seq.n_rows, &k[first], &q[first], key_dim, d_k, a.log_decay, seq.first_row, h);
      }
      for (int i = 0; i < d_v; ++i) {  // rows of S do not meet: each takes all tokens in turn
        float* s = state_row(shape, a.state, seq.slot, h, i);
        if (seq.start == 0) std::fill_n(s, d_k, 0.0f);
        fold_state_row(seq, shape, a.state, h, i);
        if (step.path == Path::decode) std::copy_n(s, d_k, states.data());
        for (int t = 0; t < seq.n_rows; ++t) {
          const int r = seq.first_row + t;
          const float* key = &k[size_t(r) * key_dim + size_t(key_head) * d_k];
          const float* query = &q[size_t(r) * key_dim + size_t(key_head) * d_k];
          const float g = float(std::exp(double(ref::row(a.log_decay, r)[h])));
          const float v = ref::row(a.qkv, r)[2 * key_dim + h * d_v + i];
          const float beta = ref::row(a.beta, r)[h];
          float& y = ref::row(a.y, r)[h * d_v + i];
          float delta;
          if (closed) {
            double known = form.decay[size_t(t)] * ref::dot(s, key, d_k);
            for (int j = 0; j < t; ++j) known += form.k_k[size_t(t * form.n + j)] * deltas[size_t(j)];
            delta = deltas[size_t(t)] = float(beta * (v - known));
            double out = form.decay[size_t(t)] * ref::dot(s, query, d_k);
            for (int j = 0; j <= t; ++j) out += form.k_q[size_t(t * form.n + j)] * deltas[size_t(j)];
            y = float(out);
          } else {
            if (step.path == Path::decode) {
              const float* above = &states[size_t(seq.depth(t)) * d_k];
              s = &states[size_t(seq.depth(t) + 1) * d_k];
              std::copy_n(above, d_k, s);
            }
            decay(s, g, d_k);
            delta = float(beta * (v - ref::dot(s, key, d_k)));
            add_outer(s, delta, key, d_k);
            y = float(ref::dot(s, query, d_k));
          }
          if (step.path == Path::decode) {
            const int64_t tape = tape_row(a.state, seq, 1 - seq.tape, t);
            a.state.tape_g[tape * shape.n_v_heads + h] = g;
            a.state.tape_delta[tape * shape.value_dim() + h * d_v + i] = delta;
            std::copy_n(key, d_k, a.state.tape_k + tape * key_dim + key_head * d_k);
          }
        }
      }
    }
  }
}

void ReferenceBackend::do_fold_states(const Step& step, const DeltaShape& shape, const DeltaState& state) {
  for (const SeqStep& seq : step.seqs) {
    fold_conv(seq, shape, state);
    for (int h = 0; h < shape.n_v_heads; ++h) {
      for (int i = 0; i < shape.d_v; ++i) fold_state_row(seq, shape, state, h, i);
    }
  }
}

}  // namespace tandem
