#include "speculate/length.h"

#include <gtest/gtest.h>

#include <string>

#include "draft_trace.h"
#include "support/count_allocations.h"

namespace tandem {
namespace {

constexpr int kLimit = 15;

Machine linear(double offset, double slope) {  // a line in the width, drafting included
  return {DraftCost::block, [=](int rows) { return 0.8 * offset + slope * rows; },
          [=](int) { return 0.2 * offset; }, 0};
}
Machine staircase() {
  return {DraftCost::block,
          [](int rows) {
            return rows <= 4 ? 40. : rows <= 8 ? 44. : rows <= 16 ? 60. : 110.;
          },
          [](int) { return 12.; }, 1};
}
Machine chain() {
  return {DraftCost::chain, [](int rows) { return 40. + rows; }, [](int n) { return 5. * n; }, 0.3};
}
// Bound by arithmetic: a row costs most of a step.
Machine steep() {
  return {DraftCost::block, [](int rows) { return 4 + 6. * rows; }, [](int) { return 3.; }, 0.3};
}

struct Outcome {
  double of_best = 0,
         of_plain = 0;  // mean rate, as a share of the best fixed length's and of plain decoding's
  int best = 0;         // that length; 0 is plain
};

// Eight texts of 4,000 rounds, each from nothing known.
Outcome judge(const DraftTrace& trace, const Machine& machine, LengthOptions::Kind kind = {}) {
  Outcome o;
  double best_rate = 0;
  for (int n = 0; n <= kLimit; ++n) {
    const double rate = fixed_rate(trace, machine, n, 7);
    if (rate > best_rate) best_rate = rate, o.best = n;
  }
  double tokens = 0, seconds = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    LengthKnowledge knowledge(machine.draft_cost);
    LengthControl control({.kind = kind, .max_draft = kLimit});
    const Played played = play(control, knowledge, trace, machine, {.n_rounds = 4000, .limit = kLimit}, seed);
    tokens += played.tokens;
    seconds += played.seconds;
  }
  o.of_best = tokens / seconds / best_rate;
  o.of_plain = tokens / seconds * machine.round(0);
  return o;
}

struct NamedMachine {
  const char* name;
  Machine machine;
};
const std::vector<NamedMachine>& machines() {
  static const std::vector<NamedMachine> all{{"47 + 8.7 b", linear(47, 8.7)},
                                             {"47 + 2 b", linear(47, 2)},
                                             {"20 + 0.5 b", linear(20, 0.5)},
                                             {"staircase", staircase()},
                                             {"chain", chain()}};
  return all;
}

TEST(LengthAuto, IsNearTheBestFixedLengthOnSteadyText) {
  for (const auto& [name, machine] : machines()) {
    for (const double accept : {0.3, 0.5, 0.7, 0.8, 0.9, 0.97}) {
      const Outcome o = judge(iid(accept), machine);
      EXPECT_GE(o.of_best, 0.97) << name << ", accept " << accept << ", best length " << o.best;
      EXPECT_GE(o.of_plain, 0.98) << name << ", accept " << accept;
    }
    const Outcome o = judge(mixture(0.99, 0.3), machine);
    EXPECT_GE(o.of_best, 0.97) << name << ", mixture, best length " << o.best;
  }
}

TEST(LengthAuto, BeatsEveryFixedLengthWhereTheTextChanges) {
  for (const auto& [name, machine] : machines()) {
    for (const double hard : {0.0, 0.3}) {
      const Outcome o = judge(regimes(0.93, hard, 20), machine);
      EXPECT_GT(o.of_best, 1) << name << ", hard text " << hard << ", best length " << o.best;
    }
  }
}

// A text whose first draft fails although nearly all others are right, on a machine where a long wrong draft
// costs several plain steps: the control must have come back within a short answer.
TEST(LengthAuto, OneFailedDraftDoesNotEndDrafting) {
  const Machine dear{.draft_cost = DraftCost::block,
                     .verify = [](int rows) { return 1 + 0.2 * (rows - 1); },
                     .draft = [](int) { return 0.6; },
                     .other = 0.01};
  int n_good = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    LengthKnowledge knowledge(DraftCost::block);
    LengthControl control({});
    const DraftTrace text = [i = 0](std::mt19937_64& rng) mutable { return i++ < 5 ? 0 : run_of(0.92, rng); };
    const Played played = play(control, knowledge, text, dear, {.n_rounds = 60}, seed);
    n_good += played.tokens / played.seconds * dear.round(0) > 1.2;
  }
  EXPECT_GE(n_good, 16);
}

