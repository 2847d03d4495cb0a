#include "speculate/draft_choice.h"

#include <algorithm>

namespace tandem {

DraftChoice::DraftChoice(int n_vocab, int n_slots)
    : sampler_(n_vocab), nothing_said_({}, {}), sequences_(size_t(n_slots)) {}

void DraftChoice::begin(int slot, const DraftedSequence& sequence) {
  const SamplingParams& wanted = *sequence.sampling;
  sequences_[size_t(slot)] = {.sampling = {.temperature = wanted.temperature,
                                           .top_k = wanted.top_k,
                                           .top_p = wanted.top_p,
                                           .min_p = wanted.min_p,
                                           .seed = wanted.seed},
                              .n_tokens = sequence.n_tokens,
                              .wants_q = sequence.wants_q && wanted.temperature > 0};
}

bool DraftChoice::append(int slot, std::span<float> logits, uint32_t position, Draft& draft) {
  const Sequence& sequence = sequences_[size_t(slot)];
  if (sequence.n_tokens > 0) logits = logits.first(std::min(logits.size(), size_t(sequence.n_tokens)));
  const SampleRow row{
      .logits = logits, .params = sequence.sampling, .history = nothing_said_, .position = position};
  const Result<TokenId> token = sampler_.choose(row);
  if (!token.ok() || draft.n == kMaxDraft) return false;
  if (sequence.wants_q) {
    draft.q.resize(size_t(draft.n + 1) * logits.size());
    const std::span<float> q = std::span(draft.q).last(logits.size());
    if (!sampler_.distribution(row, q).ok()) return false;
  }
  return draft.push(*token);
}

}  // namespace tandem
