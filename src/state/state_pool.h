// What sequences carry from step to step: KV pages of the attention layers, recurrent slots and tapes of the
// Gated DeltaNet layers. The pool owns the memory, made once; a SequenceState holds one slot and the pages it
// was given.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"

namespace tandem {

struct StateShape {
  int n_delta_layers = 0;
  DeltaShape delta;
  int n_attention_layers = 0;
  AttentionShape attention;
};

struct StateLimits {
  int max_sequences = 1;
  int max_positions = 0;  // of all sequences together, rounded up to pages per sequence
  int tape_rows = 1;      // most rows of a decode step of one sequence: 1 + the longest draft
  int extra_pages = 0;    // for a prefix tree, beyond what sequences need
  int checkpoints = 0;    // copies of one sequence's recurrent state, for a prefix tree
};

class SequenceState;

class StatePool {
 public:
  // Errors: the bytes wanted and available, before anything is allocated.
  static Result<StatePool> create(Backend& backend, const StateShape& shape, const StateLimits& limits);
  static size_t bytes(const Backend& backend, const StateShape& shape, const StateLimits& limits);

  const StateShape& shape() const { return shape_; }
  // Of this pool's memory alone (StepRun::state).
  uint64_t id() const { return id_; }
  int tape_rows() const { return limits_.tape_rows; }
  int free_pages() const { return int(free_pages_.size()); }
  int free_slots() const { return int(free_slots_.size()); }
  int total_pages() const { return n_pages_; }
  int n_checkpoints() const { return limits_.checkpoints; }

  // Pages are shared by count: sequences and a prefix tree hold them, and a page nobody holds is free. Only
  // full pages of prompts, which nobody writes any more, may have more than one holder.
  int holders(int32_t page) const { return holders_[size_t(page)]; }
  void hold(int32_t page);
  void drop(int32_t page);
  // Copies the recurrent state of a slot, whose tape must be empty, to a checkpoint, and back to any slot.
  void save_recurrent(int slot, int checkpoint);
  void load_recurrent(int checkpoint, int slot);
  static size_t checkpoint_bytes(const StateShape& shape);
  // Bytes of recurrent state one decode row makes a step read and write (all layers).
  size_t recurrent_bytes() const;
  // Bytes of keys and values of one position (all layers).
  size_t kv_bytes_per_position() const;

  DeltaState delta(int layer) const;  // layer counts Gated DeltaNet layers only
  KvLayer kv(int layer) const;        // layer counts attention layers only

 private:
  friend class SequenceState;
  int32_t take_page();
  void copy_recurrent(int slot, int checkpoint, bool save);
  StatePool(Backend& backend, const StateShape& shape, const StateLimits& limits)
      : backend_(&backend), shape_(shape), limits_(limits) {}

  Backend* backend_;
  uint64_t id_ = new_step_owner();
  StateShape shape_;
  StateLimits limits_;
  int n_pages_ = 0;
  size_t page_bytes_ = 0;
  DeviceBuffer recurrent_;
  DeviceBuffer pages_;
  DeviceBuffer checkpoints_;
  std::vector<int32_t> free_pages_;
  std::vector<int32_t> holders_;  // of each page
  std::vector<int> free_slots_;
};

// One sequence's place in a pool. Moves, never copies; gives slot and pages back when it dies. The pool must
// outlive it.
//
//   begin_prefill(n) -> run the step -> end_prefill()       prompt tokens
//   begin_verify(n)  -> run the step -> commit(n_keep)      generated tokens; plain decoding is
//   begin_verify(1), commit(1)
//   begin_verify(parents) -> run the step -> commit(rows)   a tree of drafts, of which a path is kept
class SequenceState {
 public:
  // Errors: no free slot.
  static Result<SequenceState> create(StatePool& pool);
  SequenceState(SequenceState&& other) noexcept;
  SequenceState& operator=(SequenceState&& other) noexcept;
  ~SequenceState();

  int length() const { return length_; }  // committed positions

  // An empty sequence begins with full pages that others hold too, and the recurrent state of a checkpoint
  // taken after them (ignored by models without).
  void begin_with(std::span<const int32_t> pages, int checkpoint);
  // Lets go of a full page for another one with the same content.
  void share_page(size_t index, int32_t page);

  // The next step feeds n prompt tokens. Folds what a tape still holds. Errors: no free page.
  Status begin_prefill(int n);
  void end_prefill();

  // The next step feeds n tokens (at most the pool's tape_rows), of which a prefix will be kept. Errors: no
  // free page.
  Status begin_verify(int n);
  // The next step feeds a tree of parents.size() tokens, as SeqStep::parents (copied). Errors: no free page.
  Status begin_verify(std::span<const int8_t> parents);
  // Keeps the first n_keep rows of the step: bit for bit what n_keep plain steps leave.
  void commit(int n_keep);
  // Keeps a path of the step's tree, from row 0 down (empty: nothing): what plain steps of its tokens leave.
  void commit(std::span<const int> rows);

  // Forgets positions from `length` on. Only for pools without recurrent layers (drafters' caches), whose
  // state is their pages.
  void truncate(int length);

  // Folds the tape into the recurrent state, so that the slot alone is the state (export, tests).
  void flush();

  // How the sequence stands in a step, after begin_*. Spans live as long as this object is not moved or
  // stepped.
  SeqStep rows(int first_row) const;

  int slot() const { return slot_; }
  std::span<const int32_t> pages() const { return pages_; }

 private:
  explicit SequenceState(StatePool& pool) : pool_(&pool) {}
  void swap(SequenceState& other);
  Status reserve_pages(int positions);
  void release();

  StatePool* pool_ = nullptr;
  int slot_ = -1;
  int length_ = 0;
  int step_rows_ = 0;  // rows of the step begun, 0 between steps
  int n_parents_ = 0;  // step_rows_ if they are a tree, else 0
  std::array<int8_t, kMaxDecodeRows> parents_{};
  int tape_ = 0;
  int n_pending_ = 0;
  std::array<uint8_t, kMaxDecodeRows> pending_{};
  std::vector<int32_t> pages_;
};

}  // namespace tandem
