#include "speculate/ngram_drafter.h"

namespace tandem {

NgramDrafter::NgramDrafter(int max_sequences, const NgramOptions& options) {
  sequences_.reserve(size_t(max_sequences));
  for (int i = 0; i < max_sequences; ++i) sequences_.push_back({NgramIndex(options), 0});
}

Status NgramDrafter::begin(int slot, const DraftedSequence&) {
  sequences_[size_t(slot)].index.clear();
  sequences_[size_t(slot)].n_seen = 0;
  return {};
}

void NgramDrafter::propose(std::span<const DraftRequest> requests) {
  for (const DraftRequest& r : requests) {
    Sequence& s = sequences_[size_t(r.slot)];
    s.index.append(r.text.subspan(s.n_seen));
    s.n_seen = r.text.size();
    std::array<TokenId, kMaxDraft> found;
    const NgramProposal proposal = s.index.propose(std::span(found).first(size_t(r.max)));
    for (int i = 0; i < proposal.n_tokens; ++i) r.draft->push(found[size_t(i)]);
    r.draft->match = proposal.match;
  }
}

}  // namespace tandem
