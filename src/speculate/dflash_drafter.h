// Drafts by a DFlash block-diffusion network: all tokens of a draft in one pass, from hidden states of the
// target. Each slot's token by itself (DFlash), or by the candidate selector, which sees the token before it
// (DFlash 2).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/dflash_network.h"
#include "speculate/candidate_selector.h"
#include "speculate/draft_choice.h"
#include "speculate/drafter.h"

namespace tandem {

struct DraftLimits {
  int max_sequences = 1;
  int max_positions = 0;  // of all sequences together
};

class DflashDrafter final : public Drafter {
 public:
  // Takes the network; taps the target's layers. Errors: memory.
  static Result<std::unique_ptr<DflashDrafter>> create(std::unique_ptr<DflashNetwork> network,
                                                       Decoder& target, const DraftLimits& limits);

  std::string_view name() const override { return "dflash"; }
  DraftCost cost() const override { return DraftCost::block; }
  int max_draft() const override;
  bool makes_trees() const override { return true; }
  Status begin(int slot, const DraftedSequence& sequence) override;
  void end(int slot) override { sequences_[size_t(slot)].state.reset(); }
  void observe(std::span<const Observation> steps) override;
  void propose(std::span<const DraftRequest> requests) override;

 private:
  DflashDrafter(std::unique_ptr<DflashNetwork> network, Decoder& target, StatePool pool,
                const DraftLimits& limits);
  // Target states are fed to the network when a draft wants them, many at a time: a round without a draft
  // then costs a copy.
  static constexpr int kMaxWaiting = 64;
  struct Sequence {
    std::optional<SequenceState> state;  // the network's cache
    int base = 0;                        // the position that is its first
    int n_waiting = 0;                   // rows of the positions behind it
  };
  MutView waiting(int slot, int first, int n) const {
    return waiting_.row_range(slot * kMaxWaiting + first, n);
  }
  void reserve(int n_sequences);
  void feed(std::span<const int> slots);
  void feed_rows(int slot, View features);
  void draft_blocks(std::span<const DraftRequest> requests);
  // What all that draft want of their rows.
  RowChoice wanted_choice() const;
  // best_ of row i of those that are through the head: the k best tokens, as DraftChoice::candidates.
  void find_best(size_t i, int slot, size_t k);
  void collect_candidates(std::span<const float> logits);
  void push_list(size_t n, size_t top_k);
  void finish_tree(const DraftRequest& r);
  bool ends_block(size_t i) const;  // rows_[i] is the last of its draft
  // Tokens of rows_[first .. first + n), which are through the head: without a selector, and with one of
  // chains and of trees.
  void choose_each(size_t first, size_t n);
  void choose_by_selector(size_t first, size_t n);
  void collect_by_selector(size_t first, size_t n);
  int slot_of(size_t i) const;  // of rows_[i] in its draft

  std::unique_ptr<DflashNetwork> network_;
  Decoder* target_;
  StatePool pool_;
  DraftChoice choice_;
  std::vector<Sequence> sequences_;
  DeviceBuffer features_memory_;
  MutView waiting_;   // [slots x kMaxWaiting, features]
  MutView gathered_;  // [max_rows, features]
  std::vector<int> slots_;
  std::vector<int32_t> rows_;
  std::vector<SeqStep> seqs_;
  std::vector<TokenId> ids_;
  std::vector<Candidate> selection_;
  int tree_top_k_ = 0, tree_lists_ = 1;  // of the tree being made, see SlotCandidates
  std::vector<TokenId> candidate_ids_;   // [slots, lists, top_k]
  std::vector<float> candidate_log_probs_;
  std::vector<uint8_t> next_lists_;
  std::vector<TokenId> slot_before_;                    // candidates of the slot before, or the anchor
  std::vector<const DraftRequest*> drafting_, owners_;  // of blocks, of rows

  // Rows of one draft that the selector walks along.
  struct Walk {
    size_t row = 0, candidates = 0;  // its first among the rows and the candidates of the call
    int n_slots = 0, k = 0;
  };
  SelectorWalk walk_;
  // A row of a tree.
  struct TreeRow {
    size_t row = 0, candidates = 0, predecessors = 0;  // its first among those of the call
    int k = 0, n_before = 0;
  };
  std::vector<Walk> walks_;
  std::vector<TreeRow> tree_rows_;
  std::vector<Candidate> best_;
  std::vector<TokenId> candidates_, predecessors_;
  std::vector<float> unary_, scores_;
};

}  // namespace tandem
