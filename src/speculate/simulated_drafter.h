// A drafter that is right by lot, for measuring what speculation gives at shapes without weights: the time of
// a verify step does not depend on what is verified, and how often drafts are right is a parameter. Drafting
// itself costs nothing here.
#pragma once

#include "speculate/drafter.h"

namespace tandem {

class SimulatedDrafter final : public Drafter {
 public:
  // acceptance: of each draft whose predecessors were accepted, in (0, 1].
  SimulatedDrafter(double acceptance, int n_vocab) : acceptance_(acceptance), n_vocab_(n_vocab) {}

  std::string_view name() const override { return "simulated"; }
  DraftCost cost() const override { return DraftCost::block; }
  int max_draft() const override { return kMaxDraft; }
  double simulated_acceptance() const override { return acceptance_; }
  Status begin(int, const DraftedSequence&) override { return {}; }
  void end(int) override {}
  void observe(std::span<const Observation>) override {}
  void propose(std::span<const DraftRequest> requests) override {
    for (const DraftRequest& r : requests) {
      // Any tokens: they come out as text where the lot accepts them.
      for (int i = 0; i < r.max; ++i) {
        if (!r.draft->push(TokenId((r.text.size() * 31 + size_t(i) * 7) % size_t(n_vocab_)))) break;
      }
    }
  }

 private:
  double acceptance_;
  int n_vocab_;
};

}  // namespace tandem
