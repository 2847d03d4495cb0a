// Gated DeltaNet on a card: rows of S in registers, and the tokens and tape rows they meet in shared memory.
//
// S [d_v, d_k] of a value head stays in registers while its rows are run: 8 lanes hold a row of S, lane l the
// columns 32 i + 4 l .. + 3. Rows of S do not meet, so a block takes some of them and needs all of k and q.
// A token's arithmetic, the same wherever it is run:
//   s <- g s;  p = s . k;  o = s . q;  delta = beta (v - p);  s <- fma(delta, k, s);  y = fma(k . q, delta,
//   o)
// Both sums over s take one round of exchanges that way. Sums: a lane's columns 32 i + c of each c ascending,
// then its four c, then the lanes. Columns beyond d_k are zeros in S, k and q.
#pragma once

#include "backend/cuda/delta.cuh"

namespace tandem::cuda {

constexpr int kLanes = 8;          // of a row of S
constexpr int kFoldRows = 8;       // tape rows in shared memory at a time
constexpr float kNormEps = 1e-6f;  // added to the sum of squares of a key or query

struct StepArgs {
  StepTable table;
  DeltaShape shape;
  DeltaState state;
  Rows qkv, log_decay, beta;
  MutRows y;
  int capacity;        // tokens in shared memory at a time
  bool runs;           // else the step's rows are left alone: a fold
  bool decode;         // else S advances with the rows, and there is no tape
  bool whole_vectors;  // q and k may be read as float4
};

// Shared memory of a block, in floats. kColumns: d_k padded.
template <int kColumns, int kStateRows>
struct Shared {
  float *k, *q;                      // [capacity, kColumns], normalised
  float *qk, *g, *beta, *log_decay;  // [capacity]
  float *v, *delta;                  // [capacity, kStateRows]
  float* fold_k;                     // [kFoldRows, kColumns]
  float* fold_delta;                 // [kFoldRows, kStateRows]
  float* fold_g;                     // [kFoldRows]
  unsigned* above;  // [capacity]: of a tree, a bit for each row on the path to this one, without it
  float* end;

  static constexpr size_t floats(int capacity) {
    return size_t(capacity) * (2 * kColumns + 5 + 2 * kStateRows) +
           size_t(kFoldRows) * (kColumns + kStateRows + 1);
  }
  __device__ __forceinline__ explicit Shared(int capacity) {
    auto* at = reinterpret_cast<float*>(shared_memory());
    const auto take = [&](int n) {
      float* p = at;
      at += n;
      return p;
    };
    k = take(capacity * kColumns);
    q = take(capacity * kColumns);
    fold_k = take(kFoldRows * kColumns);
    v = take(capacity * kStateRows);
    delta = take(capacity * kStateRows);
    fold_delta = take(kFoldRows * kStateRows);
    qk = take(capacity);
    g = take(capacity);
    beta = take(capacity);
    log_decay = take(capacity);
    fold_g = take(kFoldRows);
    above = reinterpret_cast<unsigned*>(take(capacity));
    end = at;
  }
};

// A lane's part of a row of S.
template <int kVecs>
struct Part {
  float4 v[kVecs];
};
template <int kVecs>
__device__ __forceinline__ Part<kVecs> part_of(const float* row) {  // of shared memory
  Part<kVecs> x;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    x.v[i] = reinterpret_cast<const float4*>(row)[i * kLanes + int(threadIdx.x) % kLanes];
  }
  return x;
}
template <int kVecs, bool kWhole>
__device__ __forceinline__ Part<kVecs> load_state(const float* row, int d_k, bool exists) {
  Part<kVecs> x;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int column = i * 32 + int(threadIdx.x) % kLanes * 4;
    x.v[i] = make_float4(0, 0, 0, 0);
    if (!exists) continue;
    if constexpr (kWhole) {
      x.v[i] = *reinterpret_cast<const float4*>(row + column);
    } else {
      if (column < d_k) x.v[i].x = row[column];
      if (column + 1 < d_k) x.v[i].y = row[column + 1];
      if (column + 2 < d_k) x.v[i].z = row[column + 2];
      if (column + 3 < d_k) x.v[i].w = row[column + 3];
    }
  }
  return x;
}
template <int kVecs, bool kWhole>
__device__ __forceinline__ void store_state(const Part<kVecs>& x, float* row, int d_k) {
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int column = i * 32 + int(threadIdx.x) % kLanes * 4;
    if constexpr (kWhole) {
      *reinterpret_cast<float4*>(row + column) = x.v[i];
    } else {
      if (column < d_k) row[column] = x.v[i].x;
      if (column + 1 < d_k) row[column + 1] = x.v[i].y;
      if (column + 2 < d_k) row[column + 2] = x.v[i].z;
      if (column + 3 < d_k) row[column + 3] = x.v[i].w;
    }
  }
}

