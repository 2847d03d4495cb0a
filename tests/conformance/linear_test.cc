// Embedding and matrix products.
#include <algorithm>
#include <numeric>

#include "backend/random_weights.h"
#include "conformance/estimate.h"
#include "conformance/harness.h"

namespace tandem::conformance {
namespace {

WeightFormat random_format(Rng& rng) {
  if (rng.uniform(0, 3) == 0) return {.dtype = rng.pick({DType::f32, DType::bf16, DType::f16})};
  return {.dtype = rng.pick({DType::bf16, DType::bf16, DType::f16, DType::f32}),
          .bits = rng.pick({2, 3, 4, 5, 6, 8}),
          .group = rng.pick({32, 64, 128})};
}

// A random weight: one to three matrices below each other, formats mixed now and then.
struct Problem {
  int k = 0, n = 0, n_slices = 1;
  std::vector<std::unique_ptr<RandomMatrix>> parts;
  std::vector<float> bias;

  explicit Problem(Rng& rng) {
    const int n_parts = rng.pick({1, 1, 2, 3});
    std::vector<WeightFormat> formats(size_t(n_parts), random_format(rng));
    if (rng.uniform(0, 2) == 0) {
      for (WeightFormat& f : formats) f = random_format(rng);
    }
    int unit = 1;
    for (const WeightFormat& f : formats) unit = std::lcm(unit, f.affine() ? f.group : 1);
    n_slices = rng.pick({1, 1, 2, 4, 8});
    if (n_slices > 1 && unit > 1) unit = std::lcm(unit, kSliceColumns);
    k = n_slices * unit * rng.uniform(1, std::max(1, (unit > 1 ? 700 : 300) / (n_slices * unit)));
    for (const WeightFormat& f : formats) {
      const int rows = rng.uniform(1, 70);
      parts.push_back(std::make_unique<RandomMatrix>(rng, rows, k, f));
      n += rows;
    }
    if (rng.uniform(0, 2) == 0) {
      for (int i = 0; i < n; ++i) bias.push_back(rng.normal());
    }
  }

  std::string text() const {
    std::string s = "k " + std::to_string(k) + " in " + std::to_string(n_slices) + " slices, n " +
                    std::to_string(n) + (bias.empty() ? "" : " with bias");
    return s;
  }
  LinearSpec spec() const { return {.parts = matrices(), .bias = bias}; }
  std::vector<const RandomMatrix*> matrices() const {
    std::vector<const RandomMatrix*> out;
    for (const auto& p : parts) out.push_back(p.get());
    return out;
  }
  std::unique_ptr<Weight> pack_on(Backend& backend) const {
    auto w = pack(backend, matrices(), {.n_slices = n_slices, .bias = bias});
    const Weight* weights[] = {w.get()};
    EXPECT_TRUE(backend.reserve({.max_rows = 600, .weights = weights}).ok());
    return w;
  }
};

Rows run_linear(Backend& backend, Path path, const Rows& x, const Weight& w, int gap = 0) {
  const OnDevice in(backend, x, gap), out(backend, x.rows, w.n(), gap);
  backend.linear(path, in, w, out);
  return out.read();
}

Rows run_linear_add(Backend& backend, Path path, const Rows& x, const Weight& w, const Rows& residual,
                    int gap) {
  const OnDevice in(backend, x, gap), out(backend, residual, gap);
  backend.linear_add(path, in, w, out);
  return out.read();
}

// Activations of a real model: a few columns are far larger than the rest, some rows are zero.
Rows activations(Rng& rng, int rows, int k) {
  Rows x = normal_rows(rng, rows, k);
  for (int i = 0; i < 3; ++i) {
    const int column = rng.uniform(0, k - 1);
    for (int r = 0; r < rows; ++r) x.at(r, column) *= 20;
  }
  if (rng.uniform(0, 3) == 0) std::fill_n(x.row(rng.uniform(0, rows - 1)), k, 0.0f);
  return x;
}

class Linear : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam());
  const Arithmetic arithmetic_ = arithmetic_of(backend_->name());
};

