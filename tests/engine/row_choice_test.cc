// An answer that takes the device's choices (greedy, or of a top-k) and none of the logits has the tokens of
// the logits, however many rows a step has and whoever shares it. Steps recur often enough that a backend
// which records them replays most.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/engine.h"
#include "golden/model_under_test.h"
#ifdef TANDEM_CUDA_EMULATED
#include "backend/cuda/cuda_backend.h"
#else
#include "support/backends.h"
#endif

namespace tandem {
namespace {

struct Case {
  std::string family;
  std::string name;
  std::function<std::unique_ptr<Backend>()> make;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* family : {"qwen3_5", "qwen3_5_moe"}) {
#ifdef TANDEM_CUDA_EMULATED
    all.push_back({family, "emulated", [] { return value_or_throw(make_cuda_backend(DeltaForm::exact)); }});
#else
    for (const BackendOptions& options : all_backends()) {
      all.push_back({family, options.name + "_" + options.isa,
                     [options] { return value_or_throw(make_backend(options)); }});
    }
#endif
  }
  return all;
}

// Drafts what the answers will be, with a mistake now and then.
class Oracle final : public Drafter {
 public:
  explicit Oracle(int n_vocab) : n_vocab_(n_vocab) {}
  void knows(std::vector<TokenId> text) { texts_.push_back(std::move(text)); }

  std::string_view name() const override { return "oracle"; }
  DraftCost cost() const override { return DraftCost::block; }
  int max_draft() const override { return kMaxDraft; }
  Status begin(int, const DraftedSequence&) override { return {}; }
  void end(int) override {}
  void observe(std::span<const Observation>) override {}
  void propose(std::span<const DraftRequest> requests) override {
    for (const DraftRequest& r : requests) {
      for (const std::vector<TokenId>& text : texts_) {
        if (text.size() <= r.text.size() || !std::equal(r.text.begin(), r.text.end(), text.begin())) continue;
        for (size_t i = r.text.size(); i < text.size() && r.draft->n < r.max; ++i) {
          r.draft->push(rng_() % 5 == 0 ? TokenId(rng_() % unsigned(n_vocab_)) : text[i]);
        }
        break;
      }
    }
  }

 private:
  int n_vocab_;
  std::vector<std::vector<TokenId>> texts_;
  std::mt19937 rng_{4};
};

class RowChoices : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kLogitRows = 5;
  ModelUnderTest model_{std::string(TANDEM_TEST_DATA) + "/goldens/tiny/" + GetParam().family,
                        GetParam().make(),
                        {.max_rows = 64, .max_logit_rows = kLogitRows}};

  // Prompt and answer of each request.
  std::vector<std::vector<TokenId>> run(const std::vector<Request>& requests, int n_tokens,
                                        Drafter* drafter) {
    EngineOptions options{.max_sequences = int(requests.size()),
                          .max_positions = 256 * int(requests.size()),
                          .prefill_chunk = 64,
                          .n_text_tokens = n_tokens,
                          .length = {.kind = LengthOptions::Kind::fixed, .fixed = 2}};
    if (drafter != nullptr) options.drafters = {drafter};
    const auto engine = value_or_throw(Engine::create(model_.decoder(), options));
    std::vector<std::vector<TokenId>> texts;
    std::map<int, size_t> index;
    for (const Request& r : requests) {
      index[value_or_throw(engine->submit(r))] = texts.size();
      texts.push_back(r.prompt);
    }
    engine->run([&](const Event& e) {
      EXPECT_EQ(e.error, nullptr);
      if (e.token) texts[index.at(e.request)].push_back(*e.token);
    });
    return texts;
  }
};

