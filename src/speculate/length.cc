#include "speculate/length.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/check.h"

namespace tandem {
namespace {

constexpr double kIncome = 0.008;     // budget per token produced
constexpr double kMostBudget = 16;    // plain rounds; gains beyond are not kept for bad times
constexpr double kOverdraft = 8;      // rounds of wrong drafts in debt at which nobody drafts
constexpr double kHysteresis = 1.01;  // gain that is worth a change of length
constexpr double kBadLuck = 0.95;  // share of the plain rate down to which luck alone does not end drafting
constexpr double kNearly = 0.9;    // share of the plain rate from which the best length is worth tries
constexpr double kTryShare =
    0.010;                         // what tries may cost while the budget lasts, as a share of plain decoding
constexpr double kGenerous = 0.5;  // how much oftener per round in the budget
constexpr double kLeastWait = 4, kMostWait = 256;  // plain rounds between tries
constexpr int kUnmeasuredEvery = 8;  // rounds between tries of lengths whose cost is not known yet
constexpr double kUnmeasured = 0.9;  // if they promise this share of the best rate
constexpr int kWideEvery = 32;       // rounds between looks behind the length in use
constexpr double kWideShare = 0.25;  // what such a look may cost, in rounds
constexpr double kHopeful = 0.8;     // hazard assumed for choosing the length of a try
constexpr float kFewTries = 5;       // first drafts judged before anything is believed of a drafter
constexpr double kTryBudget = 0.35;  // what one of those may lose at worst, as a share of the budget
constexpr int kFirstReach = 4;       // drafts at most before a sequence has shown anything
constexpr int kSureMatch = 8;        // a lookup's, from which on it need not work its way up
constexpr int kForgetLuck = 4;       // plain rounds after which the last drafts say nothing of the next

}  // namespace

Result<LengthOptions> parse_length_options(std::string_view text) {
  constexpr std::string_view fixed = "fixed:";
  if (text == "auto") return LengthOptions{};
  if (text == "kod") return LengthOptions{.kind = LengthOptions::Kind::kod};
  if (text.starts_with(fixed)) {
    const std::string_view number = text.substr(fixed.size());
    int n = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), n);
    if (error == std::errc() && end == number.data() + number.size() && n >= 1 && n <= kMaxDraft) {
      return LengthOptions{.kind = LengthOptions::Kind::fixed, .fixed = n};
    }
    return Error{fmt::format("draft length \"{}\": \"fixed:\" wants a whole number of drafts from 1 to {}",
                             text, kMaxDraft)};
  }
  return Error{fmt::format("draft length \"{}\" is unknown; use auto, fixed:N (1 to {} drafts) or kod", text,
                           kMaxDraft)};
}

// The choices of a round: tokens and seconds of verifying n drafts, n = 0 .. limit.
struct LengthControl::Arms {
  int limit = 0;
  bool pays = false;  // drafting beats plain decoding
  std::array<double, kMaxDraft + 1> tokens{}, seconds{};

  Arms(const RoundPlan& plan, int limit, const CostModel& cost) : limit(limit) {
    cost.verify_curve({.rows = plan.other_rows + 1, .batch = plan.batch, .context = plan.context},
                      std::span(seconds).first(size_t(limit) + 1));
    seconds[0] += cost.draft(0) + cost.plain_other();
    for (int n = 1; n <= limit; ++n) seconds[size_t(n)] += cost.draft(n) + cost.draft_other();
  }

  void expect(const RoundPlan& plan, std::span<const double> hazards) {
    double alive = 1;
    tokens[0] = plan.other_tokens + 1;
    for (int n = 1; n <= limit; ++n) {
      alive *= hazards[size_t(n) - 1];
      tokens[size_t(n)] = tokens[size_t(n) - 1] + alive;
    }
  }

  double rate(int n) const { return tokens[size_t(n)] / seconds[size_t(n)]; }

  int best() const {  // of n >= 1
    int best = 1;
    for (int n = 2; n <= limit; ++n) {
      if (rate(n) > rate(best)) best = n;
    }
    return best;
  }

