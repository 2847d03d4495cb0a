// A DFlash 2 folder from the command's --draft to the tokens: it loads as it is, drafts, and the answer is
// that of plain decoding.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/load_drafter.h"
#include "model/tiny_dflash.h"

namespace tandem {
namespace {

struct Answers {
  std::vector<std::vector<TokenId>> tokens = std::vector<std::vector<TokenId>>(3);
  int drafted = 0, accepted = 0;
};

// Three sequences, greedy and drawn, of which one crosses a page of positions.
Answers answer(LoadedModel& model, Drafter* drafter, int tree_nodes = 0,
               AcceptMode mode = AcceptMode::coupled) {
  std::vector<Drafter*> drafters;
  if (drafter != nullptr) drafters.push_back(drafter);
  const auto engine = value_or_throw(
      Engine::create(*model.decoder, {.max_sequences = 3,
                                      .max_positions = 1024,
                                      .drafters = drafters,
                                      .length = {.kind = LengthOptions::Kind::fixed, .fixed = 7},
                                      .accept = {.mode = mode},
                                      .tree_nodes = tree_nodes}));
  for (const int i : {0, 1, 2}) {
    Request request;
    for (int t = 0; t < 5 + 27 * i; ++t) request.prompt.push_back(TokenId((t * 37 + i * 11) % 64));
    request.max_tokens = 40;
    request.sampling.seed = uint64_t(i);
    request.sampling.temperature = i == 0 ? 0 : 0.7f;
    if (i == 2) request.sampling.top_p = 0.9;
    value_or_throw(engine->submit(std::move(request)));
  }
  Answers answers;
  engine->run([&](const Event& e) {
    EXPECT_EQ(e.error, nullptr);
    if (e.token) answers.tokens[size_t(e.request)].push_back(*e.token);
  });
  for (const int i : {0, 1, 2}) {
    answers.drafted += engine->stats(i).speculation.drafted;
    answers.accepted += engine->stats(i).speculation.accepted;
  }
  return answers;
}

class Dflash2 : public testing::TestWithParam<BackendOptions> {};

TEST_P(Dflash2, DraftsAndChangesNoToken) {
  const TempFolder parent;
  const std::string target = parent / "model";
  std::filesystem::create_directory(target);
  const TempFolder written;
  const TinySizes sizes{.d = 64, .d_ff = 64};  // groups of 64: 8 bits have something to quantise
  write_tiny_target(written, sizes);
  std::filesystem::copy(written.path(), target, std::filesystem::copy_options::recursive);
  const TempFolder drafter_folder;
  write_tiny_drafter(drafter_folder,
                     {.block = 8, .windows = {30, 30, 30}, .is_causal = false, .sizes = sizes});
  std::filesystem::copy(drafter_folder.path(), target + "-dflash");

  LoadedModel model = value_or_throw(
      load_model({.model = target, .backend = GetParam(), .limits = {.max_rows = 128, .max_logit_rows = 8}}));
  const Answers plain = answer(model, nullptr);
  EXPECT_EQ(plain.tokens[2].size(), 40u);
  for (const int bits : {0, 8}) {  // as stored, and quantised while it is loaded
    const auto drafter = value_or_throw(load_drafter(
        model,
        {.name = "auto", .folder = {}, .bits = bits, .limits = {.max_sequences = 3, .max_positions = 1024}}));
    ASSERT_EQ(drafter->name(), "dflash+ngram");
    EXPECT_EQ(drafter->sources().back()->max_draft(), 7);
    for (const int tree_nodes : {0, 12}) {
      const Answers drafted = answer(model, drafter.get(), tree_nodes);
      EXPECT_EQ(drafted.tokens, plain.tokens) << bits << " bits, trees of " << tree_nodes;
      EXPECT_GT(drafted.drafted, 100);
    }
    const Answers tested = answer(model, drafter.get(), 0, AcceptMode::rejection);
    EXPECT_EQ(tested.tokens[0], plain.tokens[0]) << "greedy: a draft is right if the target says so";
    EXPECT_EQ(tested.tokens[2].size(), 40u);
    EXPECT_GT(tested.accepted, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Dflash2,
                         testing::Values(BackendOptions{.name = "reference"},
                                         BackendOptions{.name = "cpu", .threads = 2, .isa = "auto"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