// Texts that end in loops, where 31 drafts are right, among texts that draft badly: what the loops taught
// must not make each new sequence begin with 31 drafts.
TEST(LengthAuto, ANewSequenceWorksItsWayUp) {
  const Machine chain{.draft_cost = DraftCost::chain,
                      .verify = [](int rows) { return 1 + 0.35 * (rows - 1); },
                      .draft = [](int n) { return 0.15 * n; },
                      .other = 0.01};
  LengthKnowledge knowledge(DraftCost::chain);
  double bad_tokens = 0, bad_seconds = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    LengthControl control({});
    const bool loop = i % 2 == 0;
    const Played played = play(control, knowledge, iid(loop ? 0.999 : 0.05), chain,
                               {.n_rounds = loop ? 6 : 120, .limit = kMaxDraft}, i);
    if (loop) continue;
    bad_tokens += played.tokens;
    bad_seconds += played.seconds;
  }
  EXPECT_GE(bad_tokens / bad_seconds * chain.round(0), 0.93);
}

TEST(LengthAuto, CostsAtMostTwoPercentWhereDraftingDoesNotPay) {
  for (const DraftTrace& trace : {iid(0), iid(0.3), iid(0.5), iid(0.7), iid(0.8), mixture(0.99, 0.3),
                                  regimes(0.95, 0.3, 20), regimes(0.9, 0, 20), regimes(0.9, 0.5, 40)}) {
    EXPECT_GE(judge(trace, steep()).of_plain, 0.98);
  }
  for (const auto& [name, machine] : machines()) EXPECT_GE(judge(iid(0), machine).of_plain, 0.98) << name;
}

// Text that turns bad whenever the control has come to trust it.
TEST(LengthAuto, CostsAtMostTwoPercentOnTextThatMisleads) {
  for (const int period : {3, 10, 40, 150}) {
    const DraftTrace misleading = [period, i = 0](std::mt19937_64&) mutable {
      return i++ / period % 4 == 0 ? kMaxDraft : 0;
    };
    EXPECT_GE(judge(misleading, steep()).of_plain, 0.98) << period;
  }
}

// Many short answers share what was learned: the tries are not paid for anew with each.
TEST(LengthAuto, CostsAtMostTwoPercentOverManyShortRequests) {
  LengthKnowledge knowledge(DraftCost::block);
  double tokens = 0, seconds = 0;
  for (uint64_t request = 0; request < 60; ++request) {
    LengthControl control({.max_draft = kLimit});
    const Played played =
        play(control, knowledge, iid(0.1), steep(), {.n_rounds = 60, .limit = kLimit}, request);
    tokens += played.tokens;
    seconds += played.seconds;
  }
  EXPECT_GE(tokens / seconds * steep().round(0), 0.98);
}

TEST(LengthAuto, ComesBackWhenTheDrafterBecomesUseful) {
  LengthKnowledge knowledge(DraftCost::block);
  LengthControl control({.max_draft = kLimit});
  play(control, knowledge, iid(0), staircase(), {.n_rounds = 1000, .limit = kLimit}, 1);
  const Played played =
      play(control, knowledge, iid(0.9), staircase(), {.n_rounds = 1000, .limit = kLimit}, 2);
  EXPECT_LT(played.rounds_of[0], 350);
  EXPECT_GT(played.rate() * staircase().round(0), 2);
}

// All times grow by half, shrink, and grow again.
TEST(LengthAuto, FollowsCostsThatDrift) {
  const Machine machine = staircase();
  const auto wave = [](int round) { return round / 500 % 2 == 0 ? 1.0 : 1.5; };
  double best = 0;
  for (int n = 0; n <= kLimit; ++n) best = std::max(best, fixed_rate(iid(0.8), machine, n, 7) / 1.25);
  double tokens = 0, seconds = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    LengthKnowledge knowledge(DraftCost::block);
    LengthControl control({.max_draft = kLimit});
    const Played played =
        play(control, knowledge, iid(0.8), machine, {.n_rounds = 4000, .limit = kLimit, .speed = wave}, seed);
    tokens += played.tokens;
    seconds += played.seconds;
  }
  EXPECT_GE(tokens / seconds, 0.97 * best);
}

// Drafting paid, and then further rows become dear while a plain step does not.
TEST(LengthAuto, GivesUpWhenVerificationGetsTooDear) {
  Machine loaded = staircase();
  loaded.verify = [](int rows) { return 40 + 25. * (rows - 1); };
  double tokens = 0, seconds = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    LengthKnowledge knowledge(DraftCost::block);
    LengthControl control({.max_draft = kLimit});
    play(control, knowledge, iid(0.7), staircase(), {.n_rounds = 1500, .limit = kLimit}, seed);
    const Played played =
        play(control, knowledge, iid(0.7), loaded, {.n_rounds = 4000, .limit = kLimit}, seed + 10);
    tokens += played.tokens;
    seconds += played.seconds;
  }
  EXPECT_GE(tokens / seconds * loaded.round(0), 0.98);
}