TEST_P(Linear, ProductsMatchTheirFormulaForEveryFormat) {
  for_cases(30, 1000, [&](Rng& rng) {
    const Problem problem(rng);
    const auto w = problem.pack_on(*backend_);
    const Path path = rng.pick({Path::decode, Path::prefill});
    const int rows = rng.pick({1, 2, 5, 16, 31, 33, 40}), gap = rng.uniform(0, 9);
    SCOPED_TRACE(problem.text() + ", rows " + std::to_string(rows) + ", path " + std::to_string(int(path)));
    const Rows x = activations(rng, rows, problem.k), residual = normal_rows(rng, rows, problem.n);
    const Estimates want = linear(Estimates(x), problem.spec(), activations_of(arithmetic_));
    EXPECT_TRUE(within(run_linear(*backend_, path, x, *w, gap), want));
    EXPECT_TRUE(
        within(run_linear_add(*backend_, path, x, *w, residual, gap), add(want, Estimates(residual))));
  });
}

TEST_P(Linear, ARowOfAProductIsItsOwnWhateverSharesTheStep) {
  for_cases(12, 2000, [&](Rng& rng) {
    const Problem problem(rng);
    const auto w = problem.pack_on(*backend_);
    const int rows = rng.uniform(2, 80);
    SCOPED_TRACE(problem.text() + ", rows " + std::to_string(rows));
    const Rows x = activations(rng, rows, problem.k);
    for (const Path path : {Path::decode, Path::prefill}) {
      const Rows all = run_linear(*backend_, path, x, *w);
      for (int i = 0; i < 6; ++i) {
        // Any rows in any order, at any place.
        std::vector<int> which(size_t(rng.pick({1, 1, 2, 3, 7, 16, 32, 33})));
        for (int& r : which) r = rng.uniform(0, rows - 1);
        ASSERT_TRUE(
            same_bits(all.gather(which), run_linear(*backend_, path, x.gather(which), *w, rng.uniform(0, 5))))
            << which.size() << " rows, path " << int(path);
      }
    }
  });
}

// Prompts: what a chunk of hundreds of rows makes of a row does not depend on where it was cut.
TEST_P(Linear, ARowOfAPromptIsTheSameInEveryChunk) {
  for_cases(16, 2500, [&](Rng& rng) {
    const Problem problem(rng);
    const auto w = problem.pack_on(*backend_);
    const int rows = rng.uniform(65, 420);
    SCOPED_TRACE(problem.text() + ", rows " + std::to_string(rows));
    const Rows x = activations(rng, rows, problem.k), residual = normal_rows(rng, rows, problem.n);
    const Rows y = run_linear(*backend_, Path::prefill, x, *w, rng.uniform(0, 5));
    const Rows sum = run_linear_add(*backend_, Path::prefill, x, *w, residual, rng.uniform(0, 5));
    for (int first = 0; first < rows;) {
      const int n = std::min(rows - first, 64 * rng.pick({1, 1, 2, 3}));
      const Rows some = x.slice(first, n);
      ASSERT_TRUE(same_bits(y.slice(first, n), run_linear(*backend_, Path::prefill, some, *w)))
          << "rows from " << first;
      ASSERT_TRUE(same_bits(sum.slice(first, n),
                            run_linear_add(*backend_, Path::prefill, some, *w, residual.slice(first, n), 0)))
          << "rows from " << first;
      first += n;
    }
  });
}

TEST_P(Linear, OutputsDoNotDependOnWhatTheyAreMergedWith) {
  for_cases(8, 3000, [&](Rng& rng) {
    const Problem problem(rng);
    const auto merged = problem.pack_on(*backend_);
    SCOPED_TRACE(problem.text());
    const Rows x = activations(rng, 3, problem.k);
    const Rows all = run_linear(*backend_, Path::decode, x, *merged);
    int first = 0;
    for (const auto& part : problem.parts) {
      const int n = part->host().n;
      PackOptions options{.n_slices = problem.n_slices};
      if (!problem.bias.empty())
        options.bias.assign(&problem.bias[size_t(first)], &problem.bias[size_t(first)] + n);
      const auto alone = pack(*backend_, {part.get()}, options);
      const Rows y = run_linear(*backend_, Path::decode, x, *alone);
      for (int r = 0; r < x.rows; ++r) {
        const Rows want(1, n, std::vector<float>(all.row(r) + first, all.row(r) + first + n));
        ASSERT_TRUE(same_bits(want, y.slice(r, 1))) << "outputs from " << first;
      }
      first += n;
    }
  });
}

