// MTP heads of every make, from the folder to the tokens: what loads drafts, and the answer is that of plain
// decoding; what does not fit says so before any token.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/engine.h"
#include "engine/load_drafter.h"
#include "format/draft_vocab.h"
#include "model/mtp_checkpoint.h"

namespace tandem {
namespace {

LoadedModel load(const TempFolder& folder, const BackendOptions& backend) {
  return value_or_throw(load_model(
      {.model = folder.path(), .backend = backend, .limits = {.max_rows = 128, .max_logit_rows = 8}}));
}

Result<std::unique_ptr<Drafter>> drafter_of(LoadedModel& model, const char* name = "mtp") {
  return load_drafter(model,
                      {.name = name, .folder = {}, .limits = {.max_sequences = 2, .max_positions = 512}});
}

struct Answers {
  std::vector<std::vector<TokenId>> tokens = std::vector<std::vector<TokenId>>(2);
  int drafted = 0;
};

// Two sequences, one greedy and one drawn.
Answers answer(LoadedModel& model, Drafter* drafter) {
  std::vector<Drafter*> drafters;
  if (drafter != nullptr) drafters.push_back(drafter);
  const auto engine = value_or_throw(
      Engine::create(*model.decoder, {.max_sequences = 2,
                                      .max_positions = 512,
                                      .drafters = drafters,
                                      .length = {.kind = LengthOptions::Kind::fixed, .fixed = 3}}));
  for (const int i : {0, 1}) {
    Request request;
    for (int t = 0; t < 30 + 40 * i; ++t) request.prompt.push_back(TokenId((t * 37 + i * 11) % 512));
    request.max_tokens = 24;
    request.sampling.temperature = i == 0 ? 0 : 0.8f;
    value_or_throw(engine->submit(std::move(request)));
  }
  Answers answers;
  engine->run([&](const Event& e) {
    EXPECT_EQ(e.error, nullptr);
    if (e.token) answers.tokens[size_t(e.request)].push_back(*e.token);
  });
  for (const int i : {0, 1}) answers.drafted += engine->stats(i).speculation.drafted;
  return answers;
}

// The drafts of a head for a text, greedily: what its weights say.
std::vector<TokenId> drafts_of(LoadedModel& model, Drafter& drafter) {
  StatePool pool = value_or_throw(StatePool::create(*model.backend, model.decoder->state_shape(),
                                                    {.max_sequences = 1, .max_positions = 64}));
  SequenceState state = value_or_throw(SequenceState::create(pool));
  std::vector<TokenId> text;
  for (int t = 0; t < 40; ++t) text.push_back(TokenId(t * 29 % 512));
  ok_or_throw(state.begin_prefill(40));
  const SeqStep seq = state.rows(0);
  model.decoder->forward({.path = Path::prefill, .n_rows = 40, .seqs = {&seq, 1}}, text, pool);
  state.end_prefill();
  const SamplingParams sampling;
  ok_or_throw(drafter.begin(0, {.prompt = text, .sampling = &sampling}));
  std::vector<int32_t> rows;
  for (int r = 0; r < 40; ++r) rows.push_back(r);
  const Observation seen{.slot = 0, .start = 0, .rows = rows, .text = text};
  drafter.observe({&seen, 1});
  text.push_back(7);
  Draft draft;
  const DraftRequest request{.slot = 0, .max = 8, .text = text, .draft = &draft};
  drafter.propose({&request, 1});
  drafter.end(0);
  return {draft.tokens.begin(), draft.tokens.begin() + draft.n};
}

struct Case {
  const char* family;
  bool fused;
  BackendOptions backend;
};

class MtpHeads : public testing::TestWithParam<Case> {};

TEST_P(MtpHeads, DraftAndChangeNoToken) {
  TempFolder folder;
  write_mtp_checkpoint({.family = GetParam().family, .fused_experts = GetParam().fused}, folder);
  LoadedModel model = load(folder, GetParam().backend);
  const Answers plain = answer(model, nullptr);
  const auto drafter = value_or_throw(drafter_of(model, "auto"));
  EXPECT_EQ(drafter->name(), "mtp+ngram") << "a model's own head is found without being named";
  const Answers drafted = answer(model, drafter.get());
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_EQ(plain.tokens[1].size(), 24u);
  EXPECT_GT(drafted.drafted, 40);
}

INSTANTIATE_TEST_SUITE_P(Families, MtpHeads,
                         testing::Values(Case{"qwen3_5", false, {.name = "reference"}},
                                         Case{"qwen3_5", false, {.name = "cpu", .threads = 2}},
                                         Case{"qwen3_5_moe", false, {.name = "reference"}},
                                         Case{"qwen3_5_moe", true, {.name = "reference"}},
                                         Case{"qwen3_5_moe", false, {.name = "cpu", .threads = 2}},
                                         Case{"qwen3_5_moe", true, {.name = "cpu", .threads = 2}},
                                         Case{"qwen3_next", true, {.name = "cpu", .threads = 2}}),
                         [](const auto& info) {
                           return std::string(info.param.family) + (info.param.fused ? "_fused_" : "_") +
                                  info.param.backend.name;
                         });

TEST(MtpHead, FusedExpertsAreTheSameHeadAsOneTensorEach) {
  std::vector<TokenId> drafts[2];
  for (const bool fused : {false, true}) {
    TempFolder folder;
    write_mtp_checkpoint({.family = "qwen3_5_moe", .fused_experts = fused}, folder);
    LoadedModel model = load(folder, {.name = "reference"});
    drafts[fused] = drafts_of(model, *value_or_throw(drafter_of(model)));
  }
  EXPECT_EQ(drafts[0].size(), 8u);
  EXPECT_EQ(drafts[0], drafts[1]);
}

// The weights of a draft may be rounded: by little, and only where that is asked for.
TEST(MtpHead, EightBitsAreNearlyTheHeadAsItIs) {
  TempFolder folder;
  write_mtp_checkpoint({.family = "qwen3_5_moe", .fused_experts = true}, folder);
  LoadedModel model = load(folder, {.name = "reference"});
  std::vector<std::vector<TokenId>> first;
  for (const int bits : {0, 8, 4}) {
    const auto drafter = value_or_throw(
        load_drafter(model, {.name = "mtp", .folder = {}, .bits = bits, .limits = {.max_positions = 512}}));
    first.push_back(drafts_of(model, *drafter));
  }
  EXPECT_EQ(first[1][0], first[0][0]);
  EXPECT_NE(first[2], first[0]) << "4 bits were asked for and not used";
}

class MtpDraftVocab : public testing::Test {
 protected:
  MtpDraftVocab() {
    write_mtp_checkpoint({.family = "qwen3_5"}, folder_);
    model_ = load(folder_, {.name = "cpu", .threads = 2});
  }
  Result<std::unique_ptr<Drafter>> drafter(std::vector<TokenId> ids, const char* name = "mtp",
                                           int vocab_size = 512) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    const std::string file =
        folder_.write("v.json", draft_vocab_text({.vocab_size = vocab_size, .coverage = 1, .ids = ids}));
    return load_drafter(model_, {.name = name,
                                 .folder = {},
                                 .bits = 0,
                                 .limits = {.max_sequences = 2, .max_positions = 512},
                                 .draft_vocab = file});
  }
  static std::vector<TokenId> every(int step) {
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < 512; id += step) ids.push_back(id);
    return ids;
  }
  TempFolder folder_;
  LoadedModel model_;
};