TEST_P(RowChoices, GivesTheTokensOfTheLogits) {
  std::mt19937 rng(11);
  const int n_vocab = model_.n_vocab(), n_tokens = n_vocab - n_vocab / 3;
  std::vector<Request> greedy(2);
  for (Request& r : greedy) {
    for (int i = 0; i < 5; ++i) r.prompt.push_back(TokenId(rng() % unsigned(n_tokens)));
    r.max_tokens = 16;
  }
  std::vector<Request> by_logits = greedy;
  for (Request& r : by_logits) r.top_logprobs = 0;
  const auto want = run(by_logits, n_tokens, nullptr);
  EXPECT_EQ(run(greedy, n_tokens, nullptr), want);
  for (const auto& text : want) {
    for (const TokenId t : text) EXPECT_LT(t, n_tokens);
  }

  // In verify steps of more rows than the head takes at once, beside requests that need their logits.
  Oracle oracle(n_vocab);
  for (const auto& text : want) oracle.knows(text);
  std::vector<Request> mixed = {by_logits[0], greedy[0], greedy[1], greedy[0]};
  mixed[0].sampling.temperature = 0.7f;
  mixed[0].sampling.seed = 5;
  mixed[0].top_logprobs = std::nullopt;
  mixed[0].max_tokens = 8;  // then the others are alone
  mixed[3].sampling = {.temperature = 0.9f, .top_k = 20, .top_p = 0.9, .seed = 6};
  Request drawn = mixed[3];
  drawn.top_logprobs = 0;  // by its logits
  const auto plain = run({mixed[0], drawn}, n_tokens, nullptr);
  oracle.knows(plain[1]);
  const auto got = run(mixed, n_tokens, &oracle);
  EXPECT_EQ(got[0], plain[0]);
  EXPECT_EQ(got[3], plain[1]);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i + 1], want[i]) << "sequence " << i;
}

INSTANTIATE_TEST_SUITE_P(Backends, RowChoices, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.family + "_" + info.param.name; });

// Of the decoder itself, whether its head came with the step or afterwards.
TEST_P(RowChoices, OfADecoderIsThatOfItsLogits) {
  Decoder& decoder = model_.decoder();
  StatePool pool = model_.make_pool(1, 128);
  SequenceState state = value_or_throw(SequenceState::create(pool));
  const int n_vocab = model_.n_vocab();
  std::mt19937 rng(12);
  for (const int n : {1, 1, 1, 1, 1, 3, 3, 3, 3, 1, 7, 7, 7, 7, 7}) {
    std::vector<TokenId> ids;
    for (int i = 0; i < n; ++i) ids.push_back(TokenId(rng() % unsigned(n_vocab)));
    ok_or_throw(state.begin_verify(n));
    const SeqStep seq = state.rows(0);
    const int n_choices = n == 3 ? n_vocab / 2 : n_vocab;
    const RowChoice choice{rng() % 2 == 0 ? Choose::greedy : Choose::best, n_choices};
    decoder.forward_with_head({.n_rows = n, .seqs = {&seq, 1}}, ids, pool, choice);
    state.commit(n);
    for (int row = 0; row < n; ++row) {
      if (row == kLogitRows) decoder.head(row, n - row, choice);
      const std::span<const float> logits = decoder.row_logits(row).first(size_t(n_choices));
      EXPECT_EQ(decoder.choice(row), argmax(logits)) << "row " << row << " of " << n;
      const BestLogits best = decoder.best(row);
      if (choice.what == Choose::greedy) {
        EXPECT_TRUE(best.ids.empty());
        continue;
      }
      ASSERT_EQ(int(best.ids.size()), std::min(n_choices, Backend::kMostBest));
      std::vector<float> sorted(logits.begin(), logits.end());
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      for (size_t i = 0; i < best.ids.size(); ++i) {
        EXPECT_EQ(best.values[i], sorted[i]);
        EXPECT_EQ(best.values[i], logits[size_t(best.ids[i])]);
      }
    }
    decoder.head(0, 1, {});
    EXPECT_EQ(decoder.choice(0), -1) << "nobody asked for one";
  }
}

}  // namespace
}  // namespace tandem
