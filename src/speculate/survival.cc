#include "speculate/survival.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {
namespace {

constexpr float kDiscount = 0.99f;         // per round of a sequence
constexpr float kLuckDiscount = 0.99f;     // per round after such luck
constexpr float kSharedDiscount = 0.995f;  // per round of any sequence
constexpr double kShrink = 4;              // rounds that a prior is worth
constexpr double kOwnShrink = 4;           // what the other sequences are worth
constexpr double kLuckShrink = 8;          // the same for counts by luck, which repeat the others' evidence
constexpr double kFirstHazard = 0.75;      // before anything is known
// The same for lookups: the longer the match, the surer.
constexpr double kFirstMatchHazard[SharedHazards::kMatchClasses] = {0.6, 0.7, 0.75, 0.8, 0.9};

// The hazard `prior`, its odds multiplied as from `from` to `to`: a sequence that does better than the others
// at one position is expected to do so at the next.
double shifted(double prior, double from, double to) {
  const double yes = prior * to * (1 - from), no = (1 - prior) * (1 - to) * from;
  return yes / (yes + no);
}

double blend(float accepted, float tried, double prior, double weight) {
  return std::clamp((accepted + weight * prior) / (tried + weight), 1e-4, 1 - 1e-4);
}

}  // namespace

void HazardCounts::add(int n_verified, int n_accepted, float discount) {
  for (size_t i = 0; i < tried_.size(); ++i) {
    tried_[i] *= discount;
    accepted_[i] *= discount;
  }
  const int n_tried = std::min(n_verified, n_accepted + 1);
  for (int i = 0; i < n_tried; ++i) tried_[size_t(i)] += 1;
  for (int i = 0; i < n_accepted; ++i) accepted_[size_t(i)] += 1;
}

int SharedHazards::class_of(int match) {  // 1-2, 3, 4-5, 6-7, more
  return match < 3 ? 0 : match < 4 ? 1 : match < 6 ? 2 : match < 8 ? 3 : 4;
}

void Survival::add(int n_verified, int n_accepted, int match, SharedHazards& shared) {
  TD_CHECK(n_verified > 0 && n_verified <= kMaxDraft && n_accepted >= 0 && n_accepted <= n_verified,
           "%d of %d drafts accepted, at most %d", n_accepted, n_verified, kMaxDraft);
  all_.add(n_verified, n_accepted, kDiscount);
  by_luck_[size_t(last_) * kLucks + size_t(before_)].add(n_verified, n_accepted, kLuckDiscount);
  shared.all.add(n_verified, n_accepted, kSharedDiscount);
  if (match > 0) {
    const auto c = size_t(SharedHazards::class_of(match));
    by_match_[c].add(n_verified, n_accepted, kDiscount);
    shared.by_match[c].add(n_verified, n_accepted, kSharedDiscount);
  }
  before_ = last_;
  last_ = n_accepted == 0 ? Luck::none : n_accepted == 1 && n_verified > 1 ? Luck::some : Luck::good;
}

void Survival::forget_luck() { last_ = before_ = Luck::unknown; }

void Survival::hazards_of_match(const SharedHazards& shared, int match, std::span<double> out) const {
  const auto c = size_t(SharedHazards::class_of(match));
  const HazardCounts &of_all = shared.by_match[c], &of_own = by_match_[c];
  double all = kFirstMatchHazard[c], own = all;
  for (int i = 0; i < int(out.size()); ++i) {
    const double all_next = blend(of_all.accepted(i), of_all.tried(i), all, kShrink);
    own = blend(of_own.accepted(i), of_own.tried(i), i == 0 ? all_next : shifted(all_next, all, own),
                kOwnShrink);
    all = all_next;
    out[size_t(i)] = own;
  }
}

void Survival::hazards(const SharedHazards& both, int match, std::span<double> mean,
                       std::span<double> now) const {
  const HazardCounts& shared = both.all;
  TD_CHECK(mean.size() == now.size() && now.size() <= size_t{kMaxDraft}, "%zu and %zu positions, at most %d",
           mean.size(), now.size(), kMaxDraft);
  if (match > 0) {
    hazards_of_match(both, match, mean);
    std::copy(mean.begin(), mean.end(), now.begin());
    return;
  }
  const HazardCounts& lucky = of_luck();
  double all = kFirstHazard, own = kFirstHazard, here = kFirstHazard;
  for (int i = 0; i < int(now.size()); ++i) {
    const double all_next = blend(shared.accepted(i), shared.tried(i), all, kShrink);
    const double own_next =
        blend(all_.accepted(i), all_.tried(i), i == 0 ? all_next : shifted(all_next, all, own), kOwnShrink);
    here = blend(lucky.accepted(i), lucky.tried(i), i == 0 ? own_next : shifted(own_next, own, here),
                 kLuckShrink);
    all = all_next;
    own = own_next;
    mean[size_t(i)] = own;
    now[size_t(i)] = here;
  }
}

}  // namespace tandem
