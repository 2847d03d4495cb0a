// Which hidden states an MTP head was trained with, found by drafting with each choice: a wrong one is no
// error that shows, only drafts that are refused more often.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "engine/loaded_model.h"

namespace tandem {

// One choice, tried on all prompts with drafts of three tokens.
struct MtpTrial {
  static constexpr int kDraft = 3;
  MtpOptions options;
  int rounds = 0;                                // in which tokens were drafted
  std::array<int, kDraft> judged{}, accepted{};  // by position in the draft; judged: all before it accepted

  // Of the tokens judged at a position, 0 to 2.
  double acceptance(int position) const;
  double accepted_per_round() const;
  // Variance of that mean over the rounds.
  double variance() const;
};

struct MtpProbe {
  std::vector<MtpTrial> trials;  // all four; the first is what config.json says now
  int best = 0;  // most tokens accepted per round; the first unless another beats it by two standard errors
};

// Greedy answers of at most n_tokens to every prompt. `stop` is asked between steps: true ends the work, an
// error. Errors: a model without a head that fits; a prompt that does not fit the context; memory.
Result<MtpProbe> probe_mtp(LoadedModel& model, std::span<const std::vector<TokenId>> prompts, int n_tokens,
                           const std::function<bool()>& stop = {});

// Index of the best trial, as MtpProbe says it.
int best_trial(std::span<const MtpTrial> trials);

}  // namespace tandem
