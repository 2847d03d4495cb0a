// The kernels of the cpu backend other than matrix products: one table of functions per instruction set.
//
// A kernel works on plain pointers, on one thread, on what one work item of an operation needs; the files
// named after the operations (rowwise.cc, attention.cc, delta.cc, moe.cc) cut steps into items. All kernels
// are written once, on Vec (vec_*.h), and compiled per instruction set in kernels_<isa>.cc. Sums have one
// order, given by the shapes alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/isa.h"
#include "backend/step.h"

namespace tandem::cpu {

inline constexpr int kMaxConvChannels = 256;  // of one tile of the convolution
inline constexpr int kMaxKeyDim = 256;        // d_k of the delta rule; multiples of 8
inline constexpr int kSplitPages = 16;  // attention sums splits of this many pages apart, then merges them
inline constexpr int kMaxTileQueries = 64;  // of one attention tile

inline constexpr int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// How a KV page holds one KV head, in bf16: keys as [d_head / 2][kPageTokens] pairs of dimensions (2 i, 2 i +
// 1), so that a loop over keys is a loop over lanes; then values [kPageTokens][d_head, padded to 16].
struct PageLayout {
  int d_head = 0;
  size_t value_offset() const { return size_t(d_head / 2) * kPageTokens * sizeof(uint32_t); }
  int value_stride() const { return round_up(d_head, 16); }
  size_t head_bytes() const {
    return value_offset() + size_t(kPageTokens) * size_t(value_stride()) * sizeof(uint16_t);
  }
};

// Queries that read the same KV head of the same sequence, over splits [first_split, first_split + n_splits).
// Query i sees positions first_key[i] .. n_keys[i] - 1; nothing else is read into its result. In a tree the
// keys from position `start` on are those of the rows that the query's row follows, and its own.
struct AttentionTile {
  int d_head = 0, n_queries = 0;  // n_queries <= kMaxTileQueries
  const float* q[kMaxTileQueries];
  const float* gate[kMaxTileQueries];  // before the sigmoid, or null
  float* out[kMaxTileQueries];         // ignored if partial is set
  int n_keys[kMaxTileQueries];
  int first_key[kMaxTileQueries];
  const int8_t* parents = nullptr;  // SeqStep::parents, or null: a chain
  int start = 0;                    // of the step; in a tree row r lies at start + r
  int8_t row[kMaxTileQueries];      // in a tree: the query's row
  float scale = 0;
  const std::byte* head_in_pages = nullptr;  // this KV head in page 0
  size_t page_bytes = 0;
  const int32_t* pages = nullptr;
  int first_split = 0, n_splits = 0;
  float* work = nullptr;  // attention_work_floats(d_head)
  float* partial =
      nullptr;  // null, or [n_queries] partials partial_stride floats apart: the state before division
  int64_t partial_stride = 0;
};
// A partial is value_stride sums, then the highest score, then the sum of weights.
inline int partial_floats(int d_head) { return round_up(d_head, 16) + 16; }
inline int attention_work_floats(int d_head) { return 2 * kMaxTileQueries * partial_floats(d_head); }

// Adds up `n` partials (of splits in ascending order, `stride` floats apart) of one query and finishes it.
struct AttentionMerge {
  int d_head = 0, n = 0;
  float* partials = nullptr;  // the first becomes the running state
  int64_t stride = 0;
  const float* gate = nullptr;
  float* out = nullptr;
};

// Channels [0, n_channels) of the causal convolution, all pointers already at the first of them. With n_rows
// 0 it only moves the window.
struct ConvTile {
  int n_channels = 0, n_rows = 0;
  const int8_t* parents = nullptr;  // SeqStep::parents, or null: a chain
  const float* weight = nullptr;    // [n_channels, kConvTaps]
  int64_t weight_stride = kConvTaps;
  const float* window[kConvTaps - 1] = {};  // inputs before the first row, oldest first; null: zeros
  const float* m = nullptr;                 // [n_rows], m_stride apart
  int64_t m_stride = 0;
  float* out = nullptr;  // [n_rows]
  int64_t out_stride = 0;
  float* tape = nullptr;  // [n_rows] or null: gets m
  int64_t tape_stride = 0;
  float* window_before = nullptr;  // null, or [3]: gets the window as it was before the rows
  float* window_after = nullptr;   // null, or [3]: gets the window after the rows
  int64_t window_stride = 0;       // of both
};

// One row of the convolution of a block (backend.h: BlockConv).
struct BlockConvRow {
  int n = 0, group = 0;  // channels; channels that share a dynamic coefficient
  int n_taps = 0;        // that lie in the block: tap t reads x - t x_stride
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* base = nullptr;
  int64_t base_stride = 0;
  const float* dynamic = nullptr;   // [n_taps, n / group]
  const float* residual = nullptr;  // or null; may be y
  float* y = nullptr;
};

// Rows [0, n_state_rows) of the state of one value head, and the tokens to run them through.
struct DeltaTile {
  int d_k = 0, n_state_rows = 0;
  float* s = nullptr;  // [n_state_rows, d_k]
  bool fresh = false;  // start from zeros, whatever s holds
  int n_pending = 0;   // tokens to fold into s, in order
  float fold_g[kMaxDecodeRows];
  const float* fold_k[kMaxDecodeRows];
  const float* fold_delta[kMaxDecodeRows];
  int n_rows = 0;                   // tokens to run without changing s; 0: fold only
  const int8_t* parents = nullptr;  // SeqStep::parents, or null: a chain
  float* kept = nullptr;            // with parents: kept_state_floats(d_k)
  float log_decay[kMaxDecodeRows];
  float beta[kMaxDecodeRows];
  const float* q[kMaxDecodeRows];  // not normalised yet
  const float* k[kMaxDecodeRows];
  const float* v[kMaxDecodeRows];
  float* y[kMaxDecodeRows];
  float* delta[kMaxDecodeRows];
  float* tape_k[kMaxDecodeRows];  // null where another tile records it; likewise tape_g
  float* tape_g[kMaxDecodeRows];
};

inline constexpr int kStateRows = 16;  // state rows worked on at a time: one per lane of a vector of sums
// Those rows once for each depth of a tree.
inline size_t kept_state_floats(int d_k) {
  return size_t(kMaxDecodeRows) * kStateRows * size_t(round_up(d_k, 16));
}

// Tokens of a prefill step for columns (rows of S) [0, n_state_rows) of one value head, chunk by chunk.
struct DeltaChunks {
  int d_k = 0, n_state_rows = 0;
  float* s = nullptr;  // [n_state_rows, d_k], advanced in place
  bool fresh = false;
  int start = 0, n_rows = 0;  // position of the first token
  const float* q = nullptr;   // [n_rows] each, row_stride apart
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t row_stride = 0;
  const float* log_decay = nullptr;  // [n_rows]
  int64_t log_decay_stride = 0;
  const float* beta = nullptr;  // [n_rows]
  int64_t beta_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  float* work = nullptr;  // delta_work_floats(d_k, n_state_rows)