TEST_F(MtpDraftVocab, DraftsAreTheBestOfItsTokens) {
  const std::vector<TokenId> all = drafts_of(model_, *value_or_throw(drafter(every(1))));
  EXPECT_EQ(
      all,
      drafts_of(model_,
                *value_or_throw(load_drafter(
                    model_, {.name = "mtp", .folder = {}, .bits = 0, .limits = {.max_positions = 512}}))));
  // As long as the best tokens are among them, the others do not matter.
  std::vector<TokenId> some = every(5);
  some.insert(some.end(), all.begin(), all.end());
  EXPECT_EQ(drafts_of(model_, *value_or_throw(drafter(some))), all);
  std::vector<TokenId> without = every(1);
  std::erase(without, all[0]);
  const std::vector<TokenId> others = drafts_of(model_, *value_or_throw(drafter(without)));
  EXPECT_EQ(others.size(), 8u);
  EXPECT_EQ(std::count(others.begin(), others.end(), all[0]), 0);
}

TEST_F(MtpDraftVocab, ChangesNoToken) {
  const auto few = value_or_throw(drafter(every(7)));
  const Answers drafted = answer(model_, few.get());
  EXPECT_EQ(drafted.tokens, answer(model_, nullptr).tokens);
  EXPECT_GT(drafted.drafted, 40);
}