  // What n drafts lose against plain decoding if n_accepted of them are right, in tokens of plain decoding.
  double loss(int n, double n_accepted) const {
    return (seconds[size_t(n)] - seconds[0]) * tokens[0] / seconds[0] - n_accepted;
  }
};

LengthControl::LengthControl(const LengthOptions& options)
    : options_(options), kod_(options.max_draft + 1), reach_(kFirstReach) {
  TD_CHECK(options.max_draft >= 0 && options.max_draft <= kMaxDraft, "max_draft %d, at most %d",
           options.max_draft, kMaxDraft);
}

int LengthControl::next(const RoundPlan& plan, const LengthKnowledge& knowledge) {
  const int limit = std::min(plan.limit, options_.max_draft);
  expected_tokens_ = advantage_ = 1;
  if (limit <= 0) return 0;
  switch (options_.kind) {
    case LengthOptions::Kind::fixed:
      return std::min(options_.fixed, limit);
    case LengthOptions::Kind::kod:
      return std::min(kod_.next_width() - 1, limit);
    case LengthOptions::Kind::automatic:
      break;
  }
  return next_automatic(plan, knowledge);
}

int LengthControl::next_automatic(const RoundPlan& plan, const LengthKnowledge& knowledge) {
  const StepShape plain{.rows = plan.batch, .batch = plan.batch, .context = plan.context};
  if (!knowledge.cost.ready(plan.batch) || knowledge.cost.plain_is_old(plain)) return 0;
  // What other sequences were right in for long says little of a new one: it works its way up.
  const int reach = plan.match >= kSureMatch ? kMaxDraft : reach_;
  Arms arms(plan, std::min({plan.limit, options_.max_draft, reach}), knowledge.cost);
  std::array<double, kMaxDraft> mean, now;
  const std::span<double> used = std::span(now).first(size_t(arms.limit));
  survival_.hazards(knowledge.hazards, plan.match, std::span(mean).first(used.size()), used);
  arms.expect(plan, used);
  arms.pays = arms.rate(arms.best()) > arms.rate(0);
  if (!arms.pays && arms.rate(arms.best()) > kBadLuck * arms.rate(0)) {
    Arms usual = arms;
    usual.expect(plan, std::span(mean).first(used.size()));
    arms.pays = usual.rate(usual.best()) > usual.rate(0);
  }
  if (knowledge.hazards.all.tried(0) < kFewTries && knowledge.budget > 0) {
    if (const int n = first_tries(arms, plan, knowledge); n > 0) return n;
  }
  if (state_ == State::drafting) {
    if (const int n = while_drafting(arms, plan, knowledge); n > 0 || state_ == State::drafting) return n;
  }
  if (const int n = while_plain(arms, knowledge); n != 0) return n;
  // A try: where drafting nearly pays the best length, else what would be right if the text had become easy.
  int attempt = arms.best();
  if (arms.rate(attempt) < kNearly * arms.rate(0)) {
    Arms hopeful = arms;
    for (double& h : used) h = std::max(h, kHopeful);
    hopeful.expect(plan, used);
    attempt = hopeful.best();
  }
  const double loss = arms.loss(attempt, arms.tokens[size_t(attempt)] - arms.tokens[0]);
  // What drafting has gained may be spent on finding out where it would gain more.
  const double wait = std::clamp(loss / (kTryShare * (1 + kGenerous * std::max(0.0, knowledge.budget))),
                                 kLeastWait, kMostWait);
  return n_plain_ >= wait && knowledge.budget >= loss ? choose(attempt, arms) : 0;
}

int LengthControl::choose(int n, const Arms& arms) {
  expected_tokens_ = arms.tokens[size_t(n)] - arms.tokens[0] + 1;
  advantage_ = arms.rate(n) / arms.rate(0);
  return n;
}

// One draft that fails says little, and a long one costs much: the first are short enough that several are
// affordable. What was not measured is only guessed, so the length at most doubles from one to the next.
int LengthControl::first_tries(const Arms& arms, const RoundPlan& plan, const LengthKnowledge& knowledge) {
  int n = 0, most = 2;
  for (int i = 1; i <= arms.limit; ++i) {
    const StepShape step{.rows = plan.other_rows + i + 1, .batch = plan.batch, .context = plan.context};
    if (knowledge.cost.n_measured(step) > 0) most = std::max(most, 2 * i);
  }
  for (int i = 1; i <= std::min(arms.limit, most) && arms.loss(i, 0) <= kTryBudget * knowledge.budget; ++i) {
    if (n == 0 || arms.rate(i) > arms.rate(n)) n = i;
  }
  return n == 0 ? 0 : choose(n, arms);
}

