// How far drafts survive: the chance that a draft is accepted as far as position k, from rounds of any
// length.
//
// Kaplan-Meier: position k is *tried* in a round only if it was verified and all before it were accepted; its
// hazard is accepted / tried. A round that was cut short says nothing about what lies behind, so the estimate
// does not depend on the lengths in use. Positions never tried are taken to go on as the last one did.
#pragma once

#include <array>
#include <span>

#include "speculate/draft_cost.h"

namespace tandem {

// Discounted counts by position.
class HazardCounts {
 public:
  // n_accepted of n_verified drafts were right; older rounds weigh `discount` times as much as before.
  void add(int n_verified, int n_accepted, float discount);

  float tried(int i) const { return tried_[size_t(i)]; }
  float accepted(int i) const { return accepted_[size_t(i)]; }

 private:
  std::array<float, kMaxDraft> tried_{}, accepted_{};
};

// What all sequences of a drafter have shown, and apart from it, by how long a match a lookup had found.
struct SharedHazards {
  static constexpr int kMatchClasses = 5;
  static int class_of(int match);  // of a match of at least one token

  HazardCounts all;
  std::array<HazardCounts, kMatchClasses> by_match;
};

// The estimate of one sequence, leaning on what all sequences before it have shown where it has little of its
// own. Drafts go well or badly for a while, so counts are kept apart by how the last two rounds went, too.
class Survival {
 public:
  // How a round went, as far as rounds of any length can tell.
  enum class Luck { none, some, unknown, good };

  // match: tokens that a lookup had matched; 0 for other drafts.
  void add(int n_verified, int n_accepted, int match, SharedHazards& shared);
  // Forgets how the last rounds went (they are too long ago).
  void forget_luck();

  // P(draft i accepted | those before it were), i counted from 0: in the mean of this sequence, and after
  // such luck as it has now. Of a lookup both are what such matches came to. Spans of equal length.
  void hazards(const SharedHazards& shared, int match, std::span<double> mean, std::span<double> now) const;
  // Rounds (discounted) in which position i was tried by this sequence.
  float tried(int i) const { return all_.tried(i); }

 private:
  static constexpr size_t kLucks = 4;
  void hazards_of_match(const SharedHazards& shared, int match, std::span<double> out) const;
  const HazardCounts& of_luck() const { return by_luck_[size_t(last_) * kLucks + size_t(before_)]; }

  HazardCounts all_;
  std::array<HazardCounts, kLucks * kLucks> by_luck_;
  std::array<HazardCounts, SharedHazards::kMatchClasses> by_match_;
  Luck last_ = Luck::unknown, before_ = Luck::unknown;
};

}  // namespace tandem