TEST(LengthAuto, BeatsKodOnItsOwnCosts) {
  for (const double accept : {0.8, 0.9, 0.97}) {
    const Outcome ours = judge(iid(accept), linear(47, 8.7));
    const Outcome kod = judge(iid(accept), linear(47, 8.7), LengthOptions::Kind::kod);
    EXPECT_GT(ours.of_best, kod.of_best + 0.02) << accept;
    EXPECT_GT(kod.of_best, 0.5) << "KOD does not work at all";
  }
}

TEST(LengthAuto, VerifiesLessWhenTheStepIsFull) {
  const auto length_with = [](int other_rows) {
    LengthKnowledge knowledge(DraftCost::block);
    const auto verify = [](int rows) { return 40 + 0.2 * rows + 8 * std::max(0, rows - 16); };
    const int batch = other_rows == 0 ? 1 : 2;
    for (int i = 0; i < 4; ++i) {
      for (int rows = batch; rows <= 32; ++rows)
        knowledge.cost.add_verify({.rows = rows, .batch = batch}, verify(rows));
    }
    LengthControl control({.max_draft = kLimit});
    const RoundPlan plan{.limit = kLimit,
                         .batch = batch,
                         .other_rows = other_rows,
                         .other_tokens = other_rows == 0 ? 0.0 : 4.0};
    std::mt19937_64 rng(3);
    int n = 0;
    for (int i = 0; i < 100; ++i) {
      n = control.next(plan, knowledge);
      control.observe(plan, {.n_verified = n, .n_accepted = std::min(n, run_of(0.85, rng))}, knowledge);
    }
    return n;
  };
  EXPECT_GE(length_with(0), 10);
  EXPECT_LE(length_with(13), 4);
  EXPECT_GE(length_with(13), 1);
}

// A lookup finds something now and then, of any length.
TEST(LengthAuto, UsesALookupThatSeldomFindsAnything) {
  const Machine machine{DraftCost::free, [](int rows) { return 10 + 2. * rows; }, [](int) { return 0.02; },
                        0.2};
  const auto rate = [&](double accept, const LengthOptions& options) {
    double tokens = 0, seconds = 0;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      LengthKnowledge knowledge(DraftCost::free);
      LengthControl control(options);
      std::mt19937_64 rng(seed), timer(seed + 1000);
      for (int i = 0; i < 4000; ++i) {
        const RoundPlan plan{.limit = rng() % 10 < 3 ? 2 + int(rng() % 9) : 0, .context = i};
        const int n = control.next(plan, knowledge);
        const int n_accepted = std::min(n, run_of(accept, rng));
        knowledge.cost.add_verify({.rows = n + 1, .context = i}, measured(machine.verify(n + 1), timer));
        if (n > 0) knowledge.cost.add_draft(n, measured(machine.draft(n), timer));
        control.observe(plan, {.n_verified = n, .n_accepted = n_accepted}, knowledge);
        tokens += n_accepted + 1;
        seconds += machine.round(n);
      }
    }
    return tokens / seconds;
  };
  for (const double accept : {0.0, 0.2, 0.4, 0.8, 0.95}) {
    double best = 1 / machine.round(0);
    for (int n = 1; n <= 10; ++n) {
      best =
          std::max(best, rate(accept, {.kind = LengthOptions::Kind::fixed, .fixed = n, .max_draft = kLimit}));
    }
    EXPECT_GE(rate(accept, {.max_draft = kLimit}), 0.97 * best) << accept;
    EXPECT_GE(rate(accept, {.max_draft = kLimit}) * machine.round(0), 0.98) << accept;
  }
}

