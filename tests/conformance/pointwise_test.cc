// Norms, gates and rotary angles.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/estimate.h"
#include "conformance/harness.h"

namespace tandem::conformance {
namespace {

class Pointwise : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam());
};

// Rows of very different size, now and then a row of zeros or of values at the ends of exp's range.
Rows wild_rows(Rng& rng, int rows, int cols) {
  Rows x(rows, cols);
  for (int r = 0; r < rows; ++r) {
    const float scale = std::exp(rng.real(-12, 6));
    const int kind = rng.uniform(0, 7);
    for (int c = 0; c < cols; ++c)
      x.at(r, c) = kind == 0 ? 0 : kind == 1 ? rng.real(-110, 110) : rng.normal() * scale;
  }
  return x;
}

Rows gains(Rng& rng, int n) {
  Rows g = normal_rows(rng, 1, n, 0.3f);
  for (float& x : g.v) x += 1;
  return g;
}

int any_width(Rng& rng) {
  return rng.pick({1, 7, 8, 15, 16, 17, 31, 64, 100, 127, 128, 130, 257, 1023, 1024});
}

TEST_P(Pointwise, RmsNormMatchesItsFormulaAndMayWorkInPlace) {
  for_cases(20, 10000, [&](Rng& rng) {
    const int rows = rng.uniform(1, 40), n = any_width(rng), gap = rng.uniform(0, 5);
    const float eps = rng.pick({1e-6f, 1e-5f, 1e-2f});
    SCOPED_TRACE("[" + std::to_string(rows) + ", " + std::to_string(n) + "]");
    const Rows x = wild_rows(rng, rows, n), gain = gains(rng, n);
    const OnDevice in(*backend_, x, gap), g(*backend_, gain), out(*backend_, rows, n, gap),
        place(*backend_, x);
    backend_->rms_norm(in, g, eps, out);
    EXPECT_TRUE(within(out.read(), rms_norm(Estimates(x), gain, eps)));
    backend_->rms_norm(place, g, eps, place);
    EXPECT_TRUE(same_bits(out.read(), place.read()));
  });
}

TEST_P(Pointwise, SiluMulMatchesItsFormula) {
  for_cases(20, 11000, [&](Rng& rng) {
    const int rows = rng.uniform(1, 20), n = any_width(rng), gap = rng.uniform(0, 5);
    SCOPED_TRACE("[" + std::to_string(rows) + ", " + std::to_string(n) + "]");
    const Rows x = wild_rows(rng, rows, 2 * n);
    const OnDevice in(*backend_, x, gap), out(*backend_, rows, n, gap);
    backend_->silu_mul(in, out);
    EXPECT_TRUE(within(out.read(), silu_mul(Estimates(x))));
  });
}

TEST_P(Pointwise, GatedNormMatchesItsFormulaAndMayWorkInPlace) {
  for_cases(20, 12000, [&](Rng& rng) {
    const int rows = rng.uniform(1, 10), heads = rng.uniform(1, 5), d = rng.pick({8, 16, 24, 64, 128, 160});
    SCOPED_TRACE(std::to_string(heads) + " heads of " + std::to_string(d));
    const Rows o = wild_rows(rng, rows, heads * d), z = wild_rows(rng, rows, heads * d), gain = gains(rng, d);
    const OnDevice in(*backend_, o, 3), gate(*backend_, z, 1), g(*backend_, gain);
    const OnDevice out(*backend_, rows, o.cols, 2), place(*backend_, o);
    backend_->gated_norm(in, gate, g, 1e-6f, out);
    EXPECT_TRUE(within(out.read(), multiply(rms_norm(Estimates(o), gain, 1e-6f), silu(Estimates(z)))));
    backend_->gated_norm(place, gate, g, 1e-6f, place);
    EXPECT_TRUE(same_bits(out.read(), place.read()));
  });
}

TEST_P(Pointwise, RowsAreTheirOwn) {
  for_cases(5, 13000, [&](Rng& rng) {
    const int rows = rng.uniform(2, 40), n = any_width(rng);
    const Rows x = wild_rows(rng, rows, n), gain = gains(rng, n);
    const OnDevice in(*backend_, x), g(*backend_, gain), out(*backend_, rows, n);
    backend_->rms_norm(in, g, 1e-6f, out);
    const int r = rng.uniform(0, rows - 1);
    const OnDevice one(*backend_, x.slice(r, 1), 4), out_one(*backend_, 1, n);
    backend_->rms_norm(one, g, 1e-6f, out_one);
    EXPECT_TRUE(same_bits(out.read().slice(r, 1), out_one.read()));
  });
}

