// The candidate selector of DFlash 2: which of a slot's best tokens to draft, given the token before it.
//
//   S_j(a, b) = U_j(b) + sum_r A[a][r] (W_h h_j)[r] B[b][r]
// U_j: logits of the candidates of slot j; A, B: codebooks of predecessors and successors; h_j: the slot's
// normed hidden state. The walk goes from left to right: slot j's token is chosen from softmax(S_j(a, .) /
// temperature), a being the token of slot j - 1, and of slot 0 the token before the block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "sample/candidates.h"
#include "sample/params.h"

namespace tandem {

// Slots in a row, each with the same number of candidates. Borrows.
struct SelectorSlots {
  int n_slots = 0, n_candidates = 0, rank = 0;
  std::span<const TokenId> ids;   // [n_slots, n_candidates], distinct within a slot
  std::span<const float> unary;   // [n_slots, n_candidates] U
  std::span<const float> hidden;  // [n_slots, rank] W_h h
  std::span<const float> first;   // [rank] A of the token before slot 0
  std::span<const float>
      predecessors;  // [n_slots, n_candidates, rank] A of the candidates; the last slot's unused
  std::span<const float> successors;  // [n_slots, n_candidates, rank] B of the candidates

  // A of candidate i of a slot, and S(a, .) of a slot after a token with predecessor row a.
  std::span<const float> predecessor(int slot, int i) const;
  void scores(int slot, std::span<const float> a, std::span<float> out) const;  // out [n_candidates]
};

// Walks along slots and keeps the choices. Once it has seen the largest block it allocates nothing.
class SelectorWalk {
 public:
  // Chooses a token for each slot, slot 0's for absolute position `position`. Temperature 0: the best score,
  // of equals the lower id. Else temperature, top-k, top-p and min-p of `sampling` as in sampler.h, and the
  // argmax of score / temperature + noise(seed, position, token): a target with the same distribution draws
  // the same token. Returns the slots that were walked: all, unless a score is no finite number.
  int run(const SelectorSlots& slots, const SamplingParams& sampling, uint32_t position);

  // Of the last run: the candidate chosen in a slot, and the distribution that it was drawn from,
  // [n_candidates], summing to 1 (temperature 0: one-hot).
  int choice(int slot) const { return choices_[size_t(slot)]; }
  std::span<const float> probabilities(int slot) const {
    return std::span(probabilities_).subspan(size_t(slot) * n_candidates_, n_candidates_);
  }

 private:
  // From scores_ of a slot. -1: a score is not finite.
  int choose(std::span<const TokenId> ids, const SamplingParams& sampling, uint32_t position,
             std::span<float> probabilities);

  size_t n_candidates_ = 0;
  std::vector<float> scores_, probabilities_;
  std::vector<int> choices_;
  std::vector<Candidate> candidates_;
};

}  // namespace tandem
