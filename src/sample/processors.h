// The edits of a row of logits that come before the choice, in the one order of the project:
//   logit bias -> repetition -> presence and frequency -> min-tokens mask -> grammar mask
// (temperature, top-k, top-p and min-p follow in sampler.h).
#pragma once

#include <cstdint>
#include <span>

#include "sample/params.h"
#include "sample/token_history.h"

namespace tandem {

// One bit per token, token t at bit t % 32 of word t / 32: set if a grammar allows it. Empty: everything is
// allowed.
using AllowedTokens = std::span<const uint32_t>;

// True if process_logits would change anything: if not, a row may be used as the model wrote it.
bool changes_logits(const SamplingParams& params, const TokenHistory& history, AllowedTokens allowed);

// logits [n_vocab], edited in place, fp32; a masked token becomes -infinity. Ids beyond the row are passed
// over: a row may be cut to the tokens that have a text, and what is cut off cannot be chosen anyway.
void process_logits(const SamplingParams& params, const TokenHistory& history, AllowedTokens allowed,
                    std::span<float> logits);

}  // namespace tandem
