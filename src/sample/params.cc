#include "sample/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

Error out_of_range(const char* field, const char* want, double found) {
  return Error{fmt::format("{}: want {}, got {}", field, want, found)};
}

}  // namespace

Status validate(const SamplingParams& params, int n_vocab) {
  const SamplingParams& p = params;
  // Written as !(in range), so that NaN is refused too.
  if (!(p.temperature >= 0 && std::isfinite(p.temperature)))
    return out_of_range("temperature", "a finite number >= 0 (0 is greedy)", p.temperature);
  if (p.top_k < 0) return out_of_range("top_k", "an integer >= 0 (0 keeps all tokens)", p.top_k);
  if (!(p.top_p > 0 && p.top_p <= 1))
    return out_of_range("top_p", "a number in (0, 1] (temperature 0 is the greedy choice)", p.top_p);
  if (!(p.min_p >= 0 && p.min_p <= 1)) return out_of_range("min_p", "a number in [0, 1]", p.min_p);
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 10))
    return out_of_range("repetition_penalty", "a number in (0, 10] (1 is no penalty)", p.repetition_penalty);
  if (!(std::abs(p.presence_penalty) <= 2))
    return out_of_range("presence_penalty", "a number in [-2, 2]", p.presence_penalty);
  if (!(std::abs(p.frequency_penalty) <= 2))
    return out_of_range("frequency_penalty", "a number in [-2, 2]", p.frequency_penalty);
  if (p.repetition_window < 0)
    return out_of_range("repetition_window", "an integer >= 0 (0 is the whole sequence)",
                        p.repetition_window);
  if (p.output_window < 0)
    return out_of_range("output_window", "an integer >= 0 (0 is the whole output)", p.output_window);
  if (p.min_tokens < 0) return out_of_range("min_tokens", "an integer >= 0", p.min_tokens);

  std::vector<TokenId> ids;
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= n_vocab)
      return Error{fmt::format("logit_bias: token {} is not in the vocabulary (0 .. {})", id, n_vocab - 1)};
    if (!(std::abs(bias) <= 100))
      return Error{fmt::format("logit_bias: token {}: want a number in [-100, 100], got {}", id, bias)};
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end())
    return Error{fmt::format("logit_bias: token {} appears twice; give each token one bias", *twice)};
  for (const TokenId id : p.stop_ids) {
    if (id < 0) return Error{fmt::format("stop_ids: want token ids >= 0, got {}", id)};
  }
  return {};
}

}  // namespace tandem
