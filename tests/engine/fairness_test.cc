// Who waits for whom, counted in steps: a long prompt holds up a short one not at all, and answers by one
// chunk.
#include <gtest/gtest.h>

#include <map>

#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace tandem {
namespace {

class Fairness : public testing::Test {
 protected:
  void SetUp() override {
    Result<LoadedModel> model = load_model({.model = std::string(TANDEM_MODELS) + "/tandem-demo",
                                            .backend = {.name = "auto", .threads = 2},
                                            .limits = {.max_rows = 64, .max_logit_rows = 8},
                                            .progress = {},
                                            .warn = {}});
    ASSERT_TRUE(model.ok());
    model_ = std::make_unique<LoadedModel>(*std::move(model));
    Result<std::unique_ptr<Engine>> engine =
        Engine::create(*model_->decoder, {.max_sequences = 3, .max_positions = 4096, .prefill_chunk = 64});
    ASSERT_TRUE(engine.ok());
    engine_ = *std::move(engine);
  }
  int submit(int prompt_tokens, int max_tokens) {
    Request request;
    request.prompt.assign(size_t(prompt_tokens), TokenId(42));
    request.max_tokens = max_tokens;
    const Result<int> number = engine_->submit(std::move(request));
    EXPECT_TRUE(number.ok());
    return *number;
  }
  // Steps until `number` gave a token.
  int steps_until(int number) {
    for (int n = 1;; ++n) {
      bool seen = false;
      engine_->step([&](const Event& e) { seen = seen || (e.request == number && e.token); });
      if (seen) return n;
      if (n > 1000) return -1;
    }
  }

  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(Fairness, AShortPromptDoesNotWaitForALongOneThatCameFirst) {
  const int long_one = submit(1500, 4);
  engine_->step([](const Event&) {});
  const int short_one = submit(20, 4);
  EXPECT_EQ(steps_until(short_one), 1);
  EXPECT_LE(steps_until(long_one), 24);
}

TEST_F(Fairness, AnAnswerGoesOnWithEveryChunkOfAnothersPrompt) {
  const int answering = submit(10, 200);
  EXPECT_EQ(steps_until(answering), 1);
  submit(1500, 4);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(steps_until(answering), 1);
}

}  // namespace
}  // namespace tandem
