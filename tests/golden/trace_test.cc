// Speculative decoding step by step against an independent implementation: which tokens were drafted from
// where, how many were kept, and what came out (spec8_traces.json, the embedded 8-bit model with its MTP head
// and its DFlash drafter).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/load_drafter.h"
#include "golden/model_under_test.h"

namespace tandem {
namespace {

// Passes everything on and remembers the drafts.
class Recorder final : public Drafter {
 public:
  struct Round {
    int start = 0;
    std::vector<TokenId> drafts;
  };

  explicit Recorder(Drafter& inner) : inner_(&inner) {}
  std::string_view name() const override { return inner_->name(); }
  DraftCost cost() const override { return inner_->cost(); }
  int max_draft() const override { return inner_->max_draft(); }
  Status begin(int slot, const DraftedSequence& sequence) override { return inner_->begin(slot, sequence); }
  void end(int slot) override { inner_->end(slot); }
  void observe(std::span<const Observation> steps) override { inner_->observe(steps); }
  void propose(std::span<const DraftRequest> requests) override {
    inner_->propose(requests);
    const Draft& d = *requests[0].draft;
    rounds.push_back({int(requests[0].text.size()) - 1, {d.tokens.begin(), d.tokens.begin() + d.n}});
  }

  std::vector<Round> rounds;

 private:
  Drafter* inner_;
};

struct Case {
  const char* drafter;
  int prompt;
};

class Trace : public testing::TestWithParam<Case> {};

TEST_P(Trace, DraftsAndTokensAreThoseOfTheGolden) {
  std::ifstream file(std::string(TANDEM_TEST_DATA) + "/goldens/spec8_traces.json");
  const nlohmann::json traces = nlohmann::json::parse(file);
  const auto trace = std::find_if(traces.begin(), traces.end(), [](const auto& t) {
    return t["kind"] == GetParam().drafter && t["prompt_index"] == GetParam().prompt;
  });
  ASSERT_NE(trace, traces.end());
  LoadedModel model = value_or_throw(load_model({.model = std::string(TANDEM_MODELS) + "/tandem-demo",
                                                 .backend = {.name = "reference"},
                                                 .limits = {.max_rows = 64, .max_logit_rows = 32}}));
  const auto inner = value_or_throw(load_drafter(
      model, {.name = GetParam().drafter, .folder = {}, .bits = 0, .limits = {.max_positions = 256}}));
  Recorder drafter(*inner);
  const auto tokens = (*trace)["tokens"].get<std::vector<TokenId>>();
  const auto engine = value_or_throw(Engine::create(
      *model.decoder,
      {.max_positions = 256,
       .prefill_chunk = 64,
       .drafters = {&drafter},
       .length = {.kind = LengthOptions::Kind::fixed, .fixed = (*trace)["gamma"].get<int>()}}));
  // The golden drafts whole blocks to its end: leave room for one more.
  Request request;
  request.prompt = (*trace)["prompt_ids"].get<std::vector<TokenId>>();
  request.max_tokens = int(tokens.size()) + 32;
  value_or_throw(engine->submit(std::move(request)));
  std::vector<TokenId> out;
  while (out.size() < tokens.size()) {
    engine->step([&](const Event& e) {
      ASSERT_EQ(e.error, nullptr);
      if (e.token) out.push_back(*e.token);
    });
  }
  out.resize(tokens.size());
  EXPECT_EQ(out, tokens);
  const auto& steps = (*trace)["steps"];
  ASSERT_GE(drafter.rounds.size(), steps.size());
  size_t n_out = 1;
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(drafter.rounds[i].start, steps[i]["start"]) << "step " << i;
    EXPECT_EQ(drafter.rounds[i].drafts, steps[i]["drafts"].get<std::vector<TokenId>>()) << "step " << i;
    n_out += steps[i]["emitted"].size();
  }
  EXPECT_EQ(n_out, tokens.size());
}

INSTANTIATE_TEST_SUITE_P(
    Demo, Trace, testing::Values(Case{"dflash", 0}, Case{"dflash", 3}, Case{"mtp", 0}, Case{"mtp", 3}),
    [](const auto& info) {
      return std::string(info.param.drafter) + "_prompt_" + std::to_string(info.param.prompt);
    });

}  // namespace
}  // namespace tandem
