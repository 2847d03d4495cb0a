// Gated DeltaNet: convolution and gates, the delta rule token by token and in chunks, the tape.
#include <algorithm>
#include <cmath>

#include "conformance/delta_sequence.h"
#include "conformance/estimate.h"
#include "conformance/harness.h"

namespace tandem::conformance {
namespace {

// The recurrence in double, with how far fp32 may be off. In one row s of S, errors are carried on by
// g (I - beta k k^T), which does not lengthen a vector (beta in [0, 1], |k| <= 1, g <= 1), so what each token
// adds is never amplified; n tokens' independent errors e_t add up to at most lambda sqrt(sum e_t^2) (and at
// most sum e_t).
class DeltaEstimate {
 public:
  explicit DeltaEstimate(const DeltaShape& shape)
      : shape_(shape), rows_(size_t(shape.value_dim())), s_(rows_.size() * size_t(shape.d_k)) {}

  Estimates run(Path path, const Tokens& t) {
    Estimates y(t.size(), shape_.value_dim());
    for (int r = 0; r < t.size(); ++r) {
      if (position_ % kChunkTokens == 0) begin_chunk();
      token(path, t, r, y);
      ++position_;
    }
    begin_chunk();  // a chunk also ends with its step
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
    for (int i = 0; i < shape_.value_dim(); ++i) rows_[size_t(i)].reach = norm(s(i), shape_.d_k);
  }

  void token(Path path, const Tokens& t, int r, Estimates& y) {
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
      if (path == Path::prefill) {
        dot_error = score_depth(d_k) + kChunkTokens + 6;
        decay_error += kLambda * std::sqrt(double(kChunkTokens)) * std::abs(log_sums_[size_t(h)]);
      }
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
            path == Path::prefill ? g * row.reach : norm(s(i), d_k) + std::abs(delta) * k_norm;
        row.reach = before + std::abs(delta) * k_norm;
        const double added = kU * ((decay_error + 2) * before + beta * (dot_error + 3) * before * k_norm +
                                   3 * beta * std::abs(v) + (unit_error + 1) * std::abs(delta));
        row.sum = g * row.sum + added;
        row.squares = g * g * row.squares + added * added;
        row.last_read = path == Path::prefill ? kU * (dot_error + decay_error) * row.reach : 0;
        const double bound =
            q_norm * (row.error() + kU * (dot_error + unit_error + decay_error) * row.reach) +
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

class Delta : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam());

