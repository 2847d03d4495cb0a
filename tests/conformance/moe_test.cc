// Sparse mixtures of experts: routing, and the weighted sum of expert outputs.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "conformance/estimate.h"
#include "conformance/harness.h"

namespace tandem::conformance {
namespace {

// A random mixture and where its matrices are.
struct Problem {
  int hidden = 0, n_experts = 0, top_k = 0, width = 0, shared = 0, n_slices = 1;
  std::unique_ptr<RandomMatrix> gate_up, down, shared_gate_up, shared_down, shared_gate;

  // dense_unit: columns and rows of dense matrices are multiples of it.
  explicit Problem(Rng& rng, int dense_unit = 1) {
    const WeightFormat format =
        rng.uniform(0, 2) == 0
            ? WeightFormat{.dtype = rng.pick({DType::f32, DType::bf16, DType::f16})}
            : WeightFormat{.bits = rng.pick({2, 3, 4, 5, 6, 8}), .group = rng.pick({32, 64})};
    const int unit = format.affine() ? format.group : dense_unit;
    const auto widths = [&](int units, int most) {
      return units * rng.uniform(1, std::max(1, most / units));
    };
    n_slices = rng.pick({1, 2, 4});
    const int slice_unit = n_slices == 1 ? unit : std::lcm(unit, format.affine() ? kSliceColumns : 1);
    hidden = widths(unit, 130);
    width = widths(n_slices * slice_unit, 260);
    shared = rng.uniform(0, 1) == 0 ? 0 : widths(n_slices * slice_unit, 260);
    n_experts = rng.uniform(1, 12);
    top_k = rng.uniform(1, std::min(8, n_experts));
    gate_up = std::make_unique<RandomMatrix>(rng, n_experts * 2 * width, hidden, format);
    down = std::make_unique<RandomMatrix>(rng, n_experts * hidden, width, format);
    if (shared > 0) {
      shared_gate_up = std::make_unique<RandomMatrix>(rng, 2 * shared, hidden, format);
      shared_down = std::make_unique<RandomMatrix>(rng, hidden, shared, format);
      // Published folders keep it in other bits than the experts.
      shared_gate = std::make_unique<RandomMatrix>(
          rng, 1, hidden, rng.uniform(0, 2) == 0 ? WeightFormat{.dtype = DType::bf16} : format);
    }
  }

  std::string text() const {
    return std::to_string(top_k) + " of " + std::to_string(n_experts) + " experts, " +
           std::to_string(hidden) + " x " + std::to_string(width) + " in " + std::to_string(n_slices) +
           " slices, shared " + std::to_string(shared);
  }
};

class Mixture {
 public:
  Mixture(Backend& backend, const Problem& p, int max_rows) : backend_(&backend), problem_(&p) {
    const auto add = [&](const RandomMatrix& m, const PackOptions& options) {
      weights_.push_back(pack(backend, {&m}, options));
      return weights_.back().get();
    };
    moe_ = {.gate_up = add(*p.gate_up, {.n_experts = p.n_experts}),
            .down = add(*p.down, {.n_experts = p.n_experts, .n_slices = p.n_slices}),
            .top_k = p.top_k};
    if (p.shared > 0) {
      moe_.shared_gate_up = add(*p.shared_gate_up, {});
      moe_.shared_down = add(*p.shared_down, {.n_slices = p.n_slices});
      moe_.shared_gate = add(*p.shared_gate, {});
    }
    std::vector<const Weight*> all;
    for (const auto& w : weights_) all.push_back(w.get());
    EXPECT_TRUE(backend.reserve({.max_rows = max_rows, .weights = all, .moe_top_k = p.top_k}).ok());
  }

  // residual + mixture. ids [rows * top_k], choice [rows, top_k].
  Rows run(Path path, const Rows& x, const std::vector<int32_t>& ids, const Rows& choice,
           const Rows& residual) {
    const OnDevice in(*backend_, x, 3), weights(*backend_, choice, 1), out(*backend_, residual, 2);
    IntsOnDevice chosen(*backend_, x.rows, problem_->top_k);
    chosen.write(ids);
    backend_->moe_experts(
        path, {.x = in, .weights = moe_, .ids = chosen.view(), .choice_weights = weights, .residual = out});
    return out.read();
  }

