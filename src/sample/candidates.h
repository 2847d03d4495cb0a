// Tokens in the running for a choice, and the cuts through them. One order everywhere: the higher score
// first, of equal scores the lower id. Sums of probability are integers, which have one value in whatever
// order they are taken, so a cut does not depend on how the tokens were visited, by rows, threads or shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace tandem {

struct Candidate {
  float score = 0;  // a logit, or (logit - max) / temperature
  TokenId id = 0;
};

inline bool better(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.id < b.id;
}

// Collects the k best of candidates that are offered with ascending id; k >= 1. Never holds more than about
// 2k.
class TopSelection {
 public:
  // `storage` receives the candidates and is the only memory used; what it held is gone.
  TopSelection(std::vector<Candidate>& storage, size_t k);
  // NaN is passed over.
  void offer(float score, TokenId id) {
    if (!(score > threshold_) && full_) return;
    if (score == score) add({score, id});
  }
  // Leaves the k best (fewer if fewer were offered) in the storage, in no particular order.
  void finish();

 private:
  void add(Candidate c);

  std::vector<Candidate>& storage_;
  size_t k_;
  bool full_ = false;  // k candidates are known that are at least as good as threshold_
  float threshold_ = 0;
};

// The unnormalised probability of a score <= 0 relative to the best, in units of 2^-40 of the best's:
// floor(2^40 exp(score)).
uint64_t probability_weight(float score);

// Nucleus: keeps the candidates before which less than top_p of the whole mass lies (so the best one always
// stays), moves them to the front of the span in no particular order, and returns their number. Scores <= 0,
// 0 < top_p <= 1.
size_t cut_top_p(std::span<Candidate> candidates, double top_p);

}  // namespace tandem
