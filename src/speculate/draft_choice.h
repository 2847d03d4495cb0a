// How drafters with a distribution choose their tokens.
#pragma once

#include <span>
#include <vector>

#include "sample/candidates.h"
#include "sample/sampler.h"
#include "speculate/drafter.h"

namespace tandem {

// Greedy requests get the argmax; sampled ones a draw with the noise that the target will use for the same
// position, so that equal distributions draw equal tokens. Penalties and masks are left to the target.
class DraftChoice {
 public:
  DraftChoice(int n_vocab, int n_slots);

  void begin(int slot, const DraftedSequence& sequence);
  // Chooses the next token of the draft for absolute position `position` from `logits` [n_vocab] and appends
  // it, with its distribution where the sequence wants it. False where the logits are no numbers or the draft
  // is full.
  bool append(int slot, std::span<float> logits, uint32_t position, Draft& draft);

  // Whether the best logits of a row can be enough to choose from (Sampler::choose_among).
  bool takes_best(int slot) const;
  // append() from them alone. False also where they do not settle it.
  bool append_best(int slot, std::span<const float> values, std::span<const TokenId> ids, uint32_t position,
                   Draft& draft);

  // For drafters with a selector (candidate_selector.h), in its place: the `k` best tokens of `logits` that
  // may be chosen, by ascending id, with their logits; fewer where there are fewer numbers.
  void candidates(int slot, std::span<const float> logits, size_t k, std::vector<Candidate>& out) const;
  // Tokens that candidates() chooses from.
  size_t n_choices(int slot) const;
  const SamplingParams& sampling(int slot) const { return sequences_[size_t(slot)].sampling; }
  // Appends `token`, drawn from probabilities[i] of ids[i], zero elsewhere. False where the draft is full.
  bool append(int slot, TokenId token, std::span<const TokenId> ids, std::span<const float> probabilities,
              Draft& draft);

 private:
  struct Sequence {
    SamplingParams sampling;
    int n_tokens = 0;
    bool wants_q = false;
  };
  int n_vocab_;
  Sampler sampler_;
  TokenHistory nothing_said_;
  std::vector<Sequence> sequences_;
};

}  // namespace tandem
