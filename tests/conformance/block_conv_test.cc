// The grouped dynamic convolution over the rows of a block.
#include <cmath>

#include "conformance/estimate.h"
#include "conformance/harness.h"

namespace tandem::conformance {
namespace {

class BlockConvolution : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam());
};

struct Case {
  int taps, groups, group;
  std::vector<int> rows = {};  // of each sequence
  Rows x = {}, base = {}, dynamic = {}, residual = {};

  int width() const { return groups * group; }
  int n_rows() const { return x.rows; }
  std::vector<SeqStep> seqs() const {
    std::vector<SeqStep> all;
    int first = 0;
    for (const int n : rows) {
      all.push_back({.first_row = first, .n_rows = n, .start = 100});
      first += n;
    }
    return all;
  }
};

Case random_case(Rng& rng) {
  Case c{.taps = rng.uniform(1, 5),
         .groups = rng.uniform(1, 9),
         .group = rng.pick({1, 3, 8, 16, 16, 20, 33, 64})};
  int n = 0;
  for (int i = rng.uniform(1, 5); i > 0; --i) n += c.rows.emplace_back(rng.uniform(1, 16));
  c.x = normal_rows(rng, n, c.width(), std::exp(rng.real(-4, 4)));
  c.base = normal_rows(rng, c.taps, c.width());
  c.dynamic = normal_rows(rng, n, c.taps * c.groups, rng.pick({0.0f, 0.3f, 2.0f}));
  c.residual = normal_rows(rng, n, c.width(), 3);
  return c;
}

// With the residual, or without it where `residual` is no memory.
Rows run(Backend& backend, const Case& c, bool with_residual, int gap) {
  const OnDevice x(backend, c.x, gap), base(backend, c.base, gap), dynamic(backend, c.dynamic, gap);
  const OnDevice residual(backend, c.residual, gap), y(backend, c.n_rows(), c.width(), gap);
  const std::vector<SeqStep> seqs = c.seqs();
  backend.block_conv({.n_rows = c.n_rows(), .seqs = seqs},
                     {.x = x,
                      .base = base,
                      .dynamic = dynamic,
                      .residual = with_residual ? View(residual) : View{},
                      .y = y});
  return y.read();
}

// A tap's term meets the rounding of its coefficient, of its product and of each sum after it; the residual
// one more.
Estimates exact(const Case& c, bool with_residual) {
  Estimates y(c.n_rows(), c.width());
  const double depth = c.taps + 3, gamma = depth * kU / (1 - depth * kU);
  for (const SeqStep& seq : c.seqs()) {
    for (int i = 0; i < seq.n_rows; ++i) {
      const int r = seq.first_row + i;
      for (int ch = 0; ch < c.width(); ++ch) {
        double sum = 0, magnitude = 0;
        for (int t = 0; t < c.taps && t <= i; ++t) {
          const double b = c.base.at(t, ch), d = c.dynamic.at(r, t * c.groups + ch / c.group);
          sum += (b + d) * c.x.at(r - t, ch);
          magnitude += (std::abs(b) + std::abs(d)) * std::abs(c.x.at(r - t, ch));
        }
        const double add = with_residual ? c.residual.at(r, ch) : 0;
        y.at(r, ch) = {sum + add, gamma * (magnitude + std::abs(add))};
      }
    }
  }
  return y;
}

TEST_P(BlockConvolution, MatchesItsFormula) {
  for_cases(30, 90000, [&](Rng& rng) {
    const Case c = random_case(rng);
    const int gap = rng.uniform(0, 5);
    SCOPED_TRACE(std::to_string(c.taps) + " taps, " + std::to_string(c.groups) + " groups of " +
                 std::to_string(c.group));
    EXPECT_TRUE(within(run(*backend_, c, false, gap), exact(c, false)));
    EXPECT_TRUE(within(run(*backend_, c, true, gap), exact(c, true)));
  });
}

// A sequence in company has its bits alone; a row does not see the rows after it.
TEST_P(BlockConvolution, NothingLeaksBetweenSequencesNorBackwards) {
  for_cases(20, 91000, [&](Rng& rng) {
    const Case c = random_case(rng);
    const Rows all = run(*backend_, c, true, 0);
    for (const SeqStep& seq : c.seqs()) {
      const int n = rng.uniform(1, seq.n_rows);
      const Case alone{.taps = c.taps,
                       .groups = c.groups,
                       .group = c.group,
                       .rows = {n},
                       .x = c.x.slice(seq.first_row, n),
                       .base = c.base,
                       .dynamic = c.dynamic.slice(seq.first_row, n),
                       .residual = c.residual.slice(seq.first_row, n)};
      EXPECT_TRUE(same_bits(all.slice(seq.first_row, n), run(*backend_, alone, true, 3)));
    }
  });
}

// How a drafter of the first kind becomes one of the second: tap 0 is one, all else zero.
TEST_P(BlockConvolution, IdentityIsExactAndTheResidualMayBeTheOutput) {
  for_cases(10, 92000, [&](Rng& rng) {
    Case c = random_case(rng);
    c.base = Rows(c.taps, c.width());
    for (int ch = 0; ch < c.width(); ++ch) c.base.at(0, ch) = 1;
    c.dynamic = Rows(c.n_rows(), c.taps * c.groups);
    EXPECT_TRUE(same_bits(run(*backend_, c, false, 0), c.x));

    const OnDevice x(*backend_, c.x), base(*backend_, c.base), dynamic(*backend_, c.dynamic);
    const OnDevice stream(*backend_, c.residual);
    const std::vector<SeqStep> seqs = c.seqs();
    backend_->block_conv({.n_rows = c.n_rows(), .seqs = seqs},
                         {.x = x, .base = base, .dynamic = dynamic, .residual = stream, .y = stream});
    EXPECT_TRUE(same_bits(stream.read(), run(*backend_, c, true, 0)));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, BlockConvolution, testing::ValuesIn(all_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
