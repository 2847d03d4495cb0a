// What speculation did and what it took: per request, and summed by whoever asks for more.
#pragma once

#include <array>
#include <string>

#include "speculate/drafter.h"

namespace tandem {

struct SpeculationStats {
  std::string drafter;     // empty: none
  bool simulated = false;  // accepted by lot: the text is no model's
  int rounds = 0;          // steps after the first token, plain ones too
  int drafted = 0;         // tokens verified
  int accepted = 0;        // of those
  int tokens = 0;          // that the rounds gave
  // Chains, by position in the draft: how often a token was judged (all before it accepted), and accepted.
  std::array<int, kMaxDraft> judged_at{}, accepted_at{};
  // Wall time of the rounds: drafting, the target's step, all else.
  double draft_s = 0, verify_s = 0, other_s = 0;
  // Of the rounds since plain steps were measured: what their tokens would have taken plainly, and what they
  // took.
  double plain_s = 0, compared_s = 0;

  double tokens_per_round() const { return rounds > 0 ? double(tokens) / rounds : 0; }
  // Against plain decoding, by the plain steps measured in between; 0: not known.
  double speed_up() const { return compared_s > 0 ? plain_s / compared_s : 0; }
  // Sums of several requests; the drafter's name stays if it is the same.
  void add(const SpeculationStats& other);
};

}  // namespace tandem
