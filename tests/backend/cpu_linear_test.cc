// Matrix products of the cpu backend: the exact arithmetic that linear.h fixes, for every format and
// instruction set, and what follows from it (rows, threads, blocks and instruction sets never change a bit).
#include "backend/cpu/linear.h"

#include <gtest/gtest.h>

#include "backend/linear_test_util.h"
#include "support/count_allocations.h"

namespace tandem::cpu {
namespace {

ThreadTeam& team() {
  static ThreadTeam team(2);
  return team;
}

PackedLinear pack(const LinearShape& shape, std::span<const RowRun> runs) {
  HugeArena arena;
  Result<PackedLinear> packed = pack_linear(team(), arena, shape, runs);
  EXPECT_TRUE(packed.ok());
  return *std::move(packed);
}

PackedLinear pack(const TestMatrix& m, int n_slices = 1) {
  const RowRun run{&m.host, 0, m.host.n};
  return pack({linear_format(m.host), m.host.n, m.host.k, n_slices}, {&run, 1});
}

// Rows of activations in the form that either kind of weight reads.
struct Inputs {
  int rows, k;
  std::vector<float> values;
  std::vector<ActivationGroup> groups;
  std::vector<uint16_t> halves;

  Inputs(Isa isa, int n_rows, int n_columns, std::vector<float> x)
      : rows(n_rows),
        k(n_columns),
        values(std::move(x)),
        groups(size_t(rows) * size_t(activation_groups(k))),
        halves(size_t(rows) * size_t(k + k % 2)) {
    quantize_rows(team(), isa, values.data(), k, quantized());
    round_rows(team(), isa, values.data(), k, rounded());
  }
  QuantizedRows quantized() { return {groups.data(), rows, k}; }
  RoundedRows rounded() { return {halves.data(), rows, k}; }
  LinearInput input() { return {values.data(), k, quantized(), rounded()}; }
};

std::vector<float> product(Isa isa, const PackedLinear& w, const std::vector<float>& x, int rows,
                           ThreadTeam& on = team()) {
  Inputs inputs(isa, rows, w.shape.k, x);
  std::vector<float> y(size_t(rows) * size_t(w.shape.n));
  linear(on, isa, w, inputs.input(), rows, {.y = y.data(), .stride = w.shape.n});
  return y;
}

std::vector<float> rows_of(const std::vector<float>& x, int k, int first, int n) {
  return {x.begin() + int64_t{first} * k, x.begin() + int64_t{first + n} * k};
}

class EveryIsa : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Cpu, EveryIsa, testing::ValuesIn(supported_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// k that fits the format: whole groups, or for dense weights anything.
int random_k(Rng& rng, const LinearFormat& format, int n_slices) {
  const int unit =
      n_slices * (format.affine() ? (n_slices == 1 ? format.group : std::max(64, format.group)) : 1);
  return unit * (1 + int(rng() % (format.affine() ? 5 : 300)));
}

TEST_P(EveryIsa, EqualsTheScalarArithmeticBitForBit) {
  Rng rng(1);
  for (const LinearFormat& format : all_formats()) {
    for (const int n_slices : {1, 2, 4, 8}) {
      const int n = 1 + int(rng() % 70), k = random_k(rng, format, n_slices);
      const int rows = 1 + int(rng() % 40);
      const TestMatrix m = random_matrix(rng, format, n, k);
      const std::vector<float> x = random_floats(rng, size_t(rows) * size_t(k));
      const std::vector<float> y = product(GetParam(), pack(m, n_slices), x, rows);
      for (int r = 0; r < rows; r += 1 + rows / 4) {
        for (int o = 0; o < n; ++o) {
          const std::vector<float> slices = expected_slices(m, o, &x[size_t(r) * size_t(k)], n_slices);
          ASSERT_EQ(y[size_t(r) * size_t(n) + size_t(o)], tree_sum(slices.data(), n_slices))
              << describe(format) << " [" << n << ", " << k << "], " << n_slices << " slices, row " << r
              << " of " << rows << ", output " << o;
        }
      }
    }
  }
}

// Dense: at most (64 + k / 64 + log2 slices + 1) roundings touch a product, and bf16 weights meet activations
// of 8 significant bits. Affine: half a step of activation error per weight, and four roundings per group.
TEST_P(EveryIsa, IsWithinTheDerivedBoundOfTheExactProduct) {
  Rng rng(2);
  for (const LinearFormat& format : all_formats()) {
    const int n = 33, k = format.affine() ? 8 * format.group : 501, rows = 3;
    const TestMatrix m = random_matrix(rng, format, n, k);
    const std::vector<float> x = random_floats(rng, size_t(rows) * size_t(k));
    const std::vector<float> y = product(GetParam(), pack(m), x, rows);
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < n; ++o) {
        double exact = 0, size = 0, quantisation = 0;
        for (int c = 0; c < k; ++c) {
          const double value = x[size_t(r * k + c)], w = m.weight(o, c);
          exact += value * w;
          if (!format.affine()) {
            size += std::fabs(value * w);
            if (format.dtype == DType::bf16) quantisation += 0x1p-8 * 0.5 * std::fabs(value * w);
            continue;
          }
          const int first = c / 64 * 64;
          const float step = quantize_group(&x[size_t(r * k + first)], std::min(64, k - first)).step;
          quantisation +=
              0.51 * step * std::fabs(w);  // 0.01: roundings of step and of its reciprocal, times 127
          size +=
              (std::fabs(value) + step) * (std::fabs(double(m.scale(o, c / format.group)) * m.code(o, c)) +
                                           std::fabs(double(m.bias(o, c / format.group))));
        }
        const int roundings = format.affine() ? 4 + 2 * (k / std::min(64, format.group)) : 64 + (k + 63) / 64;
        const double bound = quantisation + roundings * 0x1p-24 * 1.01 * size;
        ASSERT_NEAR(y[size_t(r * n + o)], exact, bound)
            << describe(format) << " row " << r << " output " << o;
      }
    }
  }
}

TEST_P(EveryIsa, ARowIsTheSameAloneAndAmongOthers) {
  Rng rng(3);
  for (const LinearFormat& format : all_formats()) {
    const int n = 50, k = 256, rows = 150;
    const PackedLinear w = pack(random_matrix(rng, format, n, k), 2);
    const std::vector<float> x = random_floats(rng, size_t(rows) * size_t(k));
    const std::vector<float> all = product(GetParam(), w, x, rows);
    for (int count = 1; count <= 33; ++count) {
      const int first = int(rng() % unsigned(rows - count + 1));
      ASSERT_EQ(product(GetParam(), w, rows_of(x, k, first, count), count), rows_of(all, n, first, count))
          << describe(format) << " rows " << first << " + " << count;
    }
  }
}

TEST_P(EveryIsa, ThreadsDoNotChangeABit) {
  Rng rng(4);
  ThreadTeam one(1), five(5);
  for (const LinearFormat& format : all_formats()) {
    const int n = 1000, k = 128, rows = 3;
    const PackedLinear w = pack(random_matrix(rng, format, n, k));
    const std::vector<float> x = random_floats(rng, size_t(rows) * size_t(k));
    const std::vector<float> y = product(GetParam(), w, x, rows, one);
    ASSERT_EQ(product(GetParam(), w, x, rows, five), y) << describe(format);
  }
}

TEST_P(EveryIsa, GivesTheBitsOfThePortableKernels) {
  Rng rng(5);
  for (const LinearFormat& format : all_formats()) {
    const int n = 40, k = format.affine() ? 3 * format.group : 157, rows = 9;
    const PackedLinear w = pack(random_matrix(rng, format, n, k));
    const std::vector<float> x = random_floats(rng, size_t(rows) * size_t(k));
    ASSERT_EQ(product(GetParam(), w, x, rows), product(Isa::portable, w, x, rows)) << describe(format);
  }
}

TEST_P(EveryIsa, SlicesLeftApartAreTheLeavesOfTheTree) {
  Rng rng(6);
  for (const LinearFormat& format :
       {LinearFormat{.dtype = DType::bf16}, LinearFormat{.bits = 4, .group = 64}}) {
    const int n = 37, k = 1024, rows = 11, n_slices = 8;
    const PackedLinear w = pack(random_matrix(rng, format, n, k), n_slices);
    const std::vector<float> x = random_floats(rng, size_t(rows) * size_t(k));
    Inputs inputs(GetParam(), rows, k, x);
    const int64_t slice_stride = int64_t{rows} * n;
    std::vector<float> slices(size_t(n_slices * slice_stride));
    linear(team(), GetParam(), w, inputs.input(), rows,
           {.y = slices.data(), .stride = n, .slice_stride = slice_stride});
    const std::vector<float> y = product(GetParam(), w, x, rows);
    for (size_t i = 0; i < y.size(); ++i) {
      float leaves[8];
      for (int s = 0; s < n_slices; ++s) leaves[s] = slices[size_t(s * slice_stride) + i];
      ASSERT_EQ(tree_sum(leaves, n_slices), y[i]);
    }
  }
}

TEST_P(EveryIsa, BiasThenResidualAreAddedOnceAfterTheRoot) {
  Rng rng(7);
  const int n = 70, k = 128, rows = 5;
  const PackedLinear w = pack(random_matrix(rng, {.bits = 8, .group = 64}, n, k), 2);
  const std::vector<float> x = random_floats(rng, size_t(rows) * size_t(k)),
                           bias = random_floats(rng, size_t(n));
  const std::vector<float> residual = random_floats(rng, size_t(rows) * size_t(n));
  const std::vector<float> y = product(GetParam(), w, x, rows);
  std::vector<float> out = residual;
  Inputs inputs(GetParam(), rows, k, x);
  linear(team(), GetParam(), w, inputs.input(), rows,
         {.y = out.data(), .stride = n, .bias = bias.data(), .residual = out.data(), .residual_stride = n});
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < n; ++o) {
      const auto i = size_t(r * n + o);
      ASSERT_EQ(out[i], residual[i] + (y[i] + bias[size_t(o)]));
    }
  }
}

