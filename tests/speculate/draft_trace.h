// A text and a machine to decode it on, simulated: how many drafts of each round would be right, and what
// rounds cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "speculate/length.h"

namespace tandem {

// Draws how many leading drafts of the next round would be accepted (never more than kMaxDraft).
using DraftTrace = std::function<int(std::mt19937_64&)>;

inline int run_of(double accept, std::mt19937_64& rng) {
  std::uniform_real_distribution<double> u(0, 1);
  int n = 0;
  while (n < kMaxDraft && u(rng) < accept) ++n;
  return n;
}

inline DraftTrace iid(double accept) {
  return [accept](std::mt19937_64& rng) { return run_of(accept, rng); };
}

// Each round easy or hard by a fair coin.
inline DraftTrace mixture(double easy, double hard) {
  return [=](std::mt19937_64& rng) { return run_of(rng() % 2 ? easy : hard, rng); };
}

// Easy and hard stretches of `dwell` rounds in the mean.
inline DraftTrace regimes(double easy, double hard, double dwell) {
  return [=, is_easy = true](std::mt19937_64& rng) mutable {
    if (std::uniform_real_distribution<double>(0, 1)(rng) < 1 / dwell) is_easy = !is_easy;
    return run_of(is_easy ? easy : hard, rng);
  };
}

// Seconds of a round with n drafts; 0 is plain.
struct Machine {
  DraftCost draft_cost = DraftCost::block;
  std::function<double(int rows)> verify;
  std::function<double(int drafts)> draft;  // not called for 0
  double other = 0;

  double round(int n) const { return verify(n + 1) + (n > 0 ? draft(n) : 0) + other; }
};

struct Played {
  double tokens = 0, seconds = 0;
  std::vector<int> rounds_of = std::vector<int>(kMaxDraft + 1);
  double rate() const { return tokens / seconds; }
};

// Times as the engine would measure them: 2% noise, and one in twenty disturbed.
inline double measured(double seconds, std::mt19937_64& rng) {
  const double noise = std::normal_distribution<double>(1, 0.02)(rng);
  return seconds * std::max(noise, 0.5) * (rng() % 20 == 0 ? 1.5 : 1.0);
}

struct Play {
  int n_rounds = 0;
  int limit = 15;
  std::function<double(int round)> speed = [](int) { return 1.0; };  // factor on all times
};

// Decodes one text; the true times count, the measured ones are what the control sees.
inline Played play(LengthControl& control, LengthKnowledge& knowledge, DraftTrace trace,
                   const Machine& machine, const Play& how, uint64_t seed) {
  std::mt19937_64 rng(seed), timer(seed + 1000);
  Played played;
  for (int i = 0; i < how.n_rounds; ++i) {
    const RoundPlan plan{.limit = how.limit, .context = 100 + i};
    const int n = control.next(plan, knowledge);
    const int n_accepted = std::min(n, trace(rng));
    const double speed = how.speed(i);
    knowledge.cost.add_verify({.rows = n + 1, .context = plan.context},
                              measured(speed * machine.verify(n + 1), timer));
    if (n > 0) {
      knowledge.cost.add_draft(n, measured(speed * machine.draft(n), timer));
      knowledge.cost.add_draft_other(measured(speed * machine.other, timer));
    } else {
      knowledge.cost.add_plain_other(measured(speed * machine.other, timer));
    }
    control.observe(plan, {.n_verified = n, .n_accepted = n_accepted, .seconds = speed * machine.round(n)},
                    knowledge);
    played.tokens += n_accepted + 1;
    played.seconds += speed * machine.round(n);
    ++played.rounds_of[size_t(n)];
  }
  return played;
}

// The rate of always verifying n drafts, on a long run of the same text.
inline double fixed_rate(DraftTrace trace, const Machine& machine, int n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const int n_rounds = 40000;
  double tokens = 0;
  for (int i = 0; i < n_rounds; ++i) tokens += 1 + std::min(n, trace(rng));
  return tokens / (n_rounds * machine.round(n));
}

}  // namespace tandem
