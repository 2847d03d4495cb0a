#include "engine/mtp_probe.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/temp_folder.h"
#include "golden/model_under_test.h"

namespace tandem {
namespace {

MtpTrial trial(int rounds, std::array<int, 3> accepted) {
  return {
      .options = {}, .rounds = rounds, .judged = {rounds, accepted[0], accepted[1]}, .accepted = accepted};
}

TEST(MtpProbe, FiguresOfATrialAreThoseOfItsRounds) {
  const MtpTrial t = trial(4, {3, 2, 1});  // rounds that accept 0, 1, 2 and 3 tokens
  EXPECT_DOUBLE_EQ(t.acceptance(0), 0.75);
  EXPECT_DOUBLE_EQ(t.acceptance(2), 0.5);
  EXPECT_DOUBLE_EQ(t.accepted_per_round(), 1.5);
  EXPECT_DOUBLE_EQ(t.variance(), (2.25 + 0.25 + 0.25 + 2.25) / 3 / 4);  // of the mean
}

TEST(MtpProbe, ChanceAloneChangesNothing) {
  const MtpTrial now = trial(100, {60, 30, 15}), little_better = trial(100, {63, 33, 18});
  const MtpTrial better = trial(100, {85, 70, 60}), best = trial(100, {88, 75, 65});
  EXPECT_EQ(best_trial(std::vector{now, little_better, little_better, now}), 0);
  EXPECT_EQ(best_trial(std::vector{now, better, best, little_better}), 2);
  EXPECT_EQ(best_trial(std::vector{now, trial(0, {}), trial(1, {1, 1, 1}), now}), 0)
      << "one round says nothing";
}

// The embedded model was trained with states after both norms; a file that says otherwise is found out.
TEST(MtpProbe, FindsWhatTheHeadWasTrainedWith) {
  const std::string demo = std::string(TANDEM_MODELS) + "/tandem-demo";
  for (const char* block : {"", R"("tandem_mtp": {"input": "pre_norm", "chain": "pre_norm"},)"}) {
    TempFolder folder;
    for (const char* file : {"model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::create_symlink(std::filesystem::absolute(demo) / file, folder / file);
    }
    std::string config = read_file(demo + "/config.json");
    config.insert(config.find('{') + 1, block);
    folder.write("config.json", config);
    LoadedModel model =
        value_or_throw(load_model({.model = folder.path(), .backend = {.name = "cpu", .threads = 2}}));
    std::vector<std::vector<TokenId>> prompts;
    for (const char* text :
         {"def fibonacci(n):\n", "import os\nimport sys\n\ndef main():\n", "class Stack:\n",
          "def read_lines(path):\n    with open(path) as f:\n", "# Prints\n", "for i in "}) {
      prompts.push_back(value_or_throw(model.tokenizer->encode(text, SpecialTokens::recognise)));
    }
    const MtpProbe probe = value_or_throw(probe_mtp(model, prompts, 64));
    ASSERT_EQ(probe.trials.size(), 4u);
    EXPECT_EQ(probe.trials[0].options, model.config.mtp);
    EXPECT_EQ(probe.trials[size_t(probe.best)].options, MtpOptions{}) << "config.json: " << block;
    EXPECT_EQ(probe_mtp(model, prompts, 64, [] { return true; }).error().message, "interrupted");
  }
}

}  // namespace
}  // namespace tandem
