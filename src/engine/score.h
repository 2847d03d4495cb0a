// Log-probabilities of given tokens under the model: what `tandem score` and perplexity are made of.
#pragma once

#include <functional>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "model/decoder.h"
#include "sample/logprobs.h"

namespace tandem {

// `stop` is asked before every step of the model and every few rows of logits: true ends the work, an error.
// Calls sink(i, logprobs of tokens[i] given tokens[0 .. i)) for i = 1, 2, ...; `top` best alternatives with
// each. Errors: logits that are not finite; a token outside the vocabulary, more tokens than the context
// holds, not enough memory for the state.
Status score_tokens(Decoder& decoder, std::span<const TokenId> tokens, int top,
                    const std::function<void(int index, const Logprobs&)>& sink,
                    const std::function<bool()>& stop = {});

}  // namespace tandem
