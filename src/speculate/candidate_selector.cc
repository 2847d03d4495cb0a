#include "speculate/candidate_selector.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sample/philox.h"

namespace tandem {

std::span<const float> SelectorSlots::predecessor(int slot, int i) const {
  return predecessors.subspan((size_t(slot) * size_t(n_candidates) + size_t(i)) * size_t(rank), size_t(rank));
}

void SelectorSlots::scores(int slot, std::span<const float> a, std::span<float> out) const {
  const auto k = size_t(n_candidates), r = size_t(rank);
  const std::span<const float> h = hidden.subspan(size_t(slot) * r, r);
  for (size_t i = 0; i < k; ++i) {
    const std::span<const float> b = successors.subspan((size_t(slot) * k + i) * r, r);
    double sum = 0;
    for (size_t c = 0; c < r; ++c) sum += double(a[c] * h[c]) * b[c];
    out[i] = float(unary[size_t(slot) * k + i] + sum);
  }
}

int SelectorWalk::run(const SelectorSlots& slots, const SamplingParams& sampling, uint32_t position) {
  const auto n = size_t(slots.n_slots), k = size_t(slots.n_candidates), r = size_t(slots.rank);
  TD_CHECK(k > 0 && slots.ids.size() == n * k && slots.unary.size() == n * k &&
               slots.hidden.size() == n * r && slots.first.size() == r &&
               slots.predecessors.size() == n * k * r && slots.successors.size() == n * k * r,
           "%zu slots of %zu candidates, rank %zu: %zu ids, %zu rows of a codebook", n, k, r,
           slots.ids.size(), slots.successors.size() / r);
  n_candidates_ = k;
  scores_.resize(k);
  choices_.resize(n);
  probabilities_.resize(n * k);
  std::span<const float> before = slots.first;
  for (size_t j = 0; j < n; ++j) {
    slots.scores(int(j), before, scores_);
    const int chosen = choose(slots.ids.subspan(j * k, k), sampling, position + uint32_t(j),
                              std::span(probabilities_).subspan(j * k, k));
    if (chosen < 0) return int(j);
    choices_[j] = chosen;
    before = slots.predecessor(int(j), chosen);
  }
  return int(n);
}

int SelectorWalk::choose(std::span<const TokenId> ids, const SamplingParams& sampling, uint32_t position,
                         std::span<float> probabilities) {
  if (!std::all_of(scores_.begin(), scores_.end(), [](float s) { return std::isfinite(s); })) return -1;
  const auto index_of = [&](TokenId id) { return std::find(ids.begin(), ids.end(), id) - ids.begin(); };
  std::fill(probabilities.begin(), probabilities.end(), 0.0f);
  const float highest = *std::max_element(scores_.begin(), scores_.end());
  const bool greedy = sampling.temperature == 0;
  candidates_.clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    candidates_.push_back({greedy ? scores_[i] : (scores_[i] - highest) / sampling.temperature, ids[i]});
  }
  std::sort(candidates_.begin(), candidates_.end(), better);
  if (greedy) {
    const auto best = index_of(candidates_[0].id);
    probabilities[size_t(best)] = 1;
    return int(best);
  }
  std::span<Candidate> left = candidates_;
  if (sampling.top_k > 0) left = left.first(std::min(left.size(), size_t(sampling.top_k)));
  if (sampling.top_p < 1) left = left.first(cut_top_p(left, sampling.top_p));
  const float least = float(std::log(sampling.min_p));  // min_p 0: -infinity

  const NoiseKey key{.seed = sampling.seed, .position = position, .purpose = NoisePurpose::choose};
  Candidate best{.score = -INFINITY, .id = -1};
  double sum = 0;
  for (const Candidate& c : left) {
    if (c.score < least) continue;
    const float p = std::exp(c.score);
    probabilities[size_t(index_of(c.id))] = p;
    sum += p;
    const Candidate noisy{.score = c.score + gumbel_noise(key, c.id), .id = c.id};
    if (best.id < 0 || better(noisy, best)) best = noisy;
  }
  for (float& p : probabilities) p = float(p / sum);
  return int(index_of(best.id));
}

}  // namespace tandem