  // Prefills in pieces cut at multiples of 64, then verifies and commits; every output and the state within
  // bounds, and the outputs together within the statistical ceilings.
  void check(Rng& rng, const DeltaShape& shape, const Tokens& t, int n_prefill) {
    const int tape_rows = rng.pick({8, 20, kMaxDecodeRows});
    DeltaSequence seq(*backend_, shape, tape_rows, rng.uniform(0, kDeltaSlots - 1));
    DeltaEstimate exact(shape);
    RelativeL2 prefill, decode;
    while (seq.length() < n_prefill) {
      const int n = std::min(n_prefill - seq.length(), 64 * rng.uniform(1, 4));
      const Tokens piece = t.slice(seq.length(), n);
      const Estimates want = exact.run(Path::prefill, piece);
      const Rows y = seq.delta(Path::prefill, piece);
      EXPECT_TRUE(within(y, want)) << "prefill from " << seq.length();
      prefill.add(y, want);
      seq.prefilled(n);
      EXPECT_TRUE(within(seq.state_rows(), exact.state())) << "state at " << seq.length();
    }
    while (seq.length() < t.size()) {
      const int n = std::min(t.size() - seq.length(), rng.uniform(1, tape_rows)), keep = rng.uniform(0, n);
      const Tokens piece = t.slice(seq.length(), n);
      DeltaEstimate ahead = exact;  // the step looks ahead, the state follows what is kept
      const Estimates want = ahead.run(Path::decode, piece);
      const Rows y = seq.delta(Path::decode, piece);
      EXPECT_TRUE(within(y, want)) << "decode from " << seq.length();
      decode.add(y, want);
      exact.run(Path::decode, t.slice(seq.length(), keep));
      seq.commit(keep);
    }
    seq.flush();
    EXPECT_TRUE(within(seq.state_rows(), exact.state())) << "state at the end";
    if (prefill.rows() >= kL2Tokens) {
      EXPECT_LE(prefill.value(), kChunkL2);
    }
    // Decode starts from the state that prefill left.
    if (decode.rows() >= kL2Tokens) {
      EXPECT_LE(decode.value(), n_prefill > 0 ? kChunkL2 : kRecurrenceL2);
    }
  }
};

TEST_P(Delta, TheRuleMatchesTheRecurrenceInBothForms) {
  for_cases(10, 30000, [&](Rng& rng) {
    const DeltaShape shape = random_delta_shape(rng);
    const int n_prefill = rng.pick({0, 1, 63, 64, 65, 100, 130, 200}), n_decode = rng.uniform(1, 60);
    SCOPED_TRACE(text(shape) + ", " + std::to_string(n_prefill) + " + " + std::to_string(n_decode) +
                 " tokens");
    check(rng, shape, random_tokens(rng, shape, n_prefill + n_decode, rng.pick({0.001f, 0.08f, 1.0f})),
          n_prefill);
  });
}

// Keys that nearly coincide and hardly decay: a chunk's matrix is far from the identity, and its inverse by
// powers (instead of substitution) overflows.
TEST_P(Delta, ChunksStayAccurateWithCorrelatedKeysAndSlowDecay) {
  for_cases(2, 31000, [&](Rng& rng) {
    const DeltaShape shape{.n_k_heads = 1, .n_v_heads = 2, .d_k = 128, .d_v = 32};
    Tokens t = random_tokens(rng, shape, 520, 0.0016f);
    const Rows common = normal_rows(rng, 1, shape.d_k);
    for (int r = 0; r < t.size(); ++r) {
      for (int j = 0; j < shape.d_k; ++j) {
        float& k = t.qkv.at(r, shape.key_dim() + j);
        k = 0.95f * common.v[size_t(j)] + 0.3f * k;
      }
    }
    for (float& b : t.beta.v) b = rng.real(0.9f, 1);
    check(rng, shape, t, 512);
  });
}

// exp(-40) a token and more: powers of the decay leave fp32's range within a chunk, in one direction only.
// Sums of decays in the thousands cost nothing: differences count.
TEST_P(Delta, StrongDecayForgetsAndNothingOverflows) {
  for_cases(4, 32000, [&](Rng& rng) {
    const DeltaShape shape = random_delta_shape(rng);
    SCOPED_TRACE(text(shape));
    Tokens t = random_tokens(rng, shape, 150, 0.05f);
    const bool always = rng.uniform(0, 1) == 0;
    for (float& l : t.log_decay.v) {
      if (always || rng.uniform(0, 9) == 0) l = rng.pick({-40.0f, -100.0f, -1000.0f, 0.0f});
    }
    check(rng, shape, t, 130);
  });
}

TEST_P(Delta, NoDecayAndFullCorrectionReturnTheLastValueOfAKey) {
  // beta 1, decay 1: y for a query equal to the newest key is v d_k^-0.5 (up to the eps in the norms).
  const DeltaShape shape{.n_k_heads = 1, .n_v_heads = 1, .d_k = 64, .d_v = 16};
  Rng rng(33000);
  // The values of up to 30 tokens, about 1 each, meet in a row of S; queries are 1 / 8 long. The eps adds
  // 1e-6 / |k|^2.
  const double bound = kU * (score_depth(shape.d_k) + kChunkTokens) * 30 / 8;
  for (const Path path : {Path::prefill, Path::decode}) {
    Tokens t = random_tokens(rng, shape, 30, 0);
    for (int r = 0; r < t.size(); ++r) {
      t.beta.at(r, 0) = 1;
      std::copy_n(t.qkv.row(r), 64, t.qkv.row(r) + 64);
    }
    DeltaSequence seq(*backend_, shape, kMaxDecodeRows, 1);
    const Rows y = seq.delta(path, t);
    for (int r = 0; r < t.size(); ++r) {
      for (int i = 0; i < 16; ++i) EXPECT_NEAR(y.at(r, i), t.qkv.at(r, 128 + i) / 8, bound);
    }
  }
}

// The eps is added to the sum of squares: a key of length 1e-3 comes out at 1 / sqrt(2) of unit length.
TEST_P(Delta, SmallKeysAreNormalisedWithTheEpsOfTheSum) {
  for_cases(3, 34000, [&](Rng& rng) {
    const DeltaShape shape = random_delta_shape(rng);
    SCOPED_TRACE(text(shape));
    Tokens t = random_tokens(rng, shape, 6, 0.1f);
    for (int r = 0; r < t.size(); ++r) {
      for (int h = 0; h < 2 * shape.n_k_heads; ++h) {
        float* x = t.qkv.row(r) + h * shape.d_k;
        double squares = 0;
        for (int j = 0; j < shape.d_k; ++j) squares += double(x[j]) * x[j];
        for (int j = 0; j < shape.d_k; ++j) x[j] = float(x[j] * 1e-3 / std::sqrt(squares));
      }
    }
    check(rng, shape, t, 3);
    DeltaSequence seq(*backend_, shape, kMaxDecodeRows, 0);
    seq.delta(Path::decode, t);
    seq.commit(t.size());
    const Rows keys = seq.tape_keys(t.size());
    for (int r = 0; r < keys.rows; ++r) {
      for (int h = 0; h < shape.n_k_heads; ++h) {
        double squares = 0;
        for (int j = 0; j < shape.d_k; ++j)
          squares += double(keys.at(r, h * shape.d_k + j)) * keys.at(r, h * shape.d_k + j);
        EXPECT_NEAR(std::sqrt(squares), std::sqrt(0.5), (lane_depth(shape.d_k) + 8) * kU);
      }
    }
  });
}

TEST_P(Delta, ConvolutionAndGatesMatchTheirFormulas) {
  for_cases(10, 35000, [&](Rng& rng) {
    const DeltaShape shape = random_delta_shape(rng);
    const int n_prefill = rng.pick({0, 1, 2, 3, 20, 64, 90}), tape_rows = rng.pick({4, 32});
    SCOPED_TRACE(text(shape) + ", prefill " + std::to_string(n_prefill));
    const int c_dim = shape.conv_dim(), n_heads = shape.n_v_heads, total = n_prefill + 40;
    const Rows weight = normal_rows(rng, c_dim, kConvTaps), a_log = normal_rows(rng, 1, n_heads, 1.5f),
               dt_bias = normal_rows(rng, 1, n_heads, 3);
    Rows projection = normal_rows(rng, total, shape.projection_dim(), 2);
    for (int r = 0; r < total; ++r) {  // gates far out: softplus of -90 and of 90
      projection.at(r, shape.projection_dim() - 1 - rng.uniform(0, 2 * n_heads - 1)) = rng.real(-90, 90);
    }
    DeltaSequence seq(*backend_, shape, tape_rows, rng.uniform(0, kDeltaSlots - 1));

    const auto check_rows = [&](const Tokens& got, int first) {
      Estimates qkv(got.size(), c_dim), log_decay(got.size(), n_heads), beta(got.size(), n_heads);
      for (int r = 0; r < got.size(); ++r) {
        const int t = first + r;
        for (int c = 0; c < c_dim; ++c) {
          double u = 0, terms = 0;
          for (int tap = 0; tap < kConvTaps; ++tap) {
            const int from = t - (kConvTaps - 1) + tap;
            if (from < 0) continue;
            u += double(weight.at(c, tap)) * projection.at(from, c);
            terms += std::abs(double(weight.at(c, tap)) * projection.at(from, c));
          }
          Estimates sum(1, 1);
          sum.v[0] = {u, kConvTaps * kU * terms};
          qkv.at(r, c) = silu(sum).v[0];
        }
        for (int h = 0; h < n_heads; ++h) {
          const int b = c_dim + shape.value_dim() + h;
          beta.at(r, h) = sigmoid({projection.at(t, b), 0});
          const double x = double(projection.at(t, b + n_heads)) + dt_bias.v[size_t(h)];
          const double softplus = x > 30 ? x : std::log1p(std::exp(x));
          const double value = -std::exp(double(a_log.v[size_t(h)])) * softplus;
          // x rounds to fp32, and softplus' / softplus <= 1.
          const double relative = (2 * kExp + kLog1p + 2 + std::abs(x)) * kU;
          log_decay.at(r, h) = {value, relative * std::abs(value) + kTiny};
        }
      }
      EXPECT_TRUE(within(got.qkv, qkv)) << "convolution from " << first;
      EXPECT_TRUE(within(got.log_decay, log_decay)) << "log decay from " << first;
      EXPECT_TRUE(within(got.beta, beta)) << "beta from " << first;
    };
    while (seq.length() < n_prefill) {
      const int n = std::min(n_prefill - seq.length(), 64);
      check_rows(seq.conv(Path::prefill, projection.slice(seq.length(), n), weight, a_log, dt_bias),
                 seq.length());
      seq.prefilled(n);
    }
    while (seq.length() < total - 5) {
      const int n = std::min(total - seq.length(), rng.uniform(1, tape_rows));
      check_rows(seq.conv(Path::decode, projection.slice(seq.length(), n), weight, a_log, dt_bias),
                 seq.length());
      seq.commit(rng.uniform(0, n));
    }
    seq.flush();
    Rows newest(3, c_dim);
    for (int r = 0; r < 3; ++r) std::copy_n(projection.row(seq.length() - 3 + r), c_dim, newest.row(r));
    EXPECT_TRUE(same_bits(newest, seq.window()));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Delta, testing::ValuesIn(all_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
