// Which part of a draft the target keeps, as pure rules on token ids.
#pragma once

#include <span>

#include "base/ids.h"

namespace tandem {

struct Verdict {
  int n_accepted = 0;  // leading draft tokens that the target keeps
  TokenId next = 0;  // the target's own token after them: the correction, or the bonus token of a whole draft
};

// Coupled acceptance, the lossless default: a draft token is accepted exactly when it equals the token that
// the target chooses at that position, with the same noise. Greedy decoding is the case without noise.
//   draft   [n]      the drafter's tokens, in order; n may be 0
//   target  [n + 1]  target[i] = the target's choice after draft[0 .. i-1]
// The emitted tokens draft[0 .. n_accepted-1], next are those of decoding without a draft, whatever the
// draft.
Verdict accept_coupled(std::span<const TokenId> draft, std::span<const TokenId> target);

}  // namespace tandem
