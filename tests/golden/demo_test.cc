// The embedded 8-bit model against an independent fp32 implementation on the same (dequantised) weights; and
// its bf16 original against transformers, where its folder is at hand (label original).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "golden/bounds.h"
#include "golden/golden_check.h"
#include "support/backends.h"

namespace tandem {
namespace {

#ifdef TANDEM_ORIGINAL_MODEL
const std::string kModel = TANDEM_ORIGINAL_MODEL;
const std::string kGolden = TANDEM_ORIGINAL_GOLDENS "/demo_target";
constexpr bool kQuantised = false;
#else
const std::string kModel = TANDEM_MODELS "/tandem-demo";
const std::string kGolden = TANDEM_TEST_DATA "/goldens/demo8_target";
constexpr bool kQuantised = true;
#endif

class DemoGolden : public testing::TestWithParam<BackendOptions> {
 protected:
  DemoGolden()
      : golden_(kGolden + ".safetensors"),
        model_(kModel, GetParam()),
        bound_(golden_bound(GetParam().name, kQuantised)) {}

  // The reference takes its time: it follows the whole continuation only in the slow build of this test.
  static size_t greedy_steps() {
#ifdef TANDEM_SLOW
    return 128;
#else
    return GetParam().name == "reference" ? 24 : 128;
#endif
  }

  GoldenFile golden_;
  ModelUnderTest model_;
  double bound_;
};

TEST_P(DemoGolden, LogitsMatch) {
  for (int p = 0; golden_.has("p" + std::to_string(p) + ".ids"); ++p) {
    const std::string name = "p" + std::to_string(p);
    const std::vector<TokenId> ids = golden_.ints(name + ".ids");
    const std::vector<int32_t> positions = golden_.ints(name + ".logit_positions");
    const std::vector<float> want = golden_.floats(name + ".logits");
    StatePool pool = model_.make_pool(1, int(ids.size()) + 1, 1);
    SequenceState state = value_or_throw(SequenceState::create(pool));
    std::vector<float> all;
    model_.prefill(pool, state, ids, 512, &all);
    const auto v = size_t(model_.n_vocab());
    std::vector<float> got;
    for (const int32_t at : positions) {
      got.insert(got.end(), all.begin() + int64_t(size_t(at) * v), all.begin() + int64_t(size_t(at + 1) * v));
    }
    const GoldenError error = compare(got, want);
    EXPECT_LE(error.relative(), bound_)
        << name << ": max |a-b| " << error.max_abs << ", max |b| " << error.max_golden;
    RecordProperty(name + "_relative_error", std::to_string(error.relative()));
  }
}

TEST_P(DemoGolden, GreedyContinuationsMatchWhereTheMarginDecides) {
  std::ifstream file(kGolden + ".json");
  const nlohmann::json prompts = nlohmann::json::parse(file);
  int n_steps = 0, n_decided = 0;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::string name = "p" + std::to_string(p);
    const std::vector<TokenId> ids = golden_.ints(name + ".ids");
    auto greedy = prompts[p]["greedy"].get<std::vector<TokenId>>();
    greedy.resize(std::min(greedy.size(), greedy_steps()));
    const std::vector<float> logits = golden_.floats(name + ".logits");
    const double largest = compare(logits, logits).max_golden;
    const GreedyCheck check =
        check_greedy(model_, ids, greedy, golden_.floats(name + ".greedy_margin"), 2 * bound_ * largest);
    EXPECT_EQ(check.n_wrong, 0) << name << ": of " << check.n_decided << " decided steps";
    n_steps += check.n_steps;
    n_decided += check.n_decided;
  }
  EXPECT_GE(n_decided, n_steps / 4) << "the bound decides too few steps to mean anything";
}

// Both follow the text of plain decoding, the closed form in steps of several rows, all kept.
TEST_P(DemoGolden, TheClosedFormChoosesAsPlainDecodingDoesWhereTheMarginDecides) {
  BackendOptions options = GetParam();
  options.delta = "closed";
  ModelUnderTest closed(kModel, options);
  std::mt19937 rng(7);
  const std::vector<TokenId> ids = golden_.ints("p0.ids");
  StatePool pool = model_.make_pool(1, 512), closed_pool = closed.make_pool(1, 512);
  SequenceState state = value_or_throw(SequenceState::create(pool)),
                closed_state = value_or_throw(SequenceState::create(closed_pool));
  std::vector<float> prompt;
  model_.prefill(pool, state, ids, 512, &prompt);
  closed.prefill(closed_pool, closed_state, ids);
  const auto v = size_t(model_.n_vocab());
  std::vector<TokenId> text = {argmax(std::span(prompt).last(v))};
  std::vector<float> want, got;
  while (text.size() <= greedy_steps()) {
    const std::vector<float> logits = model_.verify(pool, state, std::span(text).last(1), 1);
    want.insert(want.end(), logits.begin(), logits.end());
    text.push_back(argmax(logits));
  }
  for (size_t at = 0; at + 1 < text.size();) {
    const size_t n = std::min(text.size() - 1 - at, size_t(2 + rng() % 15));
    const std::vector<float> logits =
        closed.verify(closed_pool, closed_state, std::span(text).subspan(at, n), int(n));
    got.insert(got.end(), logits.begin(), logits.end());
    at += n;
  }
  const GoldenError error = compare(got, want);
  EXPECT_LE(error.relative(), bound_);
  RecordProperty("closed_form_relative_error", std::to_string(error.relative()));
  size_t n_decided = 0;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const std::span<const float> row = std::span<const float>(want).subspan(i * v, v);
    float second = -INFINITY;
    for (size_t j = 0; j < v; ++j) {
      if (j != size_t(text[i + 1])) second = std::max(second, row[j]);
    }
    if (row[size_t(text[i + 1])] - second <= 2 * bound_ * error.max_golden) continue;
    ++n_decided;
    EXPECT_EQ(argmax(std::span<const float>(got).subspan(i * v, v)), text[i + 1]) << "token " << i;
  }
  EXPECT_GE(n_decided, text.size() / 4) << "the bound decides too few steps to mean anything";
}

TEST_P(DemoGolden, LongPromptChoosesTheSameTokenAtEveryPosition) {
  const std::vector<TokenId> ids = golden_.ints("long.ids");
  const std::vector<int32_t> want = golden_.ints("long.argmax");
  StatePool pool = model_.make_pool(1, int(ids.size()) + 1, 1);
  SequenceState state = value_or_throw(SequenceState::create(pool));
  std::vector<float> all;
  model_.prefill(pool, state, ids, 512, &all);
  const auto v = size_t(model_.n_vocab());
  const std::vector<float> last = golden_.floats("long.logits_last");
  EXPECT_LE(compare(std::span(all).last(v), last).relative(), bound_);
  int n_different = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const std::span<const float> row = std::span<const float>(all).subspan(i * v, v);
    const TokenId best = argmax(row);
    if (best == want[i]) continue;
    ++n_different;
    // A different choice is legitimate only between near-equals.
    EXPECT_LE(row[size_t(best)] - row[size_t(want[i])], 2 * bound_ * compare(last, last).max_golden)
        << "position " << i;
  }
  EXPECT_LE(n_different, int(want.size()) / 20);
}

INSTANTIATE_TEST_SUITE_P(Backends, DemoGolden, testing::ValuesIn(all_backends()),
                         [](const testing::TestParamInfo<BackendOptions>& info) {
                           return info.param.name + "_" + info.param.isa;
                         });

}  // namespace
}  // namespace tandem