TEST_P(EveryIsa, NothingIsWrittenBesideTheOutputs) {
  Rng rng(8);
  const int n = 33, k = 64, rows = 3, stride = 50;
  const PackedLinear w = pack(random_matrix(rng, {.bits = 5, .group = 32}, n, k));
  Inputs inputs(GetParam(), rows, k, random_floats(rng, size_t(rows) * size_t(k)));
  std::vector<float> y(size_t(rows) * stride, 1234.5f);
  linear(team(), GetParam(), w, inputs.input(), rows, {.y = y.data(), .stride = stride});
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < stride; ++o) ASSERT_EQ(y[size_t(r * stride + o)] == 1234.5f, o >= n);
  }
}

TEST_P(EveryIsa, ExpertsComputeWhatTheirMatrixAloneWould) {
  Rng rng(9);
  for (const LinearFormat& format : {LinearFormat{.dtype = DType::bf16}, LinearFormat{.bits = 8, .group = 64},
                                     LinearFormat{.bits = 3, .group = 32}}) {
    const int n_experts = 6, n = 45, k = 128, rows = 60;
    const TestMatrix stacked = random_matrix(rng, format, n_experts * n, k);
    const RowRun all{&stacked.host, 0, n_experts * n};
    const PackedLinear w = pack({format, n, k, 1, n_experts}, {&all, 1});
    const std::vector<float> x = random_floats(rng, size_t(rows) * size_t(k));
    Inputs inputs(GetParam(), rows, k, x);
    const std::vector<ExpertRows> groups = {{4, 0, 1}, {0, 1, 40}, {5, 41, 7}};
    std::vector<int32_t> in(48), out(48);
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] = int32_t(rng() % rows);
      out[i] = int32_t(47 - i);
    }
    std::vector<float> y(48 * size_t(n));
    linear_experts(team(), GetParam(), w, inputs.input(), {groups, in.data(), out.data()},
                   {.y = y.data(), .stride = n});
    for (const ExpertRows& group : groups) {
      const RowRun run{&stacked.host, group.matrix * n, n};
      const PackedLinear alone = pack({format, n, k}, {&run, 1});
      const std::vector<float> expected = product(GetParam(), alone, x, rows);
      for (int e = group.first; e < group.first + group.count; ++e) {
        for (int o = 0; o < n; ++o) {
          ASSERT_EQ(y[size_t(out[size_t(e)] * n + o)], expected[size_t(in[size_t(e)] * n + o)])
              << describe(format);
        }
      }
    }
  }
}