// Two sequences of one step, of which one drafts well: each looks at what the other takes of the step.
TEST(LengthAuto, SharesAStepBetweenSequencesThatDraftWellAndBadly) {
  const auto verify = [](int rows) { return 40 + 2. * rows + 3. * std::max(0, rows - 16); };
  const auto rate = [&](const LengthOptions& first, const LengthOptions& second) {
    LengthKnowledge knowledge(DraftCost::block);
    LengthControl controls[2] = {LengthControl(first), LengthControl(second)};
    const double accept[2] = {0.9, 0.2};
    int n[2] = {0, 0};
    double expected[2] = {1, 1}, tokens = 0, seconds = 0;
    std::mt19937_64 rng(5), timer(6);
    for (int i = 0; i < 4000; ++i) {
      RoundPlan plans[2];
      for (int j = 0; j < 2; ++j) {
        plans[j] = {.limit = kLimit, .batch = 2, .other_rows = n[1 - j] + 1, .other_tokens = expected[1 - j]};
        n[j] = controls[j].next(plans[j], knowledge);
        expected[j] = controls[j].expected_tokens();
      }
      const int rows = n[0] + n[1] + 2;
      knowledge.cost.add_verify({.rows = rows, .batch = 2}, measured(verify(rows), timer));
      seconds += verify(rows);
      for (int j = 0; j < 2; ++j) {
        const int n_accepted = std::min(n[j], run_of(accept[j], rng));
        if (n[j] > 0) knowledge.cost.add_draft(n[j], measured(10, timer)), seconds += 10;
        plans[j].other_rows = n[1 - j] + 1;
        controls[j].observe(plans[j], {.n_verified = n[j], .n_accepted = n_accepted}, knowledge);
        tokens += n_accepted + 1;
      }
    }
    return tokens / seconds;
  };
  const auto fixed = [](int n) {
    return n == 0 ? LengthOptions{.max_draft = 0}
                  : LengthOptions{.kind = LengthOptions::Kind::fixed, .fixed = n, .max_draft = kLimit};
  };
  double best = 0;
  for (int a = 0; a <= kLimit; ++a) {
    for (int b = 0; b <= 3; ++b) best = std::max(best, rate(fixed(a), fixed(b)));
  }
  const LengthOptions automatic{.max_draft = kLimit};
  EXPECT_GE(rate(automatic, automatic), 0.97 * best);
}

TEST(Length, StaysWithinTheLimits) {
  std::mt19937_64 rng(4);
  for (const auto kind :
       {LengthOptions::Kind::automatic, LengthOptions::Kind::fixed, LengthOptions::Kind::kod}) {
    LengthKnowledge knowledge(DraftCost::free);
    LengthControl control({.kind = kind, .fixed = 9, .max_draft = 11});
    for (int i = 0; i < 2000; ++i) {
      const RoundPlan plan{.limit = int(rng() % 20) - 2, .context = i};
      const int n = control.next(plan, knowledge);
      ASSERT_GE(n, 0);
      ASSERT_LE(n, std::max(0, std::min(plan.limit, 11)));
      if (kind == LengthOptions::Kind::fixed) {
        ASSERT_EQ(n, std::max(0, std::min(plan.limit, 9)));
      }
      const int verified = n == 0 ? 0 : int(rng() % (uint64_t(n) + 1));  // a drafter may find less
      knowledge.cost.add_verify({.rows = verified + 1, .context = i}, 1e-3);
      control.observe(plan, {.n_verified = verified, .n_accepted = verified, .seconds = 1e-3}, knowledge);
    }
  }
}

TEST(LengthAuto, DecodesPlainlyUntilItKnowsWhatAPlainStepCosts) {
  LengthKnowledge knowledge(DraftCost::block);
  LengthControl control({.max_draft = kLimit});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(control.next({}, knowledge), 0);
    knowledge.cost.add_verify({.rows = 1}, 1e-3);
    control.observe({}, {}, knowledge);
  }
  EXPECT_GT(control.next({}, knowledge), 0);
}

TEST(LengthAuto, DoesNotAllocate) {
  LengthKnowledge knowledge(DraftCost::block);
  LengthControl control({.max_draft = kMaxDraft});
  std::mt19937_64 rng(5);
  const int64_t before = allocations_so_far();
  for (int i = 0; i < 2000; ++i) {
    const RoundPlan plan{.context = 3 * i};
    const int n = control.next(plan, knowledge);
    knowledge.cost.add_verify({.rows = n + 1, .context = plan.context}, 1e-3);
    knowledge.cost.add_draft(n, 1e-4);
    control.observe(plan, {.n_verified = n, .n_accepted = std::min(n, run_of(0.7, rng))}, knowledge);
  }
  EXPECT_EQ(allocations_so_far(), before);
}

TEST(LengthOptionsParse, KnowsTheThreeKindsAndNamesWhatIsWrong) {
  EXPECT_EQ(parse_length_options("auto")->kind, LengthOptions::Kind::automatic);
  EXPECT_EQ(parse_length_options("kod")->kind, LengthOptions::Kind::kod);
  EXPECT_EQ(parse_length_options("fixed:1")->fixed, 1);
  EXPECT_EQ(parse_length_options("fixed:31")->fixed, 31);
  for (const char* bad :
       {"", "fixed", "fixed:", "fixed:0", "fixed:32", "fixed:-3", "fixed:4x", "fixed:99999999999", "AUTO"}) {
    const auto parsed = parse_length_options(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_NE(parsed.error().message.find('"' + std::string(bad) + '"'), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem
