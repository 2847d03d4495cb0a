// Gated DeltaNet, decode, closed form (DeltaForm::closed): the rows of a verify step from S as it stood
// before the step, by forward substitution. A row's sums run over the rows before it in order: its bits do
// not depend on how many rows follow.
#pragma once

#include "backend/cuda/delta_rows.cuh"

namespace tandem::cuda {

// Shared memory beyond Shared, in floats.
struct ClosedShared {
  int stride;    // of rows: odd, so that a column lies in different banks
  float* decay;  // [n, n + 1]: of tokens j .. t together; 1 for j = t + 1
  float* k_k;    // [n, n], j < t: decay of tokens j + 1 .. t times k_j . k_t
  float* k_q;    // [n, n], j <= t: likewise, k_j . q_t

  static constexpr size_t floats(int capacity) { return size_t(capacity) * size_t(capacity + 1) * 3; }
  __device__ __forceinline__ ClosedShared(int capacity, float* at)
      : stride(capacity + 1), decay(at), k_k(at + capacity * stride), k_q(at + 2 * capacity * stride) {}
};

template <int kVecs, int kStateRows>
__device__ __forceinline__ void run_closed(const StepArgs& a, const Place& p,
                                           const Shared<kVecs * 64, kStateRows>& sh,
                                           const StateRows<kVecs>& s, int n) {
  constexpr int kColumns = kVecs * 64, kGroups = delta_threads(kStateRows) / kLanes,
                kMost = kMaxDecodeRows / kLanes;
  const ClosedShared c(a.capacity, sh.end);
  const int lane = lane_of_row();
  for (int j = int(threadIdx.x); j <= n; j += delta_threads(kStateRows)) {
    float sum = 0;  // all terms have one sign
    if (j > 0) c.decay[(j - 1) * c.stride + j] = 1;
    for (int t = j; t < n; ++t) {
      sum += sh.scalars[t].w;
      c.decay[t * c.stride + j] = exp_(sum);
    }
  }
  __syncthreads();

  // Products of tokens: 16 lanes for each pair; the groups of a warp stay together.
  for (int t = 0; t < n; ++t) {
    const Part<kVecs> k = part_of<kVecs>(sh.k + t * kColumns), q = part_of<kVecs>(sh.q + t * kColumns);
    for (int first = warp_id() * (kWarp / kLanes); first <= t; first += kGroups) {
      const int j = first + lane_id() / kLanes;
      const Part<kVecs> other = part_of<kVecs>(sh.k + min(j, t) * kColumns);
      const float k_k = row_sum(dot(k, other)), k_q = row_sum(dot(q, other));
      if (lane == 0 && j <= t) {
        const float decay = c.decay[t * c.stride + j + 1];
        c.k_k[t * c.stride + j] = decay * k_k;
        c.k_q[t * c.stride + j] = decay * k_q;
      }
    }
  }
  __syncthreads();

  // With S: what is left of v goes to its place, y so far to that of delta. A row's lanes read what they
  // wrote.
  for (int t = 0; t < n; ++t) {
    const Part<kVecs> k = part_of<kVecs>(sh.k + t * kColumns), q = part_of<kVecs>(sh.q + t * kColumns);
    const float known[] = {dot(s.row[0], k), dot(s.row[1], k)}, out[] = {dot(s.row[0], q), dot(s.row[1], q)};
    const float sum = c.decay[t * c.stride] * quarter_sums(known, out);
    if (lane % 4 != 0) continue;
    const int at = t * kStateRows + first_of_thread() + has_second();
    if (has_b()) {
      sh.delta[at] = sum;
    } else {
      sh.v[at] -= sum;
    }
  }
  __syncwarp();
  // Lane l has tokens l and l + 16.
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    const int of_block = first_of_thread() + i;
    float left[kMost], y[kMost], delta[kMost];
#pragma unroll
    for (int m = 0; m < kMost; ++m) {
      const int t = m * kLanes + lane;
      left[m] = t < n ? sh.v[t * kStateRows + of_block] : 0.0f;
      y[m] = t < n ? sh.delta[t * kStateRows + of_block] : 0.0f;
      delta[m] = 0;
    }
#pragma unroll
    for (int of_j = 0; of_j < kMost; ++of_j) {
      for (int u = 0; u < kLanes; ++u) {
        const int j = of_j * kLanes + u;
        if (j >= n) break;
        if (lane == u) delta[of_j] = sh.scalars[j].y * left[of_j];
        const float d = __shfl_sync(kAllLanes, delta[of_j], (lane_id() & kLanes) + u);
#pragma unroll
        for (int m = of_j; m < kMost; ++m) {
          const int t = m * kLanes + lane;
          if (t >= n || t < j) continue;
          y[m] = fmaf(c.k_q[t * c.stride + j], d, y[m]);
          if (t > j) left[m] = fmaf(-c.k_k[t * c.stride + j], d, left[m]);
        }
      }
    }
    if (p.first + of_block >= a.shape.d_v) continue;
    const int column = p.h * a.shape.d_v + p.first + of_block;
#pragma unroll
    for (int m = 0; m < kMost; ++m) {
      const int t = m * kLanes + lane;
      if (t >= n) break;
      a.y.row(p.seq.first_row + t)[column] = y[m];
      a.state.tape_delta[tape_row(a.state, p.seq, 1 - p.seq.tape, t) * value_dim(a.shape) + column] =
          delta[m];
    }
  }
}

}  // namespace tandem::cuda
