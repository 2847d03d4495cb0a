// Log-probabilities of the model's own distribution: log-softmax of the logits before any processor.
#pragma once

#include <span>
#include <vector>

#include "base/ids.h"

namespace tandem {

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0;
};

struct Logprobs {
  float chosen = 0;               // of the token asked for; NaN if its logit is NaN
  std::vector<TokenLogprob> top;  // the most probable tokens, best first, of equals the lower id first
};

// logits [n_vocab], untouched by processors. chosen in [0, n_vocab); k >= 0.
// `top` has min(k, n_vocab) entries, less only if NaN logits leave fewer; `chosen` need not be among them.
// fp32 with the maximum subtracted; exp summed in double by ascending id. A logit of -infinity has
// log-probability -infinity (the caller's JSON has to replace it). NaN and +infinity count as no logit: they
// enter neither the sum nor `top`. If no finite logit is left, every log-probability is -infinity.
Logprobs logprobs(std::span<const float> logits, TokenId chosen, int k);

}  // namespace tandem
