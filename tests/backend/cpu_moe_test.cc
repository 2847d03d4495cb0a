// Mixtures of the cpu backend against plain double arithmetic over the same weights, and the independence of
// rows.
#include "cpu_ops_test_util.h"

namespace tandem::cpu {
namespace {

struct Dense {  // a stack of fp32 matrices as a checkpoint holds it
  int n = 0, k = 0, experts = 1;
  std::vector<float> values;
  Dense(Random& random, int n_out, int n_in, int n_experts = 1) : n(n_out), k(n_in), experts(n_experts) {
    std::normal_distribution<float> normal(0, 1 / std::sqrt(float(n_in)));
    values.resize(size_t(n) * size_t(k) * size_t(experts));
    for (float& v : values) v = normal(random);
  }
  std::unique_ptr<Weight> pack(Backend& backend, int n_slices) const {
    const HostMatrix host{.name = "w",
                          .n = n * experts,
                          .k = k,
                          .dtype = DType::f32,
                          .data = reinterpret_cast<const std::byte*>(values.data())};
    const RowRun run{&host, 0, n * experts};
    auto packed = backend.pack(
        {.name = "w", .rows = {&run, 1}, .n_experts = experts, .n_slices = n_slices, .bias = {}});
    EXPECT_TRUE(packed.ok());
    return std::move(packed).value();
  }
  double dot(int expert, int row, const std::vector<double>& x) const {
    const float* w = &values[(size_t(expert) * size_t(n) + size_t(row)) * size_t(k)];
    double sum = 0;
    for (int i = 0; i < k; ++i) sum += double(w[i]) * x[size_t(i)];
    return sum;
  }
};

std::vector<double> ffn(const Dense& gate_up, const Dense& down, int expert, const std::vector<double>& x) {
  std::vector<double> inner, y;
  for (int i = 0; i < down.k; ++i) {
    const double g = gate_up.dot(expert, i, x);
    inner.push_back(g * sigmoid(g) * gate_up.dot(expert, down.k + i, x));
  }
  for (int i = 0; i < down.n; ++i) y.push_back(down.dot(expert, i, inner));
  return y;
}

TEST(CpuMoe, MixtureMatchesDoubleAndRowsDoNotMeet) {
  Random random(21);
  const int hidden = 40, inner = 24, n_experts = 9, top_k = 3, rows = 50;
  const Dense gate_up(random, 2 * inner, hidden, n_experts), down(random, hidden, inner, n_experts);
  const Dense shared_gate_up(random, 2 * inner, hidden), shared_down(random, hidden, inner),
      shared_gate(random, 1, hidden);
  const Rows x = normal_rows(random, rows, hidden), residual = normal_rows(random, rows, hidden);
  Rows choice_weights = normal_rows(random, rows, top_k);
  std::vector<int32_t> ids;
  for (int r = 0; r < rows; ++r) {
    const int a = pick(random, 0, 3), b = pick(random, 4, 5), c = pick(random, 6, 8);
    ids.insert(ids.end(), {a, b, c});
  }
  for (const bool shared : {false, true}) {
    std::vector<std::vector<double>> want;
    for (int r = 0; r < rows; ++r) {
      std::vector<double> in, out;
      for (int i = 0; i < hidden; ++i) in.push_back(x.at(r, i)), out.push_back(residual.at(r, i));
      for (int c = 0; c < top_k; ++c) {
        const auto y = ffn(gate_up, down, ids[size_t(r * top_k + c)], in);
        for (int i = 0; i < hidden; ++i) out[size_t(i)] += choice_weights.at(r, c) * y[size_t(i)];
      }
      if (shared) {
        const auto y = ffn(shared_gate_up, shared_down, 0, in);
        for (int i = 0; i < hidden; ++i) out[size_t(i)] += sigmoid(shared_gate.dot(0, 0, in)) * y[size_t(i)];
      }
      want.push_back(out);
    }
    Rows first;
    for (const NamedBackend& b : all_backends()) {
      const auto w_gate_up = gate_up.pack(*b.backend, 1), w_down = down.pack(*b.backend, 4);
      const auto s_gate_up = shared_gate_up.pack(*b.backend, 1), s_down = shared_down.pack(*b.backend, 4),
                 s_gate = shared_gate.pack(*b.backend, 1);
      MoeWeights w{.gate_up = w_gate_up.get(), .down = w_down.get(), .top_k = top_k};
      if (shared)
        w.shared_gate_up = s_gate_up.get(), w.shared_down = s_down.get(), w.shared_gate = s_gate.get();
      const auto run = [&](int at, int n) {
        Rows y(n, hidden);
        for (int r = 0; r < n; ++r) {
          for (int i = 0; i < hidden; ++i) y.at(r, i) = residual.at(at + r, i);
        }
        Rows in = x, weights = choice_weights;
        b.backend->moe_experts(Path::decode, {.x = in.mut().row_range(at, n),
                                              .weights = w,
                                              .ids = {ids.data() + at * top_k, DType::i32, n, top_k, top_k},
                                              .choice_weights = weights.mut().row_range(at, n),
                                              .residual = y.mut()});
        return y;
      };
      const Rows all = run(0, rows);
      expect_close(all, want, 2e-6, b.name);
      for (int r = 0; r < rows; ++r) {
        const Rows alone = run(r, 1);
        for (int i = 0; i < hidden; ++i) ASSERT_EQ(alone.at(0, i), all.at(r, i)) << b.name << " row " << r;
      }
      if (first.rows == 0) first = all;
      expect_same_bits(first, all, b.name + " and the first instruction set");
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
