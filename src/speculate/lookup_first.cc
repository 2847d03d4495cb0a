#include "speculate/lookup_first.h"

namespace tandem {

LookupFirst::LookupFirst(std::unique_ptr<Drafter> inner, int max_sequences, int min_match)
    : inner_(std::move(inner)), name_(std::string(inner_->name()) + "+ngram") {
  const NgramOptions options{.min_match = min_match, .max_match = min_match + 4};
  sequences_.reserve(size_t(max_sequences));
  for (int i = 0; i < max_sequences; ++i) sequences_.push_back({NgramIndex(options), 0});
  rest_.reserve(size_t(max_sequences));
}

Status LookupFirst::begin(int slot, const DraftedSequence& sequence) {
  sequences_[size_t(slot)].index.clear();
  sequences_[size_t(slot)].n_seen = 0;
  return inner_->begin(slot, sequence);
}

void LookupFirst::propose(std::span<const DraftRequest> requests) {
  rest_.clear();
  for (const DraftRequest& r : requests) {
    Sequence& s = sequences_[size_t(r.slot)];
    s.index.append(r.text.subspan(s.n_seen));
    s.n_seen = r.text.size();
    std::array<TokenId, kMaxDraft> found;
    const int n = r.tree_nodes > 0 ? 0 : s.index.propose(std::span(found).first(size_t(r.max))).n_tokens;
    for (int i = 0; i < n; ++i) r.draft->push(found[size_t(i)]);
    if (n == 0) rest_.push_back(r);
  }
  if (!rest_.empty()) inner_->propose(rest_);
}

}  // namespace tandem