// cos and sin of fl(position * frequency), far out as well: the angle is rounded to fp32, its cosine is not.
TEST_P(Pointwise, RopeAnglesStayAccurateToTheEndOfALongContext) {
  for_cases(10, 14000, [&](Rng& rng) {
    const int n = rng.pick({1, 5, 16, 32, 64});
    const float m = rng.pick({1.0f, 1.138629f});
    Rows f(1, n);
    for (int i = 0; i < n; ++i) f.v[size_t(i)] = float(std::pow(1e7, -double(i) / n));
    const std::vector<SeqStep> seqs = {{.first_row = 0, .n_rows = 3, .start = 0},
                                       {.first_row = 3, .n_rows = 5, .start = rng.uniform(1, 4096)},
                                       {.first_row = 8, .n_rows = 2, .start = 262140}};
    const OnDevice frequencies(*backend_, f), out(*backend_, 10, 2 * n, rng.uniform(0, 3));
    backend_->rope_angles({.path = Path::prefill, .n_rows = 10, .seqs = seqs}, frequencies, m, out);
    Estimates want(10, 2 * n);
    for (const SeqStep& seq : seqs) {
      for (int t = 0; t < seq.n_rows; ++t) {
        for (int i = 0; i < n; ++i) {
          const double angle = float(seq.start + t) * f.v[size_t(i)];
          // A cosine within 1 ulp, times m.
          want.at(seq.first_row + t, i) = {std::cos(angle) * m, 4 * kU * m};
          want.at(seq.first_row + t, n + i) = {std::sin(angle) * m, 4 * kU * m};
        }
      }
    }
    EXPECT_TRUE(within(out.read(), want));
  });
}

// What a sampler at temperature 0 chooses, to the token: among equals the first, and nothing where a logit is
// no finite number.
TEST_P(Pointwise, TheGreedyChoiceIsTheFirstOfTheHighest) {
  for_cases(40, 15000, [&](Rng& rng) {
    const int rows = rng.pick({1, 1, 2, 5, 32}), gap = rng.pick({0, 0, 1, 4});
    const int cols = rng.pick({1, 3, 31, 512, 2047, 2048, 2049, 9000, 30000}), n = rng.uniform(1, cols);
    SCOPED_TRACE(std::to_string(n) + " of [" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
    Rows logits = wild_rows(rng, rows, cols);
    std::vector<int32_t> want;
    for (int r = 0; r < rows; ++r) {
      float* row = logits.row(r);
      switch (rng.uniform(0, 5)) {
        case 0:  // many equals
          for (int c = 0; c < cols; ++c) row[c] = float(rng.uniform(0, 3));
          break;
        case 1:  // zeros of both signs
          for (int c = 0; c < cols; ++c) row[c] = rng.pick({0.0f, -0.0f, -1.0f});
          break;
        case 2:  // no number among those that count, or behind them
          row[rng.uniform(0, cols - 1)] = rng.pick({NAN, -NAN, INFINITY, -INFINITY});
          break;
        case 3:
          for (int c = 0; c < cols; ++c) row[c] = -std::numeric_limits<float>::max();
          break;
        default:
          break;
      }
      const bool finite = std::all_of(row, row + n, [](float x) { return std::isfinite(x); });
      want.push_back(finite ? int32_t(std::max_element(row, row + n) - row) : -1);
    }
    IntsOnDevice names(*backend_, 1, cols);
    std::vector<int32_t> name_of;
    for (int c = 0; c < cols; ++c) name_of.push_back(7 + 3 * c);
    names.write(name_of);
    const bool named = rng.uniform(0, 1) == 0;
    for (int32_t& id : want) id = named && id >= 0 ? name_of[size_t(id)] : id;
    const OnDevice in(*backend_, logits, gap);
    const IntsOnDevice ids(*backend_, rows, 1);
    backend_->choose_greedy(in, n, named ? View(names.view()) : View{}, ids.view());
    EXPECT_EQ(ids.read(), want);
  });
}

TEST_P(Pointwise, TheBestLogitsComeInOrder) {
  for_cases(40, 16000, [&](Rng& rng) {
    const int rows = rng.pick({1, 1, 2, 9}), gap = rng.uniform(0, 3);
    const int cols = rng.pick({1, 64, 65, 300, 2049, 5000, 20000}), n = rng.uniform(std::min(cols, 64), cols);
    const int k = rng.uniform(1, std::min(n, Backend::kMostBest));
    SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(n) + " of [" + std::to_string(rows) + ", " +
                 std::to_string(cols) + "]");
    Rows logits = wild_rows(rng, rows, cols);
    for (int r = 0; r < rows; ++r) {
      float* row = logits.row(r);
      switch (rng.uniform(0, 4)) {
        case 0:
          for (int c = 0; c < cols; ++c) row[c] = float(rng.uniform(0, 30)) - 15;
          break;
        case 1:  // each better than those before
          for (int c = 0; c < cols; ++c) row[c] = float(c);
          break;
        case 2:
          for (int c = 0; c < cols; ++c) row[c] = -3;
          break;
        case 3:
          for (int c = 0; c < cols; ++c) row[c] = rng.uniform(0, 1) == 0 ? rng.normal() : NAN;
          break;
        default:
          break;
      }
    }
    const OnDevice in(*backend_, logits, gap), values(*backend_, rows, k, gap);
    const IntsOnDevice ids(*backend_, rows, k);
    backend_->choose_best(in, n, values, ids.view());
    const Rows got = values.read();
    const std::vector<int32_t> got_ids = ids.read();
    for (int r = 0; r < rows; ++r) {
      const float* row = logits.row(r);
      const int32_t* id = got_ids.data() + r * k;
      if (!std::all_of(row, row + n, [](float x) { return std::isfinite(x); })) {
        EXPECT_EQ(id[0], -1) << "row " << r;
        continue;
      }
      std::vector<int32_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
      order.resize(size_t(k));
      EXPECT_EQ(std::vector<int32_t>(id, id + k), order) << "row " << r;
      for (int i = 0; i < k; ++i) EXPECT_EQ(got.at(r, i), row[order[size_t(i)]]) << "row " << r << ", " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Pointwise, testing::ValuesIn(all_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
