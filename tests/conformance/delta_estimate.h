// The delta rule in double, and how far each form of it may be off in fp32.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "conformance/delta_sequence.h"
#include "conformance/estimate.h"

namespace tandem::conformance {

// How a backend forms S k and S q: from S as each token leaves it; in the chunks of prefill; from S before
// the step.
enum class DeltaSums { by_token, chunks, closed };

// The recurrence in double, with how far fp32 may be off. In one row s of S, errors are carried on by
// g (I - beta k k^T), which does not lengthen a vector (beta in [0, 1], |k| <= 1, g <= 1), so what each token
// adds is never amplified; n tokens' independent errors e_t add up to at most lambda sqrt(sum e_t^2) (and at
// most sum e_t).
//
// A closed step of the deltas that it gives obeys the same recurrence, each delta off by what rounding did to
// its own sum over the state before the step and the deltas before it; folds add the roundings of a token
// each.
class DeltaEstimate {
 public:
  explicit DeltaEstimate(const DeltaShape& shape)
      : shape_(shape), rows_(size_t(shape.value_dim())), s_(rows_.size() * size_t(shape.d_k)) {}

  Estimates run(DeltaSums form, const Tokens& t) {
    Estimates y(t.size(), shape_.value_dim());
    begin_chunk();  // a step of its own
    for (int r = 0; r < t.size(); ++r) {
      if (form == DeltaSums::chunks && position_ % kChunkTokens == 0) begin_chunk();
      token(form, t, r, y);
      ++position_;
    }
    return y;
  }

  Estimates state() const {
    Estimates out(shape_.value_dim(), shape_.d_k);
    for (int i = 0; i < out.rows; ++i) {
      const Row& row = rows_[size_t(i)];
      for (int j = 0; j < out.cols; ++j) out.at(i, j) = {s(i)[j], row.error() + row.last_read};
    }
    return out;
  }

 private:
  struct Row {
    double sum = 0, squares = 0;  // of the errors tokens added, decayed
    double reach = 0;      // chunk form: |S at its start| and all |delta|, decayed: what its sums run over
    double faded = 0;      // the same, each times the sum of log decays that it has met
    double last_read = 0;  // error of forming S from the chunk's terms
    double error() const { return std::min(sum, kLambda * std::sqrt(squares)); }
  };

  double* s(int i) { return s_.data() + int64_t{i} * shape_.d_k; }
  const double* s(int i) const { return s_.data() + int64_t{i} * shape_.d_k; }
  static double norm(const double* x, int n) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += x[i] * x[i];
    return std::sqrt(sum);
  }
  static std::vector<double> unit(const float* x, int n, double scale) {
    double squares = 0;
    for (int i = 0; i < n; ++i) squares += double(x[i]) * x[i];
    std::vector<double> y;
    for (int i = 0; i < n; ++i) y.push_back(x[i] * scale / std::sqrt(squares + 1e-6));
    return y;
  }

  void begin_chunk() {
    log_sums_.assign(size_t(shape_.n_v_heads), 0);
    for (int i = 0; i < shape_.value_dim(); ++i) {
      rows_[size_t(i)].reach = norm(s(i), shape_.d_k);
      rows_[size_t(i)].faded = 0;
    }
  }

  void token(DeltaSums form, const Tokens& t, int r, Estimates& y) {
    const int d_k = shape_.d_k;
    for (int h = 0; h < shape_.n_v_heads; ++h) {
      const int key_head = h / (shape_.n_v_heads / shape_.n_k_heads);
      const float* in = t.qkv.row(r);
      const std::vector<double> q = unit(in + key_head * d_k, d_k, 1 / std::sqrt(double(d_k)));
      const std::vector<double> k = unit(in + shape_.key_dim() + key_head * d_k, d_k, 1);
      const double log_decay = t.log_decay.at(r, h), g = std::exp(log_decay), beta = t.beta.at(r, h);
      log_sums_[size_t(h)] += log_decay;
      // Relative errors, in u: of normalised keys and queries, of a product with S, and in chunks of a decay
      // between two tokens (a difference of running sums, each with up to 64 roundings of a sum this large).
      const double unit_error = 0.5 * lane_depth(d_k) + kRsqrt + 2;
      double dot_error = lane_depth(d_k), decay_error = kExp;
      if (form == DeltaSums::chunks) {
        dot_error = score_depth(d_k) + kChunkTokens + 6;
        decay_error += kLambda * std::sqrt(double(kChunkTokens)) * std::abs(log_sums_[size_t(h)]);
      }
      if (form == DeltaSums::closed) dot_error = score_depth(d_k) + kMaxDecodeRows + 6;
      dot_error = std::min(dot_error, kLambda * std::sqrt(dot_error)) + unit_error;
      const double k_norm = norm(k.data(), d_k), q_norm = norm(q.data(), d_k);
      for (int i = h * shape_.d_v; i < (h + 1) * shape_.d_v; ++i) {
        Row& row = rows_[size_t(i)];
        double p = 0, out = 0;
        for (int j = 0; j < d_k; ++j) {
          s(i)[j] *= g;
          p += s(i)[j] * k[size_t(j)];
        }
        const double v = in[2 * shape_.key_dim() + i], delta = beta * (v - p);
        for (int j = 0; j < d_k; ++j) {
          s(i)[j] += delta * k[size_t(j)];
          out += s(i)[j] * q[size_t(j)];
        }
        // What the sums of this token run over: S itself, or the chunk's terms.
        const double before =
            form == DeltaSums::by_token ? norm(s(i), d_k) + std::abs(delta) * k_norm : g * row.reach;
        if (form == DeltaSums::closed) row.faded = g * row.faded + std::abs(log_decay) * before;
        row.reach = before + std::abs(delta) * k_norm;
        // A closed step decays each term at once, by exp of a sum of log decays with up to 32 roundings.
        const double fading = form == DeltaSums::closed
                                  ? kExp * before + kLambda * std::sqrt(double(kMaxDecodeRows)) * row.faded
                                  : 0;
        const double added =
            kU * ((decay_error + 2) * before + beta * ((dot_error + 3) * before + fading) * k_norm +
                  3 * beta * std::abs(v) + (unit_error + 1) * std::abs(delta));
        row.sum = g * row.sum + added;
        row.squares = g * g * row.squares + added * added;
        row.last_read = form == DeltaSums::chunks ? kU * (dot_error + decay_error) * row.reach : 0;
        const double bound =
            q_norm * (row.error() + kU * ((dot_error + unit_error + decay_error) * row.reach + fading)) +
            kU * std::abs(out);
        y.at(r, i) = {out, bound + kTiny};
      }
    }
  }

  DeltaShape shape_;
  std::vector<Row> rows_;
  std::vector<double> s_, log_sums_;
  int position_ = 0;
};

}  // namespace tandem::conformance
