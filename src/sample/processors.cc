#include "sample/processors.h"

#include <limits>

#include "base/check.h"

namespace tandem {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// f(logit, count) for each token that `counts` holds.
template <class F>
void for_each_counted(const TokenCounts& counts, std::span<float> logits, F f) {
  for (const TokenCounts::Entry& e : counts.entries()) {
    if (e.token != TokenCounts::kFree && size_t(e.token) < logits.size()) f(logits[size_t(e.token)], e.count);
  }
}

void mask_disallowed(AllowedTokens allowed, std::span<float> logits) {
  TD_CHECK(allowed.size() * 32 >= logits.size(), "grammar mask of %zu words for %zu tokens", allowed.size(),
           logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if ((allowed[i / 32] >> (i % 32) & 1u) == 0) logits[i] = kMasked;
  }
}

bool stops_are_masked(const SamplingParams& params, const TokenHistory& history) {
  return history.n_output() < params.min_tokens && !params.stop_ids.empty();
}

}  // namespace

bool changes_logits(const SamplingParams& params, const TokenHistory& history, AllowedTokens allowed) {
  return !params.logit_bias.empty() || params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0 || stops_are_masked(params, history) || !allowed.empty();
}

void process_logits(const SamplingParams& params, const TokenHistory& history, AllowedTokens allowed,
                    std::span<float> logits) {
  for (const auto& [id, bias] : params.logit_bias) {
    if (size_t(id) < logits.size()) logits[size_t(id)] += bias;
  }
  if (const float r = params.repetition_penalty; r != 1) {
    for_each_counted(history.prompt_and_output(), logits,
                     [r](float& x, uint32_t) { x = x < 0 ? x * r : x / r; });
  }
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    for_each_counted(history.output(), logits, [&](float& x, uint32_t count) {
      x -= params.presence_penalty;
      x -= params.frequency_penalty * float(count);
    });
  }
  if (stops_are_masked(params, history)) {
    for (const TokenId id : params.stop_ids) {
      if (size_t(id) < logits.size()) logits[size_t(id)] = kMasked;
    }
  }
  if (!allowed.empty()) mask_disallowed(allowed, logits);
}

}  // namespace tandem
