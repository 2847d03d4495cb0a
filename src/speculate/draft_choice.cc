#include "speculate/draft_choice.h"

#include <algorithm>

#include "backend/backend.h"

namespace tandem {

DraftChoice::DraftChoice(int n_vocab, int n_slots)
    : n_vocab_(n_vocab), sampler_(n_vocab), nothing_said_({}, {}), sequences_(size_t(n_slots)) {}

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

bool DraftChoice::takes_best(int slot) const {
  const Sequence& sequence = sequences_[size_t(slot)];
  const size_t most = std::min(n_choices(slot), size_t(Backend::kMostBest));
  return sequence.sampling.temperature > 0 && !sequence.wants_q && sequence.sampling.top_k > 0 &&
         size_t(sequence.sampling.top_k) < most;
}

bool DraftChoice::append_best(int slot, std::span<const float> values, std::span<const TokenId> ids,
                              uint32_t position, Draft& draft) {
  const std::optional<TokenId> token =
      sampler_.choose_among(values, ids, sequences_[size_t(slot)].sampling, position);
  return token && draft.push(*token);
}

size_t DraftChoice::n_choices(int slot) const {
  const int n_tokens = sequences_[size_t(slot)].n_tokens;
  return size_t(n_tokens > 0 ? std::min(n_tokens, n_vocab_) : n_vocab_);
}

void DraftChoice::candidates(int slot, std::span<const float> logits, size_t k,
                             std::vector<Candidate>& out) const {
  logits = logits.first(std::min(logits.size(), n_choices(slot)));
  TopSelection best(out, k);
  for (size_t i = 0; i < logits.size(); ++i) best.offer(logits[i], TokenId(i));
  best.finish();
  std::sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

bool DraftChoice::append(int slot, TokenId token, std::span<const TokenId> ids,
                         std::span<const float> probabilities, Draft& draft) {
  if (draft.n == kMaxDraft) return false;
  if (sequences_[size_t(slot)].wants_q) {
    const size_t n = n_choices(slot);
    draft.q.resize(size_t(draft.n) * n);
    draft.q.resize(size_t(draft.n + 1) * n, 0.0f);
    for (size_t i = 0; i < ids.size(); ++i) draft.q[size_t(draft.n) * n + size_t(ids[i])] = probabilities[i];
  }
  return draft.push(token);
}

}  // namespace tandem