TEST_F(MtpDraftVocab, OfAnotherModelOrForAnotherDrafterIsRefused) {
  const auto other_model = drafter({1, 2}, "mtp", 600), lookup = drafter({1, 2}, "ngram");
  ASSERT_FALSE(other_model.ok());
  EXPECT_NE(other_model.error().message.find("v.json: vocab_size: expected 512"), std::string::npos);
  ASSERT_FALSE(lookup.ok());
  EXPECT_NE(lookup.error().message.find("use --drafter mtp"), std::string::npos);
}

TEST(MtpHead, TakesTheHiddenStatesThatConfigJsonNames) {
  std::vector<std::vector<TokenId>> drafts;
  for (const char* block :
       {"", R"("tandem_mtp": {"input": "post_norm", "chain": "post_norm"},)",
        R"("tandem_mtp": {"input": "pre_norm"},)", R"("tandem_mtp": {"chain": "pre_norm"},)"}) {
    TempFolder folder;
    write_mtp_checkpoint({.family = "qwen3_5", .fields = block}, folder);
    LoadedModel model = load(folder, {.name = "reference"});
    drafts.push_back(drafts_of(model, *value_or_throw(drafter_of(model))));
    const auto own = value_or_throw(load_drafter(
        model, {.name = "mtp", .folder = {}, .limits = {.max_positions = 512}, .mtp = MtpOptions{}}));
    EXPECT_EQ(drafts_of(model, *own), drafts[0]) << "a caller's options come before the file's";
  }
  EXPECT_EQ(drafts[1], drafts[0]) << "both after the norm is what a file without the block means";
  EXPECT_NE(drafts[2], drafts[0]);
  EXPECT_NE(drafts[3], drafts[0]);
}

void expect_refused(const MtpCheckpoint& checkpoint, std::initializer_list<const char*> words) {
  TempFolder folder;
  write_mtp_checkpoint(checkpoint, folder);
  LoadedModel model = load(folder, {.name = "reference"});
  const auto drafter = drafter_of(model);
  ASSERT_FALSE(drafter.ok());
  for (const char* word : words) {
    EXPECT_NE(drafter.error().message.find(word), std::string::npos)
        << word << " is not in: " << drafter.error().message;
  }
}

TEST(MtpHead, WhatDoesNotFitIsNamedBeforeAnyToken) {
  expect_refused({.family = "qwen3_5", .fc_rows = 96}, {"mtp.fc.weight", "[96, 256]", "[128, 256]"});
  expect_refused({.family = "qwen3_5", .left_out = "mtp.norm.weight"}, {"mtp.norm.weight", "missing"});
  expect_refused({.family = "qwen3_5_moe", .left_out = "mtp.layers.0.mlp.experts.5.up_proj.weight"},
                 {"mtp.layers.0.mlp.experts.5.up_proj.weight", "missing"});
  expect_refused({.family = "qwen3_5", .fields = R"("mtp_num_hidden_layers": 2,)"},
                 {"config.json", "mtp_num_hidden_layers", "expected 1", "found 2"});
  expect_refused({.family = "qwen3_5", .left_out = "mtp.fc.weight"},
                 {"no multi-token-prediction head", "mtp.fc.weight", "another drafter"});
}

TEST(MtpHead, OneThatIsNotSupportedIsNotChosenUnasked) {
  TempFolder folder;
  write_mtp_checkpoint({.family = "qwen3_5", .fields = R"("mtp_num_hidden_layers": 2,)"}, folder);
  LoadedModel model = load(folder, {.name = "reference"});
  EXPECT_EQ(value_or_throw(drafter_of(model, "auto"))->name(), "ngram");
  EXPECT_TRUE(check_model(folder.path(), {}).ok()) << "the model itself is sound";
}

}  // namespace
}  // namespace tandem