 private:
  Backend* backend_;
  const Problem* problem_;
  std::vector<std::unique_ptr<Weight>> weights_;
  MoeWeights moe_;
};

// top_k distinct experts in ascending order.
std::vector<int32_t> random_choice(Rng& rng, const Problem& p) {
  std::vector<int32_t> all(size_t(p.n_experts));
  std::iota(all.begin(), all.end(), 0);
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[size_t(rng.uniform(0, int(i) - 1))]);
  all.resize(size_t(p.top_k));
  std::sort(all.begin(), all.end());
  return all;
}

Rows random_weights(Rng& rng, int rows, int top_k) {
  Rows w(rows, top_k);
  for (float& x : w.v) x = rng.real(0, 1);
  return w;
}

Estimates mixture(const Problem& p, const Rows& x, const std::vector<int32_t>& ids, const Rows& choice,
                  const Rows& residual, Activations activations) {
  // Besides its product's own roundings, a term meets one per expert of the row's mixture, and its weight's.
  const int extra = p.top_k + 3;
  Estimates out(x.rows, p.hidden);
  for (int r = 0; r < x.rows; ++r) {
    const Estimates in(x.slice(r, 1));
    for (int i = 0; i < p.hidden; ++i) out.at(r, i).value = residual.at(r, i);
    const auto mix = [&](const Estimates& y, const Estimate& weight) {
      for (int i = 0; i < p.hidden; ++i) {
        const Estimate& e = y.at(0, i);
        out.at(r, i).value += weight.value * e.value;
        out.at(r, i).bound += weight.value * e.bound + weight.bound * (std::abs(e.value) + e.bound);
      }
    };
    for (int c = 0; c < p.top_k; ++c) {
      const int expert = ids[size_t(r * p.top_k + c)];
      const Estimates gate_up = linear(
          in, {.parts = {p.gate_up.get()}, .first_row = expert * 2 * p.width, .n = 2 * p.width}, activations);
      mix(linear(silu_mul(gate_up),
                 {.parts = {p.down.get()},
                  .first_row = expert * p.hidden,
                  .n = p.hidden,
                  .extra_roundings = extra},
                 activations),
          {choice.at(r, c), 0});
    }
    if (p.shared > 0) {
      const Estimates gate_up = linear(in, {.parts = {p.shared_gate_up.get()}}, activations);
      const Estimates gate = linear(in, {.parts = {p.shared_gate.get()}}, activations);
      mix(linear(silu_mul(gate_up), {.parts = {p.shared_down.get()}, .extra_roundings = extra}, activations),
          sigmoid(gate.at(0, 0)));
    }
    for (int i = 0; i < p.hidden; ++i) out.at(r, i).bound += kU * std::abs(out.at(r, i).value);
  }
  return out;
}

class MixtureOps : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam());
};

TEST_P(MixtureOps, RoutingTakesTheHighestLogitsTiesToTheLowerId) {
  for_cases(30, 40000, [&](Rng& rng) {
    const int rows = rng.uniform(1, 20), n = rng.pick({1, 2, 8, 17, 60, 128, 512}),
              top_k = rng.uniform(1, std::min(n, 10));
    const bool normalise = rng.uniform(0, 1) == 1, ties = rng.uniform(0, 1) == 1;
    SCOPED_TRACE(std::to_string(top_k) + " of " + std::to_string(n) + (normalise ? ", normalised" : ""));
    Rows logits = normal_rows(rng, rows, n, rng.pick({1.0f, 30.0f}));
    if (ties) {
      for (float& x : logits.v) x = float(rng.uniform(-2, 2));
    }
    const OnDevice in(*backend_, logits, 3), weights(*backend_, rows, top_k, 1);
    const IntsOnDevice ids(*backend_, rows, top_k);
    backend_->moe_route(in, normalise, ids.view(), weights);

    std::vector<int32_t> want_ids;
    Estimates want(rows, top_k);
    for (int r = 0; r < rows; ++r) {
      std::vector<int32_t> chosen;
      for (int e = 0; e < n; ++e) {  // chosen if fewer than top_k come before it
        int before = 0;
        for (int o = 0; o < n; ++o) {
          before += logits.at(r, o) > logits.at(r, e) || (logits.at(r, o) == logits.at(r, e) && o < e);
        }
        if (before < top_k) chosen.push_back(e);
      }
      const double highest = *std::max_element(logits.row(r), logits.row(r) + n);
      double total = 0;
      for (int e = 0; e < n; ++e) {
        if (!normalise || std::count(chosen.begin(), chosen.end(), e))
          total += std::exp(logits.at(r, e) - highest);
      }
      for (int c = 0; c < top_k; ++c) {
        const double below = logits.at(r, chosen[size_t(c)]) - highest, value = std::exp(below) / total;
        // The difference rounds once; numerator and sum each carry exp's error.
        const double relative = (2 * kExp + std::abs(below) + lane_depth(n) + 3) * kU;
        want.at(r, c) = {value, relative * value + kTiny};
      }
      want_ids.insert(want_ids.end(), chosen.begin(), chosen.end());
    }
    EXPECT_EQ(ids.read(), want_ids);
    EXPECT_TRUE(within(weights.read(), want));
  });
}

