#include "sample/processors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> processed(std::vector<float> logits, const SamplingParams& params,
                             const TokenHistory& history, AllowedTokens allowed = {}) {
  process_logits(params, history, allowed, logits);
  return logits;
}

TEST(Processors, DefaultsChangeNothing) {
  const std::vector<TokenId> prompt{0, 1};
  TokenHistory history(prompt, {});
  history.push(1);
  EXPECT_FALSE(changes_logits({}, history, {}));
  EXPECT_THAT(processed({1, -2, 3}, {}, history), ElementsAre(1, -2, 3));
}

TEST(Processors, RepetitionCountsPromptAndOutputOnceAndDividesOnlyPositiveLogits) {
  SamplingParams params{.repetition_penalty = 2};
  const std::vector<TokenId> prompt{0, 0, 1};
  TokenHistory history(prompt, params);
  history.push(2);
  EXPECT_THAT(processed({4, -4, 0, 5}, params, history), ElementsAre(2, -8, 0, 5));
}

TEST(Processors, PresenceAndFrequencyCountTheOutputOnly) {
  SamplingParams params{.presence_penalty = 1, .frequency_penalty = 0.25f};
  const std::vector<TokenId> prompt{0, 0, 0};
  TokenHistory history(prompt, params);
  for (const TokenId t : {1, 1, 2}) history.push(t);
  EXPECT_THAT(processed({4, 4, 4, 4}, params, history), ElementsAre(4, 2.5f, 2.75f, 4));
}

// Any other order gives other numbers: bias before repetition ((1 + 3) / 2, not 1 / 2 + 3), repetition before
// presence, masks after everything (a bias cannot bring a masked token back).
TEST(Processors, RunInTheirFixedOrder) {
  SamplingParams params{.repetition_penalty = 2,
                        .presence_penalty = 0.5f,
                        .min_tokens = 5,
                        .logit_bias = {{0, 3.0f}, {1, 100.0f}, {2, 100.0f}},
                        .stop_ids = {1}};
  TokenHistory history({}, params);
  history.push(0);
  const uint32_t allowed[] = {0b1011};
  EXPECT_THAT(processed({1, 1, 1, 1}, params, history, allowed), ElementsAre(1.5f, -kInf, -kInf, 1));
}

TEST(Processors, StopTokensReturnOnceTheOutputIsLongEnough) {
  SamplingParams params{.min_tokens = 2, .stop_ids = {1}};
  const std::vector<TokenId> prompt{0, 0, 0, 0};
  TokenHistory history(prompt, params);
  EXPECT_THAT(processed({1, 2}, params, history), ElementsAre(1, -kInf));
  history.push(0);
  EXPECT_THAT(processed({1, 2}, params, history), ElementsAre(1, -kInf));
  history.push(0);
  EXPECT_FALSE(changes_logits(params, history, {}));
  EXPECT_THAT(processed({1, 2}, params, history), ElementsAre(1, 2));
}

TEST(Processors, IdsBeyondACutRowArePassedOver) {
  SamplingParams params{
      .repetition_penalty = 2, .presence_penalty = 1, .min_tokens = 9, .logit_bias = {{7, 1.0f}}};
  params.stop_ids = {8};
  const std::vector<TokenId> prompt{9};
  TokenHistory history(prompt, params);
  history.push(6);
  EXPECT_THAT(processed({1, 2}, params, history), ElementsAre(1, 2));
}

TEST(Processors, WindowsForgetOldTokens) {
  SamplingParams params{
      .repetition_penalty = 2, .presence_penalty = 1, .repetition_window = 3, .output_window = 1};
  const std::vector<TokenId> prompt{0, 1};
  TokenHistory history(prompt, params);
  history.push(2);
  EXPECT_THAT(processed({4, 4, 4, 4}, params, history), ElementsAre(2, 2, 1, 4));
  history.push(3);  // 0 leaves the window of three, 2 the window of one
  EXPECT_THAT(processed({4, 4, 4, 4}, params, history), ElementsAre(4, 2, 2, 1));
  history.pop();
  EXPECT_THAT(processed({4, 4, 4, 4}, params, history), ElementsAre(2, 2, 1, 4));
}

std::map<TokenId, uint32_t> as_map(const TokenCounts& counts) {
  std::map<TokenId, uint32_t> m;
  for (const TokenCounts::Entry& e : counts.entries()) {
    if (e.token != TokenCounts::kFree) m[e.token] = e.count;
  }
  return m;
}

// Row i of a verify step pushes the drafts before it and takes them back: nothing of them may stay.
TEST(TokenCounts, PushAndPopEqualAFreshCountOfWhatIsLeft) {
  std::mt19937 rng(7);
  for (const int window : {0, 1, 5, 40}) {
    for (const TokenId n_vocab : {3, 50, 200000}) {
      TokenCounts counts(window);
      std::vector<TokenId> tokens;
      for (int step = 0; step < 600; ++step) {
        if (tokens.empty() || rng() % 5 < 3) {
          tokens.push_back(TokenId(rng() % uint32_t(n_vocab)));
          counts.push(tokens.back());
        } else {
          tokens.pop_back();
          counts.pop();
        }
        std::map<TokenId, uint32_t> want;
        const size_t first =
            window == 0 || tokens.size() <= size_t(window) ? 0 : tokens.size() - size_t(window);
        for (size_t i = first; i < tokens.size(); ++i) ++want[tokens[i]];
        ASSERT_EQ(as_map(counts), want)
            << "window " << window << " vocabulary " << n_vocab << " step " << step;
      }
    }
  }
}

TEST(SamplingParams, EachBadFieldIsRefusedByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::pair<SamplingParams, const char*> cases[] = {
      {{.temperature = -1}, "temperature"},
      {{.temperature = nan}, "temperature"},
      {{.temperature = kInf}, "temperature"},
      {{.top_k = -1}, "top_k"},
      {{.top_p = 0}, "top_p"},
      {{.top_p = 1.5}, "top_p"},
      {{.min_p = -0.1}, "min_p"},
      {{.min_p = nan}, "min_p"},
      {{.repetition_penalty = 0}, "repetition_penalty"},
      {{.presence_penalty = 2.5f}, "presence_penalty"},
      {{.frequency_penalty = nan}, "frequency_penalty"},
      {{.repetition_window = -1}, "repetition_window"},
      {{.output_window = -1}, "output_window"},
      {{.min_tokens = -1}, "min_tokens"},
      {{.logit_bias = {{100, 1.0f}}}, "logit_bias: token 100"},
      {{.logit_bias = {{-1, 1.0f}}}, "logit_bias: token -1"},
      {{.logit_bias = {{5, 101.0f}}}, "logit_bias: token 5"},
      {{.logit_bias = {{5, 1.0f}, {4, 1.0f}, {5, 2.0f}}}, "logit_bias: token 5"},
      {{.stop_ids = {-3}}, "stop_ids"},
  };
  for (const auto& [params, field] : cases) {
    const Status status = validate(params, 100);
    ASSERT_FALSE(status.ok()) << field;
    EXPECT_THAT(status.error().message, HasSubstr(field));
  }
  EXPECT_TRUE(validate({}, 100).ok());
  EXPECT_TRUE(
      validate({.temperature = 2, .top_k = 1000, .top_p = 0.5, .min_p = 1, .logit_bias = {{99, -100.0f}}},
               100)
          .ok());
}

}  // namespace
}  // namespace tandem
