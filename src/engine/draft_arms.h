// Which drafter a sequence gets, where several are at hand.
#pragma once

#include <span>
#include <vector>

#include "speculate/drafter.h"
#include "speculate/length.h"

namespace tandem {

// One of a drafter's sources, with what the engine has learnt about it.
struct DraftSource {
  explicit DraftSource(Drafter& d) : drafter(&d), knowledge(d.cost()) {}
  // What it finds costs nothing, so it is asked before anybody decides.
  bool looks_up() const { return drafter->cost() == DraftCost::free; }

  Drafter* drafter;
  LengthKnowledge knowledge;
  bool is_warm = false;      // it has drafted: its times are no longer those of a first time
  double round_draft_s = 0;  // in the current round
};

// A drafter.
struct DraftArm {
  explicit DraftArm(Drafter& d) : drafter(&d) {
    for (Drafter* source : d.sources()) sources.emplace_back(*source);
  }

  Drafter* drafter;
  std::vector<DraftSource> sources;
  int n_begun = 0;     // sequences that got it
  int last_begun = 0;  // which of all sequences was its last, from 1
  // Of those sequences, older ones counting less: what their tokens would have taken plainly, and what they
  // took.
  double plain_s = 0, spent_s = 0;

  double speed_up() const { return spent_s > 0 ? plain_s / spent_s : 0; }
  // A round of one of its sequences.
  void add_round(double plain_seconds, double seconds) {
    plain_s += plain_seconds;
    spent_s += seconds;
  }
};

// The arm for the next sequence: each in turn until all were tried, then the one that sped up most, and now
// and then another, since texts change. Null without arms.
DraftArm* choose_arm(std::span<DraftArm> arms);

}  // namespace tandem