TEST(Linear, MergedRowsComeInTheOrderOfTheRuns) {
  Rng rng(10);
  const LinearFormat format{.bits = 6, .group = 64};
  const TestMatrix a = random_matrix(rng, format, 90, 128), b = random_matrix(rng, format, 7, 128);
  const std::vector<RowRun> runs = {
      {&a.host, 40, 35}, {&b.host, 0, 6}, {&a.host, 0, 1}, {&b.host, 2, 5}, {&a.host, 80, 10}};
  const PackedLinear w = pack({format, 57, 128}, runs);
  std::vector<float> row(128);
  int o = 0;
  for (const RowRun& run : runs) {
    const TestMatrix& m = run.matrix == &a.host ? a : b;
    for (int i = 0; i < run.n_rows; ++i, ++o) {
      unpack_row(w, o, row.data());
      for (int c = 0; c < 128; ++c) ASSERT_EQ(row[size_t(c)], float(m.weight(run.first_row + i, c)));
    }
  }
}

TEST(Linear, UnpackedRowsAreTheWeights) {
  Rng rng(11);
  for (const LinearFormat& format : all_formats()) {
    for (const int n_slices : {1, 4}) {
      const int n = 40, k = random_k(rng, format, n_slices);
      const TestMatrix m = random_matrix(rng, format, n, k);
      const PackedLinear w = pack(m, n_slices);
      std::vector<float> row(static_cast<size_t>(k));
      for (int o = 0; o < n; ++o) {
        unpack_row(w, o, row.data());
        for (int c = 0; c < k; ++c) ASSERT_EQ(row[size_t(c)], float(m.weight(o, c))) << describe(format);
      }
    }
  }
}