TEST_P(Linear, NotANumberIsNotHidden) {
  for_cases(6, 3500, [&](Rng& rng) {
    const Problem problem(rng);
    const auto w = problem.pack_on(*backend_);
    SCOPED_TRACE(problem.text());
    Rows x = activations(rng, 3, problem.k);
    const Rows before = run_linear(*backend_, Path::decode, x, *w);
    x.at(1, rng.uniform(0, problem.k - 1)) = rng.pick({std::nanf(""), HUGE_VALF});
    const Rows y = run_linear(*backend_, Path::decode, x, *w);
    for (int i = 0; i < problem.n; ++i) EXPECT_FALSE(std::isfinite(y.at(1, i))) << "output " << i;
    EXPECT_TRUE(same_bits(before.slice(0, 1), y.slice(0, 1)));
    EXPECT_TRUE(same_bits(before.slice(2, 1), y.slice(2, 1)));
  });
}

TEST_P(Linear, EmbeddingRowsAreTheTablesRows) {
  for_cases(10, 4000, [&](Rng& rng) {
    const Problem problem(rng);
    const auto w = pack(*backend_, problem.matrices());
    SCOPED_TRACE(problem.text());
    std::vector<int32_t> ids(size_t(rng.uniform(1, 20)));
    for (int32_t& id : ids) id = rng.uniform(0, problem.n - 1);
    const OnDevice out(*backend_, int(ids.size()), problem.k, rng.uniform(0, 3));
    backend_->embed(*w, ids, out);
    Estimates want(int(ids.size()), problem.k);
    for (int r = 0; r < want.rows; ++r) {
      int row = ids[size_t(r)];
      size_t part = 0;
      while (row >= problem.parts[part]->host().n) row -= problem.parts[part++]->host().n;
      const RandomMatrix& m = *problem.parts[part];
      for (int j = 0; j < want.cols; ++j) {
        const double bound = m.host().affine() ? 2 * kU * m.magnitude(row, j) : 0;
        want.at(r, j) = {m.value(row, j), bound};
      }
    }
    const Rows rows = out.read();
    EXPECT_TRUE(within(rows, want));

    // The same of ids that lie on the device; -1 leaves a row as it is.
    IntsOnDevice chosen(*backend_, rows.rows, 1);
    const OnDevice of_chosen(*backend_, rows.rows, problem.k, rng.uniform(0, 3));
    const Rows before = of_chosen.read();
    Rows want_chosen = rows;
    for (int r = 0; r < rows.rows; ++r) {
      if (rng.uniform(0, 3) != 0) continue;
      ids[size_t(r)] = -1;
      std::copy_n(before.row(r), problem.k, want_chosen.row(r));
    }
    chosen.write(ids);
    backend_->embed_chosen(*w, chosen.view(), of_chosen);
    EXPECT_TRUE(same_bits(of_chosen.read(), want_chosen));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Linear, testing::ValuesIn(all_backends()), test_name);

// Backends that draw synthetic matrices themselves.
std::vector<std::string> drawing_backends() {
  std::vector<std::string> names = all_backends();
  std::erase_if(names, [](const std::string& name) { return name != "cuda"; });
  return names;
}
class DrawnWeights : public Linear {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DrawnWeights);

TEST_P(DrawnWeights, AMatrixGivenByItsFormulaIsTheOneTheHostDraws) {
  ASSERT_TRUE(backend_->makes_random_weights());
  for_cases(16, 4500, [&](Rng& rng) {
    HostMatrix formula{.name = "drawn", .n = rng.uniform(1, 70), .k = 0, .dtype = DType::bf16};
    formula.random = RandomWeights{.key = rng.next(), .deviation = rng.real(0.01f, 0.1f)};
    if (rng.uniform(0, 3) > 0) {
      formula.bits = rng.pick({2, 3, 4, 5, 6, 8});
      formula.group = rng.pick({32, 64, 128});
    }
    formula.k = std::max(1, formula.group) * rng.uniform(1, formula.affine() ? 7 : 300);
    SCOPED_TRACE(std::to_string(formula.n) + " x " + std::to_string(formula.k) + ", " +
                 std::to_string(formula.bits) + " bits, groups of " + std::to_string(formula.group));
    std::vector<std::byte> data(size_t(formula.n * formula.row_bytes())), scales, biases;
    draw_weights(formula, 0, data);
    HostMatrix drawn = formula;
    drawn.random.reset();
    drawn.data = data.data();
    if (drawn.affine()) {
      const RandomScale s = random_scale(formula.random->deviation, formula.bits);
      for (int i = 0; i < drawn.n * (drawn.k / drawn.group); ++i) {
        const auto put = [](std::vector<std::byte>& to, uint16_t bits) {
          to.push_back(std::byte(bits & 0xff));
          to.push_back(std::byte(bits >> 8));
        };
        put(scales, s.scale);
        put(biases, s.bias);
      }
      drawn.scales = scales.data();
      drawn.biases = biases.data();
    }
    std::vector<int32_t> ids(size_t(formula.n));
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<Rows> tables;
    for (const HostMatrix* m : {&formula, &drawn}) {
      const RowRun runs[] = {{m, formula.n / 2, formula.n - formula.n / 2},
                             {m, 0, std::max(1, formula.n / 2)}};
      const auto w = backend_->pack({.name = m->name, .rows = runs});
      ASSERT_TRUE(w.ok()) << w.error().message;
      const OnDevice out(*backend_, formula.n, formula.k);
      backend_->embed(**w, ids, out);
      tables.push_back(out.read());
    }
    ASSERT_TRUE(same_bits(tables[0], tables[1]));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, DrawnWeights, testing::ValuesIn(drawing_backends()), test_name);

class LinearAgainstReference : public Linear {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinearAgainstReference);

TEST_P(LinearAgainstReference, RoundedActivationsCostAtMostHalfAStepEach) {
  const auto reference = make("reference");
  for_cases(12, 5000, [&](Rng& rng) {
    const Problem problem(rng);
    const auto w = problem.pack_on(*backend_), w_reference = problem.pack_on(*reference);
    SCOPED_TRACE(problem.text());
    const Rows x = activations(rng, 4, problem.k);
    Estimates want = linear(Estimates(x), problem.spec(), Activations::uncertain);
    const Rows exact = run_linear(*reference, Path::decode, x, *w_reference);
    for (size_t i = 0; i < want.v.size(); ++i) want.v[i].value = exact.v[i];
    EXPECT_TRUE(within(run_linear(*backend_, Path::decode, x, *w), want));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearAgainstReference, testing::ValuesIn(fast_backends()), test_name);

// The slices' tree, spelled out: ((s0 + s1) + (s2 + s3)) + ..., slices as products of their own.
TEST(ReferenceLinear, SlicesAreSummedApartAndAddedInABinaryTree) {
  const auto backend = make("reference");
  for_cases(10, 6000, [&](Rng& rng) {
    const int n_slices = rng.pick({2, 4, 8}), width = rng.uniform(1, 40), n = rng.uniform(1, 20);
    const RandomMatrix whole(rng, n, n_slices * width, {.dtype = DType::f32});
    const auto w = pack(*backend, {&whole}, {.n_slices = n_slices});
    const Rows x = normal_rows(rng, 3, whole.host().k);
    std::vector<Rows> parts;
    for (int s = 0; s < n_slices; ++s) {
      std::vector<float> values;
      for (int i = 0; i < n; ++i) {
        for (int j = 0; j < width; ++j) values.push_back(float(whole.value(i, s * width + j)));
      }
      const HostMatrix m{
          .name = "slice", .n = n, .k = width, .data = reinterpret_cast<const std::byte*>(values.data())};
      const RowRun run{&m, 0, n};
      auto slice = backend->pack({.name = "slice", .rows = {&run, 1}, .bias = {}});
      ASSERT_TRUE(slice.ok());
      Rows columns(x.rows, width);
      for (int r = 0; r < x.rows; ++r) std::copy_n(x.row(r) + s * width, width, columns.row(r));
      parts.push_back(run_linear(*backend, Path::decode, columns, **slice));
    }
    while (parts.size() > 1) {
      std::vector<Rows> next;
      for (size_t i = 0; i < parts.size(); i += 2) {
        next.push_back(parts[i]);
        for (size_t j = 0; j < next.back().v.size(); ++j) next.back().v[j] += parts[i + 1].v[j];
      }
      parts = next;
    }
    EXPECT_TRUE(same_bits(parts[0], run_linear(*backend, Path::decode, x, *w)));
  });
}

}  // namespace
}  // namespace tandem::conformance
