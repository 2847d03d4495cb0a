// Norms, gates and rotation of the cpu backend against plain double arithmetic, on every instruction set.
#include <cfloat>
#include <functional>

#include "backend/cpu/kernels.h"
#include "cpu_ops_test_util.h"

namespace tandem::cpu {
namespace {

double ulps(float got, double want) {
  const float nearest = float(want);
  const double spacing = std::nextafter(std::abs(nearest), FLT_MAX) - std::abs(nearest);
  return std::abs(got - want) / spacing;
}

// exp is seen through the gates: with a softplus of exactly 30, log_decay = -30 e^a_log.
TEST(CpuRowwise, ExpIsWithinTwoUlps) {
  for (const Isa isa : supported_isas()) {
    const Kernels& k = kernels(isa);
    double worst = 0;
    for (double x = -80; x < 80; x += 0.00917) {
      const float a_log = float(x), a = 30, zero = 0;
      float beta, log_decay;
      k.delta_gates(&zero, &a, &a_log, &zero, 1, &beta, &log_decay);
      worst = std::max(worst, ulps(log_decay, -30 * std::exp(double(a_log))));
    }
    EXPECT_LT(worst, 2) << isa_name(isa);
  }
}

TEST(CpuRowwise, GatesKeepTheirAccuracyAtTheEnds) {
  for (const Isa isa : supported_isas()) {
    const Kernels& k = kernels(isa);
    for (const float a :
         {-100.0f, -60.0f, -20.0f, -5.0f, -1e-4f, 0.0f, 0.3f, 7.0f, 19.9f, 20.0f, 20.1f, 500.0f}) {
      for (const float b : {-80.0f, -3.0f, 0.0f, 2.0f, 90.0f}) {
        const float a_log = 0.4f, dt_bias = 0.25f;
        float beta, log_decay;
        k.delta_gates(&b, &a, &a_log, &dt_bias, 1, &beta, &log_decay);
        EXPECT_LT(ulps(beta, sigmoid(b)), 3) << isa_name(isa) << " b " << b;
        const float x = a + dt_bias;
        const double want = -std::exp(double(a_log)) * (x > 20 ? x : std::log1p(std::exp(double(x))));
        EXPECT_LT(ulps(log_decay, want), 6)
            << isa_name(isa) << " a " << a << ": " << log_decay << ", want " << want;
      }
    }
  }
}

TEST(CpuRowwise, NaNAndInfinityAreNotHidden) {
  for (const Isa isa : supported_isas()) {
    const Kernels& k = kernels(isa);
    EXPECT_TRUE(std::isnan(k.sigmoid(NAN))) << isa_name(isa);
    EXPECT_EQ(k.sigmoid(INFINITY), 1.0f) << isa_name(isa);
    EXPECT_EQ(k.sigmoid(-INFINITY), 0.0f) << isa_name(isa);
    std::vector<float> x(40, 1.0f), gain(40, 1.0f), y(40);
    x[37] = NAN;
    k.rms_norm(x.data(), gain.data(), 1e-6f, 40, y.data());
    EXPECT_TRUE(std::isnan(y[0])) << isa_name(isa);
  }
}

TEST(CpuRowwise, NormsAndGatesMatchDoubleAtEveryWidth) {
  Random random(7);
  auto backends = all_backends();
  for (const int width : {1, 5, 8, 15, 16, 17, 31, 48, 63, 64, 65, 100, 128, 250, 1024}) {
    const Rows x = normal_rows(random, 3, width, 4), gain = normal_rows(random, 1, width);
    const Rows gate_up = normal_rows(random, 3, 2 * width, 3), z = normal_rows(random, 3, 2 * width, 3);
    const Rows o = normal_rows(random, 3, 2 * width);
    std::vector<std::vector<double>> norm(3), silu(3), gated(3);
    for (int r = 0; r < 3; ++r) {
      double squares = 0;
      for (int c = 0; c < width; ++c) squares += double(x.at(r, c)) * x.at(r, c);
      for (int c = 0; c < width; ++c) {
        norm[size_t(r)].push_back(x.at(r, c) / std::sqrt(squares / width + 1e-5) * gain.at(0, c));
        silu[size_t(r)].push_back(gate_up.at(r, c) * sigmoid(gate_up.at(r, c)) * gate_up.at(r, width + c));
      }
      for (int h = 0; h < 2; ++h) {
        squares = 0;
        for (int c = 0; c < width; ++c) squares += double(o.at(r, h * width + c)) * o.at(r, h * width + c);
        for (int c = 0; c < width; ++c) {
          const double g = z.at(r, h * width + c);
          gated[size_t(r)].push_back(o.at(r, h * width + c) / std::sqrt(squares / width + 1e-5) *
                                     gain.at(0, c) * g * sigmoid(g));
        }
      }
    }
    std::vector<Rows> first;
    for (const NamedBackend& b : backends) {
      Rows y(3, width), s(3, width), g(3, 2 * width);
      b.backend->rms_norm(x.view(), gain.view(), 1e-5f, y.mut());
      b.backend->silu_mul(gate_up.view(), s.mut());
      b.backend->gated_norm(o.view(), z.view(), gain.view(), 1e-5f, g.mut());
      expect_close(y, norm, 1e-6, b.name + " rms_norm");
      expect_close(s, silu, 1e-6, b.name + " silu_mul");
      expect_close(g, gated, 2e-6, b.name + " gated_norm");
      if (first.empty()) first = {y, s, g};
      expect_same_bits(first[0], y, b.name + " rms_norm, one instruction set and another");
      expect_same_bits(first[1], s, b.name + " silu_mul, one instruction set and another");
      expect_same_bits(first[2], g, b.name + " gated_norm, one instruction set and another");
    }
  }
}

TEST(CpuRowwise, RopeAnglesFollowTheFp32ProductAtFarPositions) {
  Random random(3);
  Rows frequencies(1, 5);
  for (int i = 0; i < 5; ++i) frequencies.at(0, i) = float(std::pow(1e7, -i / 5.0));
  for (const NamedBackend& b : all_backends()) {
    const SeqStep seq{.first_row = 0, .n_rows = 3, .start = 262141, .pending = {}, .pages = {}};
    Rows angles(3, 10);
    b.backend->rope_angles({.path = Path::prefill, .n_rows = 3, .seqs = {&seq, 1}}, frequencies.view(), 1.5f,
                           angles.mut());
    for (int r = 0; r < 3; ++r) {
      for (int i = 0; i < 5; ++i) {
        const float angle = float(262141 + r) * frequencies.at(0, i);
        EXPECT_NEAR(angles.at(r, i), 1.5 * std::cos(double(angle)), 2e-7) << b.name;
        EXPECT_NEAR(angles.at(r, 5 + i), 1.5 * std::sin(double(angle)), 2e-7) << b.name;
      }
    }
  }
}

TEST(CpuRowwise, RoutingTakesTheLowerIdOfATieAndSumsToOne) {
  Rows logits(2, 20, 1.0f);                                            // row 0: all equal
  for (int e = 0; e < 20; ++e) logits.at(1, e) = float((e * 7) % 10);  // every value twice
  for (const NamedBackend& b : all_backends()) {
    for (const bool normalise : {true, false}) {
      std::vector<int32_t> ids(6);
      Rows weights(2, 3);
      b.backend->moe_route(logits.view(), normalise, {ids.data(), DType::i32, 2, 3, 3}, weights.mut());
      EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 2, 4, 7, 17})) << b.name;  // 8, 9, 9
      double total = 0, all = 0;
      for (int e = 0; e < 20; ++e) all += std::exp(double(logits.at(1, e)));
      for (const int e : {4, 7, 17}) total += std::exp(double(logits.at(1, e)));
      const double expected = std::exp(9.0) / (normalise ? total : all);
      EXPECT_NEAR(weights.at(1, 1), expected, 1e-6) << b.name;
      EXPECT_EQ(weights.at(1, 1), weights.at(1, 2)) << b.name;
      EXPECT_NEAR(weights.at(0, 0), normalise ? 1.0 / 3 : 1.0 / 20, 1e-7) << b.name;
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
