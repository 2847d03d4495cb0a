// What attention reads: rotary embedding, head norms, the KV cache.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/kv_pages.cuh"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

struct AnglesArgs {
  StepTable table;
  Rows frequencies;
  MutRows angles;
  int n;
  float m;
};
__global__ void rope_angles_kernel(const __grid_constant__ AnglesArgs a) {
  let_next_start();
  wait_for_inputs();
  const int r = int(blockIdx.x);
  const SeqEntry& seq = a.table.seqs[a.table.row_seq[r]];
  const float position = float(position_of(seq, r - seq.first_row));
  float* out = a.angles.row(r);
  for (int i = int(threadIdx.x); i < a.n; i += int(blockDim.x)) {
    const float angle = position * a.frequencies.data[i];  // rounded to fp32, as the model was trained
    out[i] = cosf(angle) * a.m;
    out[a.n + i] = sinf(angle) * a.m;
  }
}

struct PrepArgs {
  StepTable table;
  MutRows projection;
  Rows q_norm, k_norm, angles;  // norms: data may be null
  KvPages cache;
  int n_heads, n_kv_heads, d, rotary_dims;
  int first_k;  // column of the first key
  float eps;
};
// One warp per head: first those of q, then of k, then of v. What a lane reads is on its way at once: places
// and gains before the inputs are there, then values and angles.
__global__ void prep_kernel(const __grid_constant__ PrepArgs a) {
  constexpr int kEach = kLargestHead / kWarp;  // values of a lane, a warp apart
  const int r = int(blockIdx.y), d = a.d, lane = lane_id();
  int h = int(blockIdx.x) * kWarps + warp_id();
  const bool is_q = h < a.n_heads, there = h < a.n_heads + 2 * a.n_kv_heads;
  if (!is_q) h -= a.n_heads;
  const bool is_v = !is_q && h >= a.n_kv_heads;
  const SeqEntry& seq = a.table.seqs[a.table.row_seq[r]];
  const int place = seq.start + r - seq.first_row, key = place % kPageTokens;
  const int page = a.table.pages[seq.first_page + place / kPageTokens];
  const float* gains = is_v ? nullptr : is_q ? a.q_norm.data : a.k_norm.data;
  float gain[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kWarp + lane;
    gain[i] = gains != nullptr && at < d ? gains[at] : 1.0f;
  }
  wait_for_inputs();
  // Only now: attend_rows_kernel reads what came before this kernel without waiting for it.
  let_next_start();
  if (!there) return;
  float* x = a.projection.row(r) + (is_q ? 0 : a.first_k) + h * d;
  const float* angles = a.angles.row(r);
  const int half = a.rotary_dims / 2;
  float value[kEach], cosine[kEach / 2], sine[kEach / 2];
#pragma unroll
  for (int i = 0; i < kEach; ++i) value[i] = i * kWarp + lane < d ? x[i * kWarp + lane] : 0.0f;
#pragma unroll
  for (int i = 0; i < kEach / 2; ++i) {
    const int at = i * kWarp + lane;
    cosine[i] = !is_v && at < half ? angles[at] : 0.0f;
    sine[i] = !is_v && at < half ? angles[at + half] : 0.0f;
  }
  if (is_v) {
    uint16_t* out = a.cache.head(page, h - a.n_kv_heads);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kWarp + lane;
      if (at < d) out[value_index(a.cache.dims, key, at)] = bf16_bits(value[i]);
    }
    return;
  }
  if (gains != nullptr) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum = fmaf(value[i], value[i], sum);
    const float inv = inverse_root(warp_sum(sum) / float(d) + a.eps);
#pragma unroll
    for (int i = 0; i < kEach; ++i) value[i] = value[i] * inv * gain[i];
  }
  auto* head = reinterpret_cast<float*>(shared_memory()) + warp_id() * d;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i * kWarp + lane < d) head[i * kWarp + lane] = value[i];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kEach / 2; ++i) {
    const int at = i * kWarp + lane;
    if (at >= half) break;
    const float low = head[at], high = head[at + half];
    head[at] = low * cosine[i] - high * sine[i];
    head[at + half] = high * cosine[i] + low * sine[i];
  }
  __syncwarp();
  if (is_q) {
    for (int i = lane; i < d; i += kWarp) x[i] = head[i];
  } else {
    uint16_t* out = a.cache.head(page, h);
    for (int i = lane; i < a.cache.dims; i += kWarp) {
      out[key_index(a.cache.dims, key, i)] = i < d ? bf16_bits(head[i]) : uint16_t(0);
    }
  }
}

