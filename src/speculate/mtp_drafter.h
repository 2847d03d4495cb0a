// Drafts by the model's own multi-token-prediction head, one token after the other.
//
// The head's cache is kept true: after every round it is cut back to the committed positions and fed their
// tokens with the target's own hidden states, in the same pass that makes the first draft.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/mtp_head.h"
#include "speculate/dflash_drafter.h"
#include "speculate/draft_choice.h"
#include "speculate/drafter.h"

namespace tandem {

class MtpDrafter final : public Drafter {
 public:
  // draft_ids: the token of each of the head's logits, ascending; empty: token i is logit i. Errors: memory.
  static Result<std::unique_ptr<MtpDrafter>> create(std::unique_ptr<MtpHead> head, Decoder& target,
                                                    const DraftLimits& limits,
                                                    std::vector<TokenId> draft_ids = {});

  std::string_view name() const override { return "mtp"; }
  DraftCost cost() const override { return DraftCost::chain; }
  int max_draft() const override { return kMaxDraft; }
  Status begin(int slot, const DraftedSequence& sequence) override;
  void end(int slot) override { sequences_[size_t(slot)].state.reset(); }
  void observe(std::span<const Observation> steps) override;
  void propose(std::span<const DraftRequest> requests) override;

 private:
  // Hidden states of the target that wait until the token after each is known.
  static constexpr int kMaxWaiting = kMaxDecodeRows + 1;
  struct Sequence {
    std::optional<SequenceState> state;  // the head's cache
    int base = 0;                        // the position that is its first
    int n_waiting = 0;
  };

  MtpDrafter(std::unique_ptr<MtpHead> head, Decoder& target, StatePool pool, const DraftLimits& limits);
  Status allocate();
  MutView waiting(int slot, int first, int n) const {
    return waiting_.row_range(slot * kMaxWaiting + first, n);
  }
  void ingest(Sequence& s, const Observation& o, MutView hidden);
  void start_drafts(std::span<const DraftRequest> requests);
  // Logits that the drafting sequences choose among where all of them do so greedily; else 0.
  int greedy_choices() const;
  // All tokens of greedy chains at once, chosen by the backend.
  void draft_chains(int n_choices);
  // Else token by token, chosen on the host.
  void continue_drafts(int done);
  void append_tokens(std::span<const int32_t> rows);
  // From row i of those that are through the head. False where there is no more to append.
  bool append_token(const DraftRequest& r, size_t i);
  // What all that draft want of their rows.
  RowChoice wanted_choice() const;
  // A row of the head's logits as one of the vocabulary's, where tokens outside are as good as impossible.
  std::span<float> over_vocabulary(std::span<float> logits);

  std::unique_ptr<MtpHead> head_;
  Decoder* target_;
  StatePool pool_;
  DraftChoice choice_;
  std::vector<Sequence> sequences_;
  std::vector<TokenId> draft_ids_;
  DeviceBuffer draft_ids_memory_;
  View draft_ids_view_;      // the same for the backend
  std::vector<float> wide_;  // [n_vocab], with draft_ids_
  DeviceBuffer memory_;
  MutView waiting_;  // [slots x kMaxWaiting, d_model]
  MutView hidden_;   // [max_rows + kMaxWaiting, d_model], the rows of a pass
  MutView chain_;    // [max_rows, d_model], fed back
  std::vector<int32_t> rows_, last_rows_, chain_rows_;
  std::vector<SeqStep> seqs_;
  std::vector<TokenId> ids_;
  std::vector<Step> steps_;
  std::vector<const DraftRequest*> drafting_, going_on_;  // who wants most comes first
};

}  // namespace tandem
