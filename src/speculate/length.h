// How many drafts to verify next: per sequence, from how far its drafts survive and what rounds cost here.
//
//   rate(n) = (1 + sum_{k<=n} P(first k drafts accepted)) / (verify(n + 1 rows) + draft(n) + rest)
//
// next() takes the n of the largest rate; n = 0 is plain decoding. Where drafting does not pay, a sequence
// decodes plainly and tries again from time to time, the sooner the less a try is expected to lose. What
// tries may cost is bounded by a common budget, counted in plain rounds: it starts with a few, grows by 0.8%
// of the tokens produced and by what drafting gains, and shrinks by what it loses. When it is overdrawn
// nobody drafts, whatever the estimates say. So decoding with a drafter that is worth nothing takes about
// 0.8% longer than without, and a few rounds.
//
// Lengths are decided before the draft is made, from what happened earlier alone; rejection sampling (sample/
// rejection.h) needs that to keep the law of the text.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "speculate/cost_model.h"
#include "speculate/kod.h"
#include "speculate/survival.h"

namespace tandem {

struct LengthOptions {
  enum class Kind { automatic, fixed, kod };
  Kind kind = Kind::automatic;
  int fixed = 0;              // drafts, with Kind::fixed
  int max_draft = kMaxDraft;  // what the drafter can deliver
};

// "auto", "fixed:N" with 1 <= N <= 31, or "kod". Errors: anything else, naming it and the choices.
Result<LengthOptions> parse_length_options(std::string_view text);

// What all sequences of one engine and drafter share. One thread at a time.
struct LengthKnowledge {
  explicit LengthKnowledge(DraftCost draft_cost) : cost(draft_cost) {}

  CostModel cost;
  SharedHazards hazards;
  double budget = 6;  // plain rounds that drafting may still lose
};

// The step that a sequence is about to join.
struct RoundPlan {
  int limit = kMaxDraft;    // drafts that make sense: tokens left - 1, room for rows, what a lookup has found
  int match = 0;            // tokens that the lookup has matched; 0 for other drafts
  int batch = 1;            // sequences in the step
  int other_rows = 0;       // rows of the others: as decided so far, or as in the last step
  double other_tokens = 0;  // tokens the others may expect from them (expected_tokens())
  int context = 0;          // tokens of the longest sequence
};

struct RoundResult {
  int n_verified = 0;  // drafts; may be fewer than next() asked for
  int n_accepted = 0;
  double seconds = 0;  // the whole round; only KOD reads it
};

// Of one sequence; made anew for every prompt. No allocation, well under 2 us a call.
class LengthControl {
 public:
  explicit LengthControl(const LengthOptions& options);

  // Drafts to verify in this round, 0 to min(plan.limit, max_draft); 0 is a plain round.
  int next(const RoundPlan& plan, const LengthKnowledge& knowledge);
  // Tokens that the round of the last next() is expected to give, the target's own included.
  double expected_tokens() const { return expected_tokens_; }
  // How many times as fast as a plain round it is expected to be.
  double advantage() const { return advantage_; }
  // After each round, plain ones too, and after the round's times went to knowledge.cost.
  void observe(const RoundPlan& plan, const RoundResult& result, LengthKnowledge& knowledge);

 private:
  struct Arms;
  enum class State { drafting, plain };

  int next_automatic(const RoundPlan& plan, const LengthKnowledge& knowledge);
  int first_tries(const Arms& arms, const RoundPlan& plan, const LengthKnowledge& knowledge);
  int while_drafting(const Arms& arms, const RoundPlan& plan, const LengthKnowledge& knowledge);
  int while_plain(const Arms& arms, const LengthKnowledge& knowledge);
  int choose(int n, const Arms& arms);

  LengthOptions options_;
  KodRule kod_;
  Survival survival_;
  State state_ = State::drafting;
  int reach_;             // drafts at most: grows as whole drafts are accepted
  int current_ = 0;       // the length in use while drafting
  int n_since_wide_ = 0;  // rounds drafted since a look behind current_
  int n_drafted_ = 0;     // rounds drafted
  int n_plain_ = 0;       // plain rounds since the last try
  double expected_tokens_ = 1, advantage_ = 1;
};

}  // namespace tandem
