// Lookup and another drafter for the same sequences: in text that repeats itself the repetition is the better
// draft, and costs nothing. An engine chooses between the two in each round (sources()); propose() by itself
// asks the other one only where lookup has nothing good.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "speculate/drafter.h"
#include "speculate/ngram_drafter.h"

namespace tandem {

class LookupFirst final : public Drafter {
 public:
  // A lookup counts from `min_match` equal tokens on.
  LookupFirst(std::unique_ptr<Drafter> inner, int max_sequences, int min_match = 4);

  std::string_view name() const override { return name_; }
  DraftCost cost() const override { return inner_->cost(); }
  int max_draft() const override { return std::max(lookup_.max_draft(), inner_->max_draft()); }
  std::vector<Drafter*> sources() override { return {&lookup_, inner_.get()}; }
  bool makes_trees() const override { return inner_->makes_trees(); }
  Status begin(int slot, const DraftedSequence& sequence) override;
  void end(int slot) override { inner_->end(slot); }
  void observe(std::span<const Observation> steps) override { inner_->observe(steps); }
  void propose(std::span<const DraftRequest> requests) override;

 private:
  std::unique_ptr<Drafter> inner_;
  std::string name_;
  NgramDrafter lookup_;
  std::vector<DraftRequest> chains_, rest_;
};

}  // namespace tandem
