// What a request may say about how its tokens are chosen.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace tandem {

// The defaults leave the model's distribution alone and choose greedily.
struct SamplingParams {
  float temperature = 0;         // 0: the most probable token; top-k, top-p and min-p then have nothing to do
  int top_k = 0;                 // keep the k best; 0 or >= vocabulary: all
  double top_p = 1;              // keep the smallest best set of this mass; 1: all
  double min_p = 0;              // keep p >= min_p * max p; 0: all
  float repetition_penalty = 1;  // on tokens of prompt and output: x < 0 ? x * r : x / r; 1: none
  float presence_penalty = 0;    // subtracted once from every token of the output
  float frequency_penalty = 0;   // subtracted once per occurrence in the output
  int repetition_window = 0;     // count only the last n tokens of prompt and output; 0: all
  int output_window = 0;         // presence, frequency: count only the last n tokens of the output; 0: all
  int min_tokens = 0;            // stop_ids are out of question before the output has this many tokens
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias = {};  // added to the logit; ids distinct
  std::vector<TokenId> stop_ids = {};
};

// Every field in its range, for a vocabulary of n_vocab; the error names the field, its range and the value
// found.
Status validate(const SamplingParams& params, int n_vocab);

}  // namespace tandem
