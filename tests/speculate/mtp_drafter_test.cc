// The drafts of an MTP head depend on the committed text alone: not on what was drafted and refused before,
// on how long it was decoded plainly, on the other sequences of a call, or on how a prompt was cut.
#include "speculate/mtp_drafter.h"

#include <gtest/gtest.h>

#include "model/mtp_checkpoint.h"
#include "speculate/mtp_target.h"

namespace tandem {
namespace {

struct Pair {
  const char* name;
  bool tiny;
  BackendOptions backend;
};

// The trained model where it matters that drafts are good, and a small one on the readable backend.
class MtpDrafts : public testing::TestWithParam<Pair> {
 protected:
  MtpDrafts() {
    if (GetParam().tiny) write_mtp_checkpoint({.family = "qwen3_5"}, folder_);
  }
  Target target(int max_rows = 64) const {
    return Target(GetParam().tiny ? folder_.path() : std::string(TANDEM_MODELS) + "/tandem-demo",
                  value_or_throw(make_backend(GetParam().backend)), max_rows);
  }
  TempFolder folder_;
};

TEST_P(MtpDrafts, OfABusyDrafterAreThoseOfOneThatOnlyWatched) {
  Target target = this->target();
  const auto busy = target.drafter();
  int n_compared = 0;
  for (unsigned seed = 0; seed < 3; ++seed) {
    Rng rng{seed};
    std::vector<std::unique_ptr<MtpDrafter>> quiet;
    std::vector<MtpDrafter*> all = {busy.get()};
    for (int j = 0; j < 6; ++j) all.push_back(quiet.emplace_back(target.drafter()).get());
    const int i = target.begin(random_tokens(rng, uniform(rng, 1, 140), target.n_vocab()), all);
    target.prefill(i, 64, all);
    for (int r = 0; r < 60; ++r) {
      // Long stretches of plain rounds too: more rows than a drafter lets wait.
      const bool plain = r >= 10 && r < 50 && seed == 2;
      const int most = plain || rng() % 4 == 0 ? 0 : uniform(rng, 1, 9);
      Draft draft;
      if (most > 0) draft = target.propose(*busy, i, most);
      if (draft.n > 0 && r % 10 == 9) {
        const Draft fresh = target.propose(*quiet[size_t(r / 10)], i, most);
        ASSERT_TRUE(same(fresh, draft))
            << "seed " << seed << ", round " << r << ": " << text_of(draft) << ", not " << text_of(fresh);
        ++n_compared;
      }
      target.round(i, {draft.tokens.data(), size_t(draft.n)}, draft.n == 0 ? 0 : uniform(rng, 0, draft.n),
                   all);
    }
    const Draft last = target.propose(*busy, i, 4);
    EXPECT_EQ(last.n, 4);
    target.end(i, all);
  }
  EXPECT_GE(n_compared, 6);
}

TEST_P(MtpDrafts, OfABatchAreThoseOfEachSequenceAlone) {
  Target target = this->target();
  const auto together = target.drafter(), alone = target.drafter();
  MtpDrafter* const all[] = {together.get(), alone.get()};
  Rng rng{5};
  // In the first round as many rows wait of each as may: together more than a pass takes.
  for (const int n : {33, 33, 33, 65}) {
    target.prefill(target.begin(random_tokens(rng, n, target.n_vocab()), all), 64, all);
  }
  for (int r = 0; r < 12; ++r) {
    std::vector<Draft> drafts(Target::kSequences);
    std::vector<DraftRequest> requests;
    for (int i = 0; i < Target::kSequences; ++i) {
      if (r > 0 && rng() % 4 == 0) continue;
      requests.push_back(
          {.slot = i, .max = uniform(rng, 1, 6), .text = target.text(i), .draft = &drafts[size_t(i)]});
    }
    if (r > 0) std::shuffle(requests.begin(), requests.end(), rng);
    together->propose(requests);
    for (const DraftRequest& request : requests) {
      const Draft single = target.propose(*alone, request.slot, request.max);
      EXPECT_EQ(request.draft->n, request.max);
      ASSERT_TRUE(same(*request.draft, single)) << "round " << r << ", sequence " << request.slot << ": "
                                                << text_of(*request.draft) << ", not " << text_of(single);
    }
    for (int i = 0; i < Target::kSequences; ++i) {
      const Draft& d = drafts[size_t(i)];
      target.round(i, {d.tokens.data(), size_t(d.n)}, uniform(rng, 0, d.n), all);
    }
  }
}

TEST_P(MtpDrafts, DoNotDependOnHowThePromptWasCut) {
  Target target = this->target(256);
  const auto drafter = target.drafter();
  MtpDrafter* const all[] = {drafter.get()};
  Rng rng{8};
  for (const int n : {1, 2, 32, 33, 34, 63, 64, 65, 96, 97, 98, 127, 128, 129, 191, 193}) {
    const std::vector<TokenId> prompt = random_tokens(rng, n, target.n_vocab());
    Draft drafts[2];
    for (const int which : {0, 1}) {
      const int i = target.begin(prompt, all);
      target.prefill(i, which == 0 ? 64 : 192, all);
      drafts[which] = target.propose(*drafter, i, 3);
      target.end(i, all);
    }
    EXPECT_EQ(drafts[0].n, 3);
    EXPECT_TRUE(same(drafts[0], drafts[1])) << n << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MtpDrafts,
                         testing::Values(Pair{"demo_cpu", false, {.name = "cpu", .threads = 2}},
                                         Pair{"tiny_cpu", true, {.name = "cpu", .threads = 1}},
                                         Pair{"tiny_reference", true, {.name = "reference"}}),
                         [](const auto& info) { return info.param.name; });

// The text of many rounds as the prompt of a new sequence: other steps of the target, so equal but for
// rounding.
TEST(MtpDrafter, DraftsAfterManyRoundsAreThoseOfTheSameTextAsAPrompt) {
  TempFolder folder;
  write_mtp_checkpoint({.family = "qwen3_5"}, folder);
  Target target(folder.path(), value_or_throw(make_backend({.name = "reference"})));
  const auto busy = target.drafter(), fresh = target.drafter();
  MtpDrafter *const of_busy[] = {busy.get()}, *const of_fresh[] = {fresh.get()};
  Rng rng{12};
  const int i = target.begin(random_tokens(rng, 20, target.n_vocab()), of_busy);
  target.prefill(i, 64, of_busy);
  for (int r = 0; r < 60; ++r) {
    const Draft draft = target.propose(*busy, i, uniform(rng, 1, 5));
    if (r % 12 == 11) {
      const std::vector<TokenId> text = target.text(i);
      const int again = target.begin({text.begin(), text.end() - 1}, of_fresh);
      target.prefill(again, 64, of_fresh);
      ASSERT_EQ(target.text(again), text);  // the target chose the same token
      const Draft from_scratch = target.propose(*fresh, again, draft.n);
      ASSERT_EQ(text_of(from_scratch), text_of(draft)) << "round " << r;
      EXPECT_LT(distance(from_scratch, draft), 1e-4);
      target.end(again, of_fresh);
    }
    target.round(i, {draft.tokens.data(), size_t(draft.n)}, uniform(rng, 0, draft.n), of_busy);
  }
}

// A norm that multiplies by one is undone by the head's own norm: its two sides are the same input. With
// other gains they are not.
TEST(MtpDrafter, TakesHiddenStatesFromTheWantedSideOfTheNorms) {
  constexpr MtpOptions kPairs[] = {{true, true}, {true, false}, {false, true}, {false, false}};
  for (const bool flat : {true, false}) {
    TempFolder folder;
    write_mtp_checkpoint({.family = "qwen3_5", .flat_norms = flat}, folder);
    Target target(folder.path(), value_or_throw(make_backend({.name = "reference"})));
    std::vector<std::unique_ptr<MtpDrafter>> drafters;
    std::vector<MtpDrafter*> all;
    for (const MtpOptions& options : kPairs) {
      all.push_back(drafters.emplace_back(target.drafter(options)).get());
    }
    Rng rng{2};
    const int i = target.begin(random_tokens(rng, 70, target.n_vocab()), all);
    target.prefill(i, 64, all);
    std::vector<Draft> first, longer;
    for (MtpDrafter* d : all) first.push_back(target.propose(*d, i, 1));
    target.round(i, {}, 0, all);
    for (MtpDrafter* d : all) longer.push_back(target.propose(*d, i, 2));
    EXPECT_TRUE(same(first[0], first[1])) << "the chain's norm has no part in a first draft";
    EXPECT_TRUE(same(first[2], first[3]));
    if (flat) {
      EXPECT_LT(distance(first[0], first[2]), 1e-4);
      EXPECT_LT(distance(longer[0], longer[1]), 1e-4);
      EXPECT_LT(distance(longer[0], longer[3]), 1e-4);
    } else {
      EXPECT_GT(distance(first[0], first[2]), 1e-3);
      EXPECT_GT(distance(longer[0], longer[1]), 1e-3);
      EXPECT_GT(distance(longer[2], longer[3]), 1e-3);
    }
  }
}

}  // namespace
}  // namespace tandem
