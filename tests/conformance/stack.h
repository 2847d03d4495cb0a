// A random two-layer hybrid (Gated DeltaNet + experts, attention + MLP, head) run straight on a backend's
// operations, the way a model runs them. Bit-exact tests drive it: every operation of the contract takes
// part.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "conformance/harness.h"

namespace tandem::conformance {

struct StackShape {
  int hidden = 0, d_ff = 0, vocab = 0;
  WeightFormat format;  // of every matrix
  AttentionShape attention;
  bool gated = true, head_norms = true;
  DeltaShape delta;
  int n_experts = 0, top_k = 0, d_expert = 0, d_shared = 0;  // d_shared 0: no shared expert
  bool normalise = true;
  int tape_rows = kMaxDecodeRows;

  std::string text() const;
};
StackShape random_shape(Rng& rng);

// Limits of a stack's memory.
constexpr int kSlots = 9, kPages = 80, kMaxRows = 512;

// A sequence of a stack: where its state lies, and how far it is.
struct Sequence {
  int slot = 0;
  std::vector<int32_t> pages;
  int length = 0;
  int tape = 0;
  std::vector<uint8_t> pending;
};

// Rows of one sequence in a step.
struct Part {
  Sequence* sequence;
  Rows x;
  std::vector<int8_t> parents = {};  // of a tree
};

class Stack {
 public:
  // The same shape and seed make the same weights on any backend.
  Stack(Backend& backend, const StackShape& shape, uint64_t seed);

  const StackShape& shape() const { return shape_; }
  // From now on blocks are spelled out as the primitives that define them.
  void compose_blocks() { composed_ = true; }

  // A sequence with room for max_positions, on a slot and on pages that hold garbage.
  Sequence new_sequence(int max_positions);

  // Runs one step. Rows of the result, in order of the parts: residual stream, final norm, logits (decode
  // only).
  Rows prefill(const std::vector<Part>& parts);
  Rows decode(const std::vector<Part>& parts);
  Rows decode(Sequence& sequence, const Rows& x) { return decode({{&sequence, x}}); }
  // Keeps the first n rows of the last decode step.
  void commit(Sequence& sequence, int n);
  // Keeps the given rows of the last decode step on the tape.
  void commit(Sequence& sequence, const std::vector<uint8_t>& rows);
  // Keeps a path of a tree, the last decode step of `part`: its keys and values as well.
  void commit_path(const Part& part, const std::vector<int>& rows);
  // Folds what is pending.
  void flush(Sequence& sequence);

  // Copies state and pages of `from` to the places of `to`, byte by byte.
  void copy(const Sequence& from, Sequence& to);
  // Calls of the allocator while the last step's operations ran.
  int allocations_of_last_step() const { return allocations_; }

  // S and conv window of a slot as they lie in memory, and all bytes of the sequence's KV pages.
  Rows recurrent_state(const Sequence& sequence) const;
  std::vector<std::byte> kv(const Sequence& sequence) const;

 private:
  struct Matrix {
    std::vector<std::unique_ptr<RandomMatrix>> parts;
    std::unique_ptr<Weight> weight;
  };
  const Weight* weight(int n, int k, int n_slices = 1, int n_experts = 1);
  std::vector<SeqStep> seq_steps(const std::vector<Part>& parts) const;
  Rows run(Path path, const std::vector<Part>& parts);
  DeltaState delta_state() const;
  // The layers of a step on x and angles, by blocks or by primitives; the head leaves hidden and logits.
  void run_blocks(const Step& step, MutView x, MutView angles);
  void run_primitives(const Step& step, MutView x, MutView angles);
  Attention attention_args(int rows) const;
  void run_delta_step(const Step& step);
  MutView inner(int rows, int cols) const { return scratch_.inner.row_range(0, rows).col_range(0, cols); }
  KvLayer cache() const { return {pages_.data(), backend_->kv_page_bytes(shape_.attention)}; }
  int gate_cols() const { return shape_.gated ? shape_.attention.q_dim() : 0; }

  Backend* backend_;
  StackShape shape_;
  bool composed_ = false;
  int allocations_ = 0;
  Rng rng_;
  std::vector<Matrix> matrices_;
  const Weight *delta_in_, *delta_out_, *attention_in_, *attention_out_, *gate_up_, *down_, *head_;
  MoeWeights moe_;
  std::vector<OnDevice> vectors_;  // norm gains, gates, convolution
  View gain_, d_v_gain_, d_head_gain_, conv_weight_, a_log_, dt_bias_, frequencies_;

  Memory s_, conv_, tape_g_, tape_k_, tape_delta_, tape_conv_, pages_;
  std::vector<DeviceBuffer> scratch_memory_;
  Scratch scratch_;
  MutView x_, angles_, logits_, hidden_;
  std::vector<int> free_slots_;
  std::vector<int32_t> free_pages_;
};

}  // namespace tandem::conformance