  // Of a verify step in closed form, at most kMaxDecodeRows tokens: what the tape gets, each [n_rows].
  float* tape_delta = nullptr;
  int64_t tape_delta_stride = 0;
  float* tape_k = nullptr;  // null where another tile records it; likewise tape_g
  int64_t tape_k_stride = 0;
  float* tape_g = nullptr;
  int64_t tape_g_stride = 0;
};
inline size_t delta_work_floats(int d_k, int n_state_rows) {
  const size_t k = size_t(round_up(d_k, 32)), v = size_t(round_up(n_state_rows, 32)), c = kChunkTokens;
  return 2 * c * k + 2 * k * c + 2 * c * c + k * v + c * v + 16 * c;
}

struct Kernels {
  Isa isa;

  // y = x * rsqrt(mean(x^2) + eps) * gain; y may be x.
  void (*rms_norm)(const float* x, const float* gain, float eps, int n, float* y);
  // y = silu(gate) * up.
  void (*silu_mul)(const float* gate, const float* up, int n, float* y);
  // y = o * rsqrt(mean(o^2) + eps) * gain * silu(z); y may be o.
  void (*gated_norm)(const float* o, const float* z, const float* gain, float eps, int n, float* y);
  void (*block_conv)(const BlockConvRow& row);
  // Rotates pairs (x[i], x[i + n / 2]) by angles: n / 2 cosines, then n / 2 sines.
  void (*rotate)(float* x, const float* angles, int n);
  // Stores k and v [d_head] of the position `slot` of a page (head: this KV head in it).
  void (*store_kv)(const float* k, const float* v, int d_head, int slot, std::byte* head);
  void (*attention)(const AttentionTile& tile);
  void (*attention_merge)(const AttentionMerge& merge);
  void (*conv)(const ConvTile& tile);
  // beta = sigmoid(b); log_decay = -exp(a_log) * softplus(a + dt_bias).
  void (*delta_gates)(const float* b, const float* a, const float* a_log, const float* dt_bias, int n,
                      float* beta, float* log_decay);
  void (*delta_step)(const DeltaTile& tile);
  void (*delta_chunks)(const DeltaChunks& chunks);
  // The same tokens from the S that is stored, whose place stays as it is; records the tape.
  void (*delta_closed)(const DeltaChunks& tokens);
  // weights[i] = exp(logits[ids[i]] - highest) / sum, the sum over the chosen (n_all 0) or over all n_all
  // logits.
  void (*route_weights)(const float* logits, int n_all, const int32_t* ids, int n_chosen, float* weights);
  // residual[c] += tree over slices of (sum over i ascending of weights[i] * parts[i][c]), slices
  // slice_stride apart.
  void (*mix_experts)(const float* const* parts, const float* weights, int n_parts, int n_slices,
                      int64_t slice_stride, int n, float* residual);
  float (*sigmoid)(float x);
  // The first of the highest of n numbers; -1 where one of them is NaN or infinite.
  int (*highest)(const float* x, int n);
};

// The table of one instruction set; this machine must support it (isa.h).
const Kernels& kernels(Isa isa);

}  // namespace tandem::cpu