// A row that has gone wrong must not reach beyond the experts there are.
TEST_P(MixtureOps, NotANumberCountsAsLowest) {
  const float nan = std::nanf("");
  Rows logits(3, 40, nan);
  logits.at(1, 7) = 1;
  logits.at(1, 30) = 2;
  for (int e = 0; e < 40; ++e) logits.at(2, e) = float(e);
  const OnDevice in(*backend_, logits), weights(*backend_, 3, 3);
  const IntsOnDevice ids(*backend_, 3, 3);
  backend_->moe_route(in, true, ids.view(), weights);
  EXPECT_EQ(ids.read(), (std::vector<int32_t>{0, 1, 2, 0, 7, 30, 37, 38, 39}));
}

TEST_P(MixtureOps, TheMixtureMatchesItsFormula) {
  for_cases(8, 41000, [&](Rng& rng) {
    const Problem p(rng);
    const int rows = rng.uniform(1, 6);
    SCOPED_TRACE(p.text() + ", rows " + std::to_string(rows));
    Mixture m(*backend_, p, rows);
    std::vector<int32_t> ids;
    for (int r = 0; r < rows; ++r) {
      const std::vector<int32_t> choice = random_choice(rng, p);
      ids.insert(ids.end(), choice.begin(), choice.end());
    }
    const Rows x = normal_rows(rng, rows, p.hidden), choice = random_weights(rng, rows, p.top_k),
               residual = normal_rows(rng, rows, p.hidden);
    const Path path = rng.pick({Path::decode, Path::prefill});
    EXPECT_TRUE(
        within(m.run(path, x, ids, choice, residual),
               mixture(p, x, ids, choice, residual, activations_of(arithmetic_of(backend_->name())))));
  });
}

TEST_P(MixtureOps, ARowIsItsOwnHoweverRowsGatherAtExperts) {
  for_cases(10, 42000, [&](Rng& rng) {
    const Problem p(rng);
    const int rows = rng.uniform(2, 70);
    SCOPED_TRACE(p.text() + ", rows " + std::to_string(rows));
    Mixture m(*backend_, p, rows);
    // All rows at the same experts, or each at its own.
    const bool crowd = rng.uniform(0, 1) == 1;
    std::vector<int32_t> ids;
    const std::vector<int32_t> common = random_choice(rng, p);
    for (int r = 0; r < rows; ++r) {
      const std::vector<int32_t> choice = crowd ? common : random_choice(rng, p);
      ids.insert(ids.end(), choice.begin(), choice.end());
    }
    const Rows x = normal_rows(rng, rows, p.hidden), choice = random_weights(rng, rows, p.top_k),
               residual = normal_rows(rng, rows, p.hidden);
    for (const Path path : {Path::decode, Path::prefill}) {
      const Rows all = m.run(path, x, ids, choice, residual);
      for (int i = 0; i < 5; ++i) {
        const int r = rng.uniform(0, rows - 1);
        const std::vector<int32_t> own(ids.begin() + r * p.top_k, ids.begin() + (r + 1) * p.top_k);
        ASSERT_TRUE(same_bits(all.slice(r, 1),
                              m.run(path, x.slice(r, 1), own, choice.slice(r, 1), residual.slice(r, 1))))
            << "row " << r << ", path " << int(path);
      }
    }
  });
}

TEST_P(MixtureOps, ARowOfAPromptIsTheSameInEveryChunk) {
  for_cases(16, 43000, [&](Rng& rng) {
    const Problem p(rng, 16);
    const int rows = rng.uniform(65, 300);
    SCOPED_TRACE(p.text() + ", rows " + std::to_string(rows));
    Mixture m(*backend_, p, rows);
    // Few experts that most rows choose, and some that none does.
    const std::vector<int32_t> common = random_choice(rng, p);
    std::vector<int32_t> ids;
    for (int r = 0; r < rows; ++r) {
      const std::vector<int32_t> choice = rng.uniform(0, 3) > 0 ? common : random_choice(rng, p);
      ids.insert(ids.end(), choice.begin(), choice.end());
    }
    const Rows x = normal_rows(rng, rows, p.hidden), choice = random_weights(rng, rows, p.top_k),
               residual = normal_rows(rng, rows, p.hidden);
    const Rows all = m.run(Path::prefill, x, ids, choice, residual);
    for (int first = 0; first < rows;) {
      const int n = std::min(rows - first, 64 * rng.pick({1, 1, 2, 3}));
      const std::vector<int32_t> own(ids.begin() + first * p.top_k, ids.begin() + (first + n) * p.top_k);
      ASSERT_TRUE(same_bits(all.slice(first, n), m.run(Path::prefill, x.slice(first, n), own,
                                                       choice.slice(first, n), residual.slice(first, n))))
          << "rows from " << first;
      first += n;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MixtureOps, testing::ValuesIn(all_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
