// Drafts by lookup: what followed the last few tokens when they occurred before. No model, no memory to speak
// of.
#pragma once

#include <memory>
#include <vector>

#include "speculate/drafter.h"
#include "speculate/ngram.h"

namespace tandem {

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(int max_sequences, const NgramOptions& options = {});

  std::string_view name() const override { return "ngram"; }
  DraftCost cost() const override { return DraftCost::free; }
  int max_draft() const override { return kMaxDraft; }
  Status begin(int slot, const DraftedSequence& sequence) override;
  void end(int) override {}
  void observe(std::span<const Observation>) override {}
  void propose(std::span<const DraftRequest> requests) override;

 private:
  struct Sequence {
    NgramIndex index;
    size_t n_seen = 0;  // tokens of the text that are in the index
  };
  std::vector<Sequence> sequences_;
};

}  // namespace tandem