// The two halves of a token's update of S: what a step applies is what a fold replays.
template <int kVecs>
__device__ __forceinline__ void decay(Part<kVecs>& s, float g) {
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    s.v[i] = make_float4(g * s.v[i].x, g * s.v[i].y, g * s.v[i].z, g * s.v[i].w);
  }
}
template <int kVecs>
__device__ __forceinline__ void add_outer(Part<kVecs>& s, float delta, const Part<kVecs>& k) {
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    s.v[i] = make_float4(fmaf(delta, k.v[i].x, s.v[i].x), fmaf(delta, k.v[i].y, s.v[i].y),
                         fmaf(delta, k.v[i].z, s.v[i].z), fmaf(delta, k.v[i].w, s.v[i].w));
  }
}
template <int kVecs>
__device__ __forceinline__ float dot(const Part<kVecs>& s, const Part<kVecs>& x) {  // a lane's share
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    sum = make_float4(fmaf(s.v[i].x, x.v[i].x, sum.x), fmaf(s.v[i].y, x.v[i].y, sum.y),
                      fmaf(s.v[i].z, x.v[i].z, sum.z), fmaf(s.v[i].w, x.v[i].w, sum.w));
  }
  return (sum.x + sum.y) + (sum.z + sum.w);
}
// Over the lanes of a row of S; all of them get it.
__device__ __forceinline__ float group_sum(float v) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) v += __shfl_xor_sync(kAllLanes, v, distance);
  return v;
}

// What a block works on.
struct Place {
  const SeqEntry& seq;
  int h, key_head, first;    // value head, its key head, first row of S
  bool owns_key, owns_head;  // this block records k, g
};
template <int kStateRows>
__device__ __forceinline__ Place place_of(const StepArgs& a) {
  const int h = int(blockIdx.y), group = a.shape.n_v_heads / a.shape.n_k_heads;
  return {.seq = a.table.seqs[blockIdx.z],
          .h = h,
          .key_head = h / group,
          .first = int(blockIdx.x) * kStateRows,
          .owns_key = blockIdx.x == 0 && h % group == 0,
          .owns_head = blockIdx.x == 0};
}

// kEach values from x: a lane's share of a vector of d_k.
template <int kEach>
__device__ __forceinline__ void load_share(const float* x, int d_k, bool whole, float (&v)[kEach]) {
  const int first = lane_id() * kEach;
  if constexpr (kEach % 4 == 0) {
    if (whole) {
#pragma unroll
      for (int j = 0; j < kEach; j += 4) {
        const float4 w = *reinterpret_cast<const float4*>(x + first + j);
        v[j] = w.x;
        v[j + 1] = w.y;
        v[j + 2] = w.z;
        v[j + 3] = w.w;
      }
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) v[j] = first + j < d_k ? x[first + j] : 0.0f;
}
template <int kEach>
__device__ __forceinline__ float share_dot(const float (&a)[kEach], const float (&b)[kEach]) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) sum = fmaf(a[j], b[j], sum);
  return warp_sum(sum);
}

