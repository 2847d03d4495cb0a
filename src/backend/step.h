// What one step of a model works on: rows of one or more sequences, and the state each sequence carries.
#pragma once

#include <cstdint>
#include <span>

#include "backend/memory.h"

namespace tandem {

constexpr int kPageTokens = 64;     // positions of a KV page
constexpr int kChunkTokens = 64;    // prefill and delta-rule chunks end at absolute multiples of this
constexpr int kMaxDecodeRows = 32;  // rows of one sequence in one decode or verify step; capacity of the tape
constexpr int kConvTaps = 4;        // of the causal convolution in a Gated DeltaNet layer

// Every prompt token takes the prefill path, every generated token the decode path, however many rows share
// the step.
enum class Path : uint8_t { decode, prefill };

// The rows [first_row, first_row + n_rows) of a step: consecutive tokens of one sequence from position
// `start` on, or (decode only) a tree of drafts whose root has position `start`.
struct SeqStep {
  int first_row = 0, n_rows = 0;
  int start = 0;
  // A tree: for each row the row of this sequence that it follows, -1 for row 0 and no other; rows in
  // depth-first order, so that a row follows the one before it or an ancestor of that. Empty: a chain, every
  // row follows the one before it. A row sees its prefix and its ancestors alone and has the bits of the same
  // path decoded as a chain. Keys and values lie by row, not by position: row i's at start + i
  // (Backend::move_kv).
  std::span<const int8_t> parents = {};
  // Recurrent state: its slot; which of its two tapes (0, 1) holds rows that are committed but not folded
  // into the state yet, and the indices of those rows in order. A decode step folds them, then writes its own
  // rows to the other tape. A prefill step needs `pending` empty (Backend::fold_states first) and advances
  // the state in place. A step whose start is 0, on either path, starts from zero state whatever the slot
  // holds, and has nothing pending.
  int slot = 0;
  int tape = 0;
  std::span<const uint8_t> pending = {};
  // Page ids that hold positions 0 .. start + n_rows - 1, kPageTokens each.
  std::span<const int32_t> pages = {};

  int parent(int row) const { return parents.empty() ? row - 1 : parents[size_t(row)]; }
  // Rows from the root to `row`, without it: its position is start + depth(row).
  int depth(int row) const {
    if (parents.empty()) return row;
    int n = 0;
    for (int above = parents[size_t(row)]; above >= 0; above = parents[size_t(above)]) ++n;
    return n;
  }
};

struct Step {
  Path path = Path::decode;
  int n_rows = 0;
  std::span<const SeqStep> seqs;
};

// Shapes of a Gated DeltaNet layer. Value head h uses key head h / (n_v_heads / n_k_heads).
struct DeltaShape {
  int n_k_heads = 0, n_v_heads = 0, d_k = 0, d_v = 0;
  int key_dim() const { return n_k_heads * d_k; }
  int value_dim() const { return n_v_heads * d_v; }
  int conv_dim() const { return 2 * key_dim() + value_dim(); }
  int projection_dim() const { return conv_dim() + value_dim() + 2 * n_v_heads; }  // [q k v | z | b | a]
};

// One layer's recurrent slots; all fp32. Tape rows of a slot: index (slot * 2 + tape) * tape_rows + row.
struct DeltaState {
  int tape_rows = kMaxDecodeRows;  // rows a tape holds: the most a decode step of one sequence may have
  float* s = nullptr;              // [n_slots, n_v_heads, d_v, d_k]
  float* conv = nullptr;           // [n_slots, kConvTaps - 1, conv_dim], pre-convolution inputs, oldest first
  float* tape_g = nullptr;         // [tape rows, n_v_heads]         decay
  float* tape_k = nullptr;         // [tape rows, key_dim]           normalised key
  float* tape_delta = nullptr;     // [tape rows, value_dim]         beta * (v - S k)
  float* tape_conv = nullptr;      // [tape rows, conv_dim]          convolution input
};

struct AttentionShape {
  int n_heads = 0, n_kv_heads = 0, d_head = 0, rotary_dims = 0;
  int q_dim() const { return n_heads * d_head; }
  int kv_dim() const { return n_kv_heads * d_head; }
};

// One layer's KV pages: page p lies at pages + p * page_bytes. What is inside a page is the backend's own
// affair; a page may be copied whole.
struct KvLayer {
  std::byte* pages = nullptr;
  size_t page_bytes = 0;
};

}  // namespace tandem
