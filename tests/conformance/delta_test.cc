// Gated DeltaNet: convolution and gates, the delta rule token by token and in chunks, the tape.
#include <algorithm>
#include <cmath>

#include "conformance/delta_estimate.h"
#include "conformance/delta_sequence.h"
#include "conformance/harness.h"

namespace tandem::conformance {
namespace {

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
      const Estimates want = exact.run(DeltaSums::chunks, piece);
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
      const DeltaSums sums = closed_form(GetParam()) && n > 1 ? DeltaSums::closed : DeltaSums::by_token;
      const Estimates want = ahead.run(sums, piece);
      const Rows y = seq.delta(Path::decode, piece);
      EXPECT_TRUE(within(y, want)) << "decode from " << seq.length();
      decode.add(y, want);
      exact.run(sums, t.slice(seq.length(), keep));
      seq.commit(keep);
    }
    seq.flush();
    EXPECT_TRUE(within(seq.state_rows(), exact.state())) << "state at the end";
    if (prefill.rows() >= kL2Tokens) {
      EXPECT_LE(prefill.value(), kChunkL2);
    }
    // Decode starts from the state that prefill left; the closed form sums as a chunk does.
    if (decode.rows() >= kL2Tokens) {
      EXPECT_LE(decode.value(), n_prefill > 0 || closed_form(GetParam()) ? kChunkL2 : kRecurrenceL2);
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
INSTANTIATE_TEST_SUITE_P(ClosedForm, Delta, testing::ValuesIn(closed_form_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
