// A decode step takes no memory from the system: every buffer was made when the model was loaded, the engine
// started or the request came in. Counted are all calls of the allocator, by any thread. (The reference
// backend is the readable definition and makes its working vectors where it needs them.)
#include <gtest/gtest.h>

#include <vector>

#include "engine/engine.h"
#include "engine/load_drafter.h"
#include "engine/loaded_model.h"
#include "support/count_allocations.h"

namespace tandem {
namespace {

struct Case {
  const char* name;
  const char* model;
  const char* backend;
};

class DecodeStep : public testing::TestWithParam<Case> {
 protected:
  static LoadedModel load(const DecoderLimits& limits) {
    Result<LoadedModel> model =
        load_model({.model = GetParam().model,
                    .backend = {.name = GetParam().backend, .threads = 2, .isa = "auto"},
                    .limits = limits,
                    .progress = {},
                    .warn = {}});
    EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message);
    return *std::move(model);
  }

  // Allocations of n calls of body().
  template <class Body>
  static int allocations(int n, Body&& body) {
    const int64_t before = allocations_so_far();
    for (int i = 0; i < n; ++i) body();
    return int(allocations_so_far() - before);
  }
};

TEST_P(DecodeStep, OfTheEngineAllocatesNothing) {
  LoadedModel model = load({.max_rows = 64, .max_logit_rows = 3});
  const auto engine =
      Engine::create(*model.decoder,
                     {.max_sequences = 3, .max_positions = 3 * 128, .prefill_chunk = 64, .n_text_tokens = 0});
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  // Greedy, drawn, and drawn with penalties: each has its own working memory.
  std::vector<SamplingParams> params(3);
  params[1].temperature = 1;
  params[2] = {.temperature = 0.8f,
               .top_k = 20,
               .top_p = 0.9,
               .min_p = 0.01,
               .repetition_penalty = 1.1f,
               .presence_penalty = 0.5f,
               .frequency_penalty = 0.1f};
  for (const SamplingParams& p : params) {
    const auto number = (*engine)->submit(
        {.prompt = {1, 2, 3, 4, 5}, .sampling = p, .max_tokens = 100, .top_logprobs = std::nullopt});
    ASSERT_TRUE(number.ok()) << number.error().message;
  }
  int tokens = 0;
  const Engine::Sink sink = [&](const Event& event) {
    EXPECT_EQ(event.error, nullptr);
    tokens += event.token.has_value();
  };
  while (tokens < 12) (*engine)->step(sink);  // the prompts, and the first steps
  const int before = tokens;
  EXPECT_EQ(allocations(70, [&] { (*engine)->step(sink); }), 0);
  EXPECT_EQ(tokens - before, 3 * 70) << "the steps counted were decode steps of all three";
}

TEST_P(DecodeStep, OfManyRowsAllocatesNothing) {
  LoadedModel model = load({.max_rows = 64, .max_logit_rows = kMaxDecodeRows});
  Decoder& decoder = *model.decoder;
  Result<StatePool> pool =
      StatePool::create(decoder.backend(), decoder.state_shape(),
                        {.max_sequences = 1, .max_positions = 1024, .tape_rows = kMaxDecodeRows});
  ASSERT_TRUE(pool.ok()) << pool.error().message;
  Result<SequenceState> sequence = SequenceState::create(*pool);
  ASSERT_TRUE(sequence.ok()) << sequence.error().message;
  std::vector<TokenId> ids(kMaxDecodeRows);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = TokenId(i * 37 % 512);
  const auto step = [&](int rows) {
    ASSERT_TRUE(sequence->begin_verify(rows).ok());
    const SeqStep seq = sequence->rows(0);
    decoder.forward({.path = Path::decode, .n_rows = rows, .seqs = std::span(&seq, 1)},
                    std::span(ids).first(size_t(rows)), *pool);
    decoder.logits(0, rows);
    sequence->commit(rows / 2 + 1);
  };
  EXPECT_EQ(allocations(1,
                        [&] {
                          for (const int rows : {1, 2, 5, 16, kMaxDecodeRows}) step(rows);
                        }),
            0);
}

// Nor does a round with drafts, once drafts of that length have been made.
TEST(DecodeRound, WithADrafterAllocatesNothing) {
  Result<LoadedModel> model = load_model({.model = std::string(TANDEM_MODELS) + "/tandem-demo",
                                          .backend = {.name = "cpu", .threads = 2, .isa = "auto"},
                                          .limits = {.max_rows = 128, .max_logit_rows = 32},
                                          .progress = {},
                                          .warn = {}});
  ASSERT_TRUE(model.ok()) << model.error().message;
  for (const char* name : {"dflash", "mtp", "ngram", "mtp+ngram"}) {
    const auto drafter = load_drafter(
        *model,
        {.name = name, .folder = {}, .bits = 8, .limits = {.max_sequences = 2, .max_positions = 1024}});
    ASSERT_TRUE(drafter.ok()) << drafter.error().message;
    const auto engine =
        Engine::create(*model->decoder, {.max_sequences = 2,
                                         .max_positions = 1024,
                                         .prefill_chunk = 64,
                                         .drafters = {drafter->get()},
                                         .length = {.kind = LengthOptions::Kind::fixed, .fixed = 4}});
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    for (int i = 0; i < 2; ++i) {
      const auto number = (*engine)->submit({.prompt = {1, 2, 3, 1, 2, 3, TokenId(i)},
                                             .sampling = {},
                                             .max_tokens = 400,
                                             .top_logprobs = std::nullopt});
      ASSERT_TRUE(number.ok()) << number.error().message;
    }
    const Engine::Sink sink = [](const Event&) {};
    for (int i = 0; i < 12; ++i) (*engine)->step(sink);
    const int64_t before = allocations_so_far();
    for (int i = 0; i < 20; ++i) (*engine)->step(sink);
    EXPECT_EQ(allocations_so_far() - before, 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DecodeStep,
                         testing::Values(Case{"HybridOnCpu", TANDEM_TEST_DATA "/goldens/tiny/qwen3_5", "cpu"},
                                         Case{"MixtureOnCpu", TANDEM_TEST_DATA "/goldens/tiny/qwen3_5_moe",
                                              "cpu"},
                                         Case{"EmbeddedOnCpu", TANDEM_MODELS "/tandem-demo", "cpu"}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
