// Tiny random models of every family against transformers (fp32): logits and greedy continuations.
#include <gtest/gtest.h>

#include "golden/bounds.h"
#include "golden/golden_check.h"
#include "support/backends.h"

namespace tandem {
namespace {

struct Case {
  std::string family;
  std::string backend;
  std::string isa;
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.family + "_" + info.param.backend + "_" + info.param.isa;
}

class FamilyGolden : public testing::TestWithParam<Case> {
 protected:
  std::string base() const { return std::string(TANDEM_TEST_DATA) + "/goldens/tiny/" + GetParam().family; }
  ModelUnderTest model() const {
    return ModelUnderTest(base(), {.name = GetParam().backend, .threads = 2, .isa = GetParam().isa});
  }
};

TEST_P(FamilyGolden, LogitsAndGreedyTokensMatchTransformers) {
  const GoldenFile golden(base() + ".golden.safetensors");
  ModelUnderTest m = model();
  const double bound = golden_bound(GetParam().backend, /*quantised=*/false);
  for (const std::string p : {"p0", "p1", "p2"}) {
    const std::vector<TokenId> ids = golden.ints(p + ".ids");
    const std::vector<float> want = golden.floats(p + ".logits");
    StatePool pool = m.make_pool(1, int(ids.size()) + 1, 1);
    SequenceState state = value_or_throw(SequenceState::create(pool));
    std::vector<float> all;
    m.prefill(pool, state, ids, 512, &all);
    const std::span<const float> got = std::span(all).last(want.size());
    const GoldenError error = compare(got, want);
    EXPECT_LE(error.relative(), bound)
        << p << ": max |a-b| " << error.max_abs << ", max |b| " << error.max_golden;
    const std::vector<TokenId> greedy = golden.ints(p + ".greedy");
    const GreedyCheck check =
        check_greedy(m, ids, greedy, golden.floats(p + ".greedy_margin"), 2 * bound * error.max_golden);
    EXPECT_EQ(check.n_wrong, 0) << p << ": of " << check.n_decided << " decided steps";
    EXPECT_GE(check.n_decided, check.n_steps / 2)
        << p << ": the bound decides too few steps to mean anything";
    RecordProperty(p + "_relative_error", std::to_string(error.relative()));
  }
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, FamilyGolden, testing::ValuesIn([] {
                           std::vector<Case> cases;
                           for (const char* f : {"qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3", "llama"}) {
                             for (const BackendOptions& b : all_backends())
                               cases.push_back({f, b.name, b.isa});
                           }
                           return cases;
                         }()),
                         case_name);

}  // namespace
}  // namespace tandem
