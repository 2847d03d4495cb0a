// logits -> token.
//
// After process_logits (processors.h) come, in this order: temperature, top-k, top-p, min-p, each on what the
// one before left, renormalised. With x_max the largest logit left,
//   score       t = (x - x_max) / temperature
//   top-k       the k best, by t, then id
//   top-p       the tokens before which less than top_p of the mass lies, by t, then id
//   min-p       t >= log(min_p)
//   choice      argmax over the survivors of t + Gumbel noise(seed, position, token): a draw from softmax(t);
//   the lower
//               id of equals. Temperature 0: the argmax of the logits, nothing below the processors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "sample/candidates.h"
#include "sample/processors.h"

namespace tandem {

// One row to choose from. Views live for the call only.
struct SampleRow {
  std::span<float>
      logits;  // [n_vocab] of the model; edited in place if processors are active (take logprobs first)
  const SamplingParams& params;
  const TokenHistory& history;  // everything before the token to be chosen
  uint32_t position = 0;        // absolute index of the token to be chosen, prompt included
  AllowedTokens allowed = {};   // grammar mask, or empty
};

// Holds nothing but working memory: what it returns depends on the row alone. One per thread.
class Sampler {
 public:
  // Rows up to n_vocab need no allocation.
  explicit Sampler(int n_vocab);

  // Errors: a logit that is NaN or infinite (names the first one), or no token left by the masks.
  Result<TokenId> choose(const SampleRow& row);

  // choose() of a row that no processor changes, from its best logits alone: values and ids, the highest
  // first, of equals the lower id first, more of them than 0 < top_k (temperature > 0). Nothing where they do
  // not settle it: scores may be equal where logits are not.
  std::optional<TokenId> choose_among(std::span<const float> values, std::span<const TokenId> ids,
                                      const SamplingParams& params, uint32_t position);

  // The distribution from which choose() draws: probs [n_vocab], fp32, summing to 1; one-hot at temperature
  // 0.
  Status distribution(const SampleRow& row, std::span<float> probs);

 private:
  // Survivors of top-k, top-p and min-p, scored; temperature > 0.
  std::span<const Candidate> survivors(const SampleRow& row, float x_max);
  // Of candidates_, the survivors of top-p and min-p.
  std::span<const Candidate> cut(const SamplingParams& params);

  std::vector<Candidate> candidates_;
};

}  // namespace tandem
