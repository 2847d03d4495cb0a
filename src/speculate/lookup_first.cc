#include "speculate/lookup_first.h"

namespace tandem {

LookupFirst::LookupFirst(std::unique_ptr<Drafter> inner, int max_sequences, int min_match)
    : inner_(std::move(inner)),
      name_(std::string(inner_->name()) + "+ngram"),
      lookup_(max_sequences, {.min_match = min_match, .max_match = min_match + 4}) {
  chains_.reserve(size_t(max_sequences));
  rest_.reserve(size_t(max_sequences));
}

Status LookupFirst::begin(int slot, const DraftedSequence& sequence) {
  TD_RETURN_IF_ERROR(lookup_.begin(slot, sequence));
  return inner_->begin(slot, sequence);
}

void LookupFirst::propose(std::span<const DraftRequest> requests) {
  chains_.clear();
  rest_.clear();
  for (const DraftRequest& r : requests) {
    if (r.tree_nodes == 0) chains_.push_back(r);
  }
  lookup_.propose(chains_);
  for (const DraftRequest& r : requests) {
    if (r.draft->n == 0) rest_.push_back(r);
  }
  if (!rest_.empty()) inner_->propose(rest_);
}

}  // namespace tandem