int LengthControl::while_drafting(const Arms& arms, const RoundPlan& plan, const LengthKnowledge& knowledge) {
  const int best = arms.best();
  if (!arms.pays || knowledge.budget < -kOverdraft * std::max(arms.loss(best, 0), 0.5)) {
    state_ = State::plain;
    n_plain_ = 0;
    return 0;
  }
  if (current_ < 1 || current_ > arms.limit || arms.rate(best) > kHysteresis * arms.rate(current_)) {
    current_ = best;
  }
  // The comparison needs a fresh plain time; the nearer the two, the sooner, and the less it costs.
  const double advantage = arms.rate(best) / arms.rate(0);
  if (knowledge.cost.n_since_plain() >= (advantage < 1.5 ? 64 : 256)) return 0;

  // A staircase of costs has to be walked to be known.
  if (++n_drafted_ % kUnmeasuredEvery == 0) {
    int least = 0, n_least = 2;
    for (int n = 1; n <= arms.limit; ++n) {
      if (arms.rate(n) < kUnmeasured * arms.rate(best)) continue;
      const int seen = knowledge.cost.n_measured(
          {.rows = plan.other_rows + n + 1, .batch = plan.batch, .context = plan.context});
      if (seen < n_least) least = n, n_least = seen;
    }
    if (least > 0) return choose(least, arms);
  }
  const int wide = std::min(arms.limit, current_ + std::max(current_, 2));
  if (plan.match == 0 && wide > current_ && survival_.tried(wide - 1) < 3) {
    const double lost = arms.seconds[size_t(wide)] / arms.seconds[size_t(current_)] -
                        arms.tokens[size_t(wide)] / arms.tokens[size_t(current_)];
    if (n_since_wide_ >= kWideEvery * std::max(1.0, lost / kWideShare)) {
      n_since_wide_ = 0;
      return choose(wide, arms);
    }
  }
  ++n_since_wide_;
  return choose(current_, arms);
}

int LengthControl::while_plain(const Arms& arms, const LengthKnowledge& knowledge) {
  const int best = arms.best();
  if (knowledge.budget < -(kOverdraft - 1) * std::max(arms.loss(best, 0), 0.5) ||
      arms.rate(best) <= kHysteresis * arms.rate(0))
    return 0;
  state_ = State::drafting;
  current_ = best;
  return choose(best, arms);
}

void LengthControl::observe(const RoundPlan& plan, const RoundResult& result, LengthKnowledge& knowledge) {
  const auto [n_verified, n_accepted, seconds] = result;
  TD_CHECK(n_accepted >= 0 && n_accepted <= n_verified && n_verified <= kMaxDraft,
           "%d of %d drafts accepted, at most %d", n_accepted, n_verified, kMaxDraft);
  if (options_.kind == LengthOptions::Kind::kod) kod_.observe(n_verified + 1, n_accepted, seconds);
  if (options_.kind != LengthOptions::Kind::automatic) return;
  knowledge.budget = std::min(knowledge.budget + kIncome * (1 + n_accepted), kMostBudget);
  if (n_verified == 0) {
    if (++n_plain_ >= kForgetLuck) {
      survival_.forget_luck();
      if (plan.limit > 0) reach_ = kFirstReach;
    }
    return;
  }
  survival_.add(n_verified, n_accepted, plan.match, knowledge.hazards);
  if (n_accepted == n_verified) reach_ = std::max(reach_, 2 * n_verified);
  if (!knowledge.cost.ready(plan.batch)) return;
  Arms arms(plan, n_verified, knowledge.cost);
  arms.tokens[0] = plan.other_tokens + 1;
  const double loss = arms.loss(n_verified, n_accepted);
  knowledge.budget = std::min(knowledge.budget - loss, kMostBudget);
  n_plain_ = 0;
}

}  // namespace tandem