struct MoveArgs {
  KvPages cache;
  int32_t pages[2];  // that hold the rows of a step
  int32_t start;     // of the step, in the first of them
  int32_t n;
  uint8_t rows[kMaxDecodeRows];
};
// One block per KV head. A thread moves the same dimensions of all rows, in order: a row that goes on top of
// another one comes after that has gone.
__global__ void move_kernel(const __grid_constant__ MoveArgs a) {
  let_next_start();
  wait_for_inputs();
  constexpr int kAtOnce = 8;
  const int dims = a.cache.dims, head = int(blockIdx.x);
  for (int dim = int(threadIdx.x); dim < dims; dim += int(blockDim.x)) {
    for (int first = 0; first < a.n; first += kAtOnce) {
      uint16_t k[kAtOnce], v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= a.n) break;
        const int from = a.start + a.rows[first + i];
        const uint16_t* source = a.cache.head(a.pages[from / kPageTokens], head);
        k[i] = source[key_index(dims, from % kPageTokens, dim)];
        v[i] = source[value_index(dims, from % kPageTokens, dim)];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= a.n) break;
        const int to = a.start + first + i;
        uint16_t* target = a.cache.head(a.pages[to / kPageTokens], head);
        target[key_index(dims, to % kPageTokens, dim)] = k[i];
        target[value_index(dims, to % kPageTokens, dim)] = v[i];
      }
    }
  }
}

}  // namespace

size_t CudaBackend::kv_page_bytes(const AttentionShape& shape) const {
  return size_t(2) * kPageTokens * size_t(shape.n_kv_heads) * size_t(padded_head(shape.d_head)) *
         sizeof(uint16_t);
}

void CudaBackend::do_rope_angles(const Step& step, View frequencies, float m, MutView angles) {
  card_->launch(rope_angles_kernel, {unsigned(step.n_rows)}, kWarp, 0,
                AnglesArgs{table(step), rows_of(frequencies), rows_of(angles), frequencies.cols, m});
}

void CudaBackend::do_attention_prep(const Step& step, const AttentionPrep& a) {
  const AttentionShape& shape = a.shape;
  TD_CHECK(shape.d_head <= kLargestHead, "attention heads of %d dimensions", shape.d_head);
  const int n_warps = shape.n_heads + 2 * shape.n_kv_heads;
  card_->launch(prep_kernel, {unsigned((n_warps + kWarps - 1) / kWarps), unsigned(step.n_rows)}, kThreads,
                size_t(kWarps) * size_t(shape.d_head) * sizeof(float),
                PrepArgs{.table = table(step),
                         .projection = rows_of(a.projection),
                         .q_norm = rows_of(a.q_norm),
                         .k_norm = rows_of(a.k_norm),
                         .angles = rows_of(a.angles),
                         .cache = pages_of(shape, a.cache),
                         .n_heads = shape.n_heads,
                         .n_kv_heads = shape.n_kv_heads,
                         .d = shape.d_head,
                         .rotary_dims = shape.rotary_dims,
                         .first_k = shape.q_dim() + a.gate_cols,
                         .eps = a.eps});
}

void CudaBackend::do_move_kv(const SeqStep& seq, const AttentionShape& shape, const KvLayer& cache,
                             std::span<const uint8_t> rows) {
  MoveArgs args{.cache = pages_of(shape, cache),
                .pages = {},
                .start = seq.start % kPageTokens,
                .n = int(rows.size()),
                .rows = {}};
  const size_t first_page = size_t(seq.start / kPageTokens);
  std::copy_n(seq.pages.begin() + int64_t(first_page), std::min<size_t>(2, seq.pages.size() - first_page),
              args.pages);
  std::copy(rows.begin(), rows.end(), args.rows);
  card_->launch(move_kernel, {unsigned(shape.n_kv_heads)}, kThreads, 0, args);
}

}  // namespace tandem::cuda