TEST_P(EveryIsa, QuantisedActivationsAreDefinedToTheBit) {
  Rng rng(12);
  for (const int k : {32, 64, 96, 640}) {
    for (const float spread : {1e-30f, 1.0f, 1e30f}) {
      std::vector<float> x = random_floats(rng, size_t(k), spread);
      x[size_t(rng() % unsigned(k))] *= 30;
      std::fill(x.end() - 32, x.end(), rng() % 2 == 0 ? 0.0f : x[0]);
      std::vector<ActivationGroup> groups(static_cast<size_t>(activation_groups(k)));
      quantize_row(GetParam(), x.data(), k, groups.data());
      for (int g = 0; g < activation_groups(k); ++g) {
        const ActivationGroup expected = quantize_group(&x[size_t(64 * g)], std::min(64, k - 64 * g));
        ASSERT_EQ(memcmp(&groups[size_t(g)], &expected, sizeof expected), 0)
            << "k " << k << " spread " << spread;
      }
    }
  }
}

TEST_P(EveryIsa, BadActivationsAreNotHidden) {
  Rng rng(13);
  const int n = 32, k = 128;
  const PackedLinear w = pack(random_matrix(rng, {.bits = 8, .group = 64}, n, k));
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> x = random_floats(rng, size_t(2 * k));
    x[77] = bad;
    const std::vector<float> y = product(GetParam(), w, x, 2);
    for (int o = 0; o < n; ++o) {
      EXPECT_FALSE(std::isfinite(y[size_t(o)]));
      EXPECT_TRUE(std::isfinite(y[size_t(n + o)]));
    }
  }
}

TEST_P(EveryIsa, AStepAllocatesNothing) {
  Rng rng(14);
  const int n = 300, k = 256, rows = 40;
  const PackedLinear w = pack(random_matrix(rng, {.bits = 4, .group = 64}, n, k), 4);
  Inputs inputs(GetParam(), rows, k, random_floats(rng, size_t(rows) * size_t(k)));
  std::vector<float> y(size_t(rows) * size_t(n));
  const int64_t before = allocations_so_far();
  for (int i = 0; i < 20; ++i) {
    quantize_rows(team(), GetParam(), inputs.values.data(), k, inputs.quantized());
    linear(team(), GetParam(), w, inputs.input(), rows, {.y = y.data(), .stride = n});
  }
  EXPECT_EQ(allocations_so_far(), before);
}

}  // namespace
}  // namespace tandem::cpu
