#include "sample/candidates.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tandem {
namespace {

// exp(-28) < 2^-40: scores below have no weight.
constexpr int kBuckets = 28;

// Rises with -score: bucket b holds -(b + 1) < score <= -b.
size_t bucket_of(float score) { return size_t(std::min(-score, float(kBuckets))); }

}  // namespace

TopSelection::TopSelection(std::vector<Candidate>& storage, size_t k) : storage_(storage), k_(k) {
  storage_.clear();
}

void TopSelection::add(Candidate c) {
  storage_.push_back(c);
  if (storage_.size() < 2 * k_ + 64) return;
  finish();
  full_ = true;
  threshold_ = std::min_element(storage_.begin(), storage_.end(), [](const Candidate& a, const Candidate& b) {
                 return a.score < b.score;
               })->score;
}

void TopSelection::finish() {
  if (storage_.size() <= k_) return;
  std::nth_element(storage_.begin(), storage_.begin() + ptrdiff_t(k_), storage_.end(), better);
  storage_.resize(k_);
}

uint64_t probability_weight(float score) {
  return score > -float(kBuckets) ? uint64_t(std::exp(score) * 0x1p40f) : 0;
}

size_t cut_top_p(std::span<Candidate> candidates, double top_p) {
  // Mass by bucket of width 1 first: only the bucket that the cut falls into needs a closer look.
  std::array<uint64_t, kBuckets + 1> mass{};
  for (const Candidate& c : candidates) mass[bucket_of(c.score)] += probability_weight(c.score);
  uint64_t total = 0;
  for (const uint64_t m : mass) total += m;
  const double goal = top_p * double(total);

  uint64_t before = 0;
  size_t cut_bucket = 0;
  while (cut_bucket < kBuckets && double(before + mass[cut_bucket]) < goal) before += mass[cut_bucket++];
  const auto cut_begin = std::partition(candidates.begin(), candidates.end(),
                                        [&](const Candidate& c) { return bucket_of(c.score) < cut_bucket; });
  const auto cut_end = std::partition(cut_begin, candidates.end(),
                                      [&](const Candidate& c) { return bucket_of(c.score) == cut_bucket; });

  // Halve [begin, end) around the cut: everything before begin is kept (its mass is `before`), nothing from
  // end on.
  auto begin = cut_begin, end = cut_end;
  while (begin != end) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, better);
    uint64_t left = before;
    for (auto it = begin; it != middle; ++it) left += probability_weight(it->score);
    if (double(left) < goal) {  // *middle is kept
      before = left + probability_weight(middle->score);
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return size_t(begin - candidates.begin());
}

}  // namespace tandem