// Brings tokens [base, base + n) of the sequence to shared memory: a warp takes every n-th. Records k and g
// on the tape.
template <int kVecs, int kStateRows>
__device__ __forceinline__ void bring_tokens(const StepArgs& a, const Place& p,
                                             const Shared<kVecs * 32, kStateRows>& sh, int base, int n) {
  constexpr int kColumns = kVecs * 32, kWarps = kStateRows * kLanes / kWarp;
  const int d_k = a.shape.d_k, keys = key_dim(a.shape), lane = lane_id();
  const float q_scale = inverse_root(float(d_k));
  for (int t = warp_id(); t < n; t += kWarps) {
    const int r = p.seq.first_row + base + t;
    const float* row = a.qkv.row(r);
    float q[kVecs], k[kVecs];
    load_share(row + p.key_head * d_k, d_k, a.whole_vectors, q);
    load_share(row + keys + p.key_head * d_k, d_k, a.whole_vectors, k);
    const float* v = row + 2 * keys + p.h * a.shape.d_v + p.first;
    for (int i = lane; i < kStateRows; i += kWarp) {
      sh.v[t * kStateRows + i] = p.first + i < a.shape.d_v ? v[i] : 0.0f;
    }
    const float q_factor = inverse_root(share_dot(q, q) + kNormEps) * q_scale;
    const float k_factor = inverse_root(share_dot(k, k) + kNormEps);
    const int64_t tape = tape_row(a.state, p.seq, 1 - p.seq.tape, t);
    float* tape_k = a.state.tape_k + tape * keys + p.key_head * d_k;
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      const int column = lane * kVecs + j;
      q[j] *= q_factor;
      k[j] *= k_factor;
      sh.q[t * kColumns + column] = q[j];
      sh.k[t * kColumns + column] = k[j];
      if (a.decode && p.owns_key && column < d_k) tape_k[column] = k[j];
    }
    const float qk = share_dot(q, k);
    if (lane == 0) {
      const float log_decay = a.log_decay.row(r)[p.h], g = exp_(log_decay);
      sh.log_decay[t] = log_decay;
      sh.qk[t] = qk;
      sh.g[t] = g;
      sh.beta[t] = a.beta.row(r)[p.h];
      if (a.decode && p.owns_head) a.state.tape_g[tape * a.shape.n_v_heads + p.h] = g;
    }
  }
}

// Brings pending tape rows [base, base + n) to shared memory.
template <int kVecs, int kStateRows>
__device__ __forceinline__ void bring_tape(const StepArgs& a, const Place& p,
                                           const Shared<kVecs * 32, kStateRows>& sh, int base, int n) {
  constexpr int kColumns = kVecs * 32, kThreads = kStateRows * kLanes;
  for (int i = int(threadIdx.x); i < n * kColumns; i += kThreads) {
    const int row = i / kColumns, column = i % kColumns;
    sh.fold_k[i] = column < a.shape.d_k
                       ? a.state.tape_k[pending_row(a.state, p.seq, base + row) * key_dim(a.shape) +
                                        p.key_head * a.shape.d_k + column]
                       : 0.0f;
  }
  for (int i = int(threadIdx.x); i < n * kStateRows; i += kThreads) {
    const int row = i / kStateRows, of_s = p.first + i % kStateRows;
    sh.fold_delta[i] = of_s < a.shape.d_v
                           ? a.state.tape_delta[pending_row(a.state, p.seq, base + row) * value_dim(a.shape) +
                                                p.h * a.shape.d_v + of_s]
                           : 0.0f;
  }
  if (int(threadIdx.x) < n) {
    const int64_t row = pending_row(a.state, p.seq, base + int(threadIdx.x));
    sh.fold_g[threadIdx.x] = a.state.tape_g[row * a.shape.n_v_heads + p.h];
  }
}

// One token on the registers of a row of S; every lane gets the outcome.
struct Outcome {
  float delta, y;
};
template <int kVecs>
__device__ __forceinline__ Outcome run_token(Part<kVecs>& s, const Part<kVecs>& k, const Part<kVecs>& q,
                                             float g, float beta, float v, float qk) {
  decay(s, g);
  const float p = group_sum(dot(s, k)), o = group_sum(dot(s, q));
  const float delta = beta * (v - p);
  add_outer(s, delta, k);
  return {delta, fmaf(qk, delta, o)};
}

}  // namespace tandem::cuda
