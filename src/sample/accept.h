// Which part of a draft the target keeps. Here the modes and the rule on token ids; rejection.h has the rules
// on probabilities.
#pragma once

#include <span>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"

namespace tandem {

// How a drafted token is judged.
//   coupled    accepted exactly when the target chooses it with the same noise: the text of plain decoding
//   rejection  the classic test: the law of plain decoding, not its tokens
//   lenient    rejection with a softened test: accepts more, and the law of the text shifts (rejection.h says
//   by
//              how much). Not lossless.
enum class AcceptMode { coupled, rejection, lenient };

struct AcceptOptions {
  AcceptMode mode = AcceptMode::coupled;
  double exponent = 1;  // lenient: in (0, 1]; 1 is rejection
};

// "coupled", "rejection" or "lenient:A" with 0 < A <= 1. Errors: anything else, naming it and the choices.
Result<AcceptOptions> parse_accept_options(std::string_view text);

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
