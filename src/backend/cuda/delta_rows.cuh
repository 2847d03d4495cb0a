// Gated DeltaNet on a card: rows of S in registers, and the tokens and tape rows they meet in shared memory.
//
// S [d_v, d_k] of a value head stays in registers while tokens run over it: 16 lanes hold two rows of S, lane
// l the columns 64 i + 4 l .. + 3 of both, so that a key read from shared memory serves two rows. Rows of S
// do not meet: a block takes some of them, with all of k and q.
//
// A token's arithmetic, the same wherever it is run:
//   s <- g s;   p = s . k, o = s . q;   delta = beta (v - p);   s <- fma(delta, k, s)
//   y = fma(k . q, delta, o)
// Both sums over s take one round of exchanges that way. Sums: a lane's columns 64 i + c for each c
// ascending, then its four c, then the lanes from far to near. Columns beyond d_k are zeros in S, k and q.
#pragma once

#include "backend/cuda/delta.cuh"

namespace tandem::cuda {

constexpr int kRowsEach = 2;       // rows of S that a thread has columns of
constexpr int kLanes = 16;         // that share these rows
constexpr int kFoldRows = 8;       // tape rows in shared memory at a time
constexpr float kNormEps = 1e-6f;  // added to the sum of squares of a key or query

// Threads of a block with so many rows of S.
constexpr int delta_threads(int state_rows) { return state_rows / kRowsEach * kLanes; }

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

// Shared memory of a block with kStateRows rows of S. kColumns: d_k padded to 64.
template <int kColumns, int kStateRows>
struct Shared {
  float *k, *q;       // [capacity, kColumns], normalised
  float4* scalars;    // [capacity]: decay, beta, k . q, log decay
  float *v, *delta;   // [capacity, kStateRows]
  float* fold_k;      // [kFoldRows, kColumns]
  float* fold_delta;  // [kFoldRows, kStateRows]
  float* fold_g;      // [kFoldRows]
  unsigned* above;    // [capacity]: of a tree, a bit for each row on the path to this one, without it
  float* end;

  static constexpr size_t floats(int capacity) {
    return size_t(capacity) * (2 * kColumns + 4 + 2 * kStateRows + 1) +
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
    scalars = reinterpret_cast<float4*>(take(capacity * 4));
    v = take(capacity * kStateRows);
    delta = take(capacity * kStateRows);
    fold_delta = take(kFoldRows * kStateRows);
    fold_g = take(kFoldRows);
    above = reinterpret_cast<unsigned*>(take(capacity));
    end = at;
  }
};

__device__ __forceinline__ int lane_of_row() { return int(threadIdx.x) % kLanes; }
// The first of this thread's rows of S, counted in the block.
__device__ __forceinline__ int first_of_thread() { return int(threadIdx.x) / kLanes * kRowsEach; }

// A lane's columns of a row.
template <int kVecs>
struct Part {
  float4 v[kVecs];
};
template <int kVecs>
__device__ __forceinline__ Part<kVecs> part_of(const float* row) {  // of shared memory
  Part<kVecs> x;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) x.v[i] = reinterpret_cast<const float4*>(row)[i * kLanes + lane_of_row()];
  return x;
}
template <int kVecs, bool kWhole>
__device__ __forceinline__ Part<kVecs> load_part(const float* row, int d_k, bool exists) {
  Part<kVecs> x;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int column = (i * kLanes + lane_of_row()) * 4;
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
__device__ __forceinline__ void store_part(const Part<kVecs>& x, float* row, int d_k) {
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int column = (i * kLanes + lane_of_row()) * 4;
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
// Over the lanes of a row; all of them get it.
__device__ __forceinline__ float row_sum(float v) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    v += __shfl_xor_sync(kAllLanes, v, distance);
  }
  return v;
}

// The two of a value for each row of S that are a thread's.
__device__ __forceinline__ float2 of_thread(const float* of_rows) {
  static_assert(kRowsEach == 2);
  return reinterpret_cast<const float2*>(of_rows)[int(threadIdx.x) / kLanes];
}

// A thread's rows of S.
template <int kVecs>
struct StateRows {
  Part<kVecs> row[kRowsEach];
};
template <int kVecs>
__device__ __forceinline__ void fold(StateRows<kVecs>& s, float g, const float* deltas,
                                     const Part<kVecs>& k) {
  const float2 delta = of_thread(deltas);
  decay(s.row[0], g);
  decay(s.row[1], g);
  add_outer(s.row[0], delta.x, k);
  add_outer(s.row[1], delta.y, k);
}

// Whom of a row's sixteen lanes quarter_sums serves: the first and the second value of a and of b.
__device__ __forceinline__ bool has_b() { return (threadIdx.x & 8) != 0; }
__device__ __forceinline__ bool has_second() { return (threadIdx.x & 4) != 0; }
// row_sum of four values at once, each in a quarter of the lanes: who keeps a sum gives another away.
__device__ __forceinline__ float quarter_sums(const float (&a)[2], const float (&b)[2]) {
  static_assert(kLanes == 16);
  float half[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    half[i] = (has_b() ? b[i] : a[i]) + __shfl_xor_sync(kAllLanes, has_b() ? a[i] : b[i], 8);
  }
  float sum =
      (has_second() ? half[1] : half[0]) + __shfl_xor_sync(kAllLanes, has_second() ? half[0] : half[1], 4);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  return sum;
}

// A token on the registers. Returns its delta, for lanes that have b its y, of the first or second row.
template <int kVecs>
__device__ __forceinline__ float run_token(StateRows<kVecs>& s, const Part<kVecs>& k, const Part<kVecs>& q,
                                           float4 scalars, float2 v) {
  float p[2], o[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    decay(s.row[i], scalars.x);
    p[i] = dot(s.row[i], k);
    o[i] = dot(s.row[i], q);
  }
  const float sum = quarter_sums(p, o);
  const float p0 = __shfl_sync(kAllLanes, sum, lane_id() & kLanes);
  const float p1 = __shfl_sync(kAllLanes, sum, (lane_id() & kLanes) + 4);
  const float delta0 = scalars.y * (v.x - p0), delta1 = scalars.y * (v.y - p1);
  add_outer(s.row[0], delta0, k);
  add_outer(s.row[1], delta1, k);
  const float delta = has_second() ? delta1 : delta0;
  return has_b() ? fmaf(scalars.z, delta, sum) : delta;
}

// What a block works on.
struct Place {
  const SeqEntry& seq;
  int h, key_head, first;    // value head, its key head, first row of S
  bool owns_key, owns_head;  // this block records k, g
};
__device__ __forceinline__ Place place_of(const StepArgs& a, int state_rows) {
  const int h = int(blockIdx.y), group = a.shape.n_v_heads / a.shape.n_k_heads;
  return {.seq = a.table.seqs[blockIdx.z],
          .h = h,
          .key_head = h / group,
          .first = int(blockIdx.x) * state_rows,
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
__device__ __forceinline__ void store_share(const float (&v)[kEach], float* shared) {
  if constexpr (kEach % 4 == 0) {
#pragma unroll
    for (int j = 0; j < kEach; j += 4) {
      reinterpret_cast<float4*>(shared)[(lane_id() * kEach + j) / 4] =
          make_float4(v[j], v[j + 1], v[j + 2], v[j + 3]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kEach; ++j) shared[lane_id() * kEach + j] = v[j];
  }
}
template <int kEach>
__device__ __forceinline__ float share_dot(const float (&a)[kEach], const float (&b)[kEach]) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) sum = fmaf(a[j], b[j], sum);
  return warp_sum(sum);
}

// Tokens on their way from memory to shared memory, normalised: a warp takes every n-th, kAtOnce at a time.
template <int kVecs, int kStateRows>
struct Tokens {
  static constexpr int kColumns = kVecs * 64, kEach = kVecs * 2, kWarps = delta_threads(kStateRows) / kWarp,
                       kAtOnce = kStateRows >= 32 ? 1 : 2;
  float q[kAtOnce][kEach], k[kAtOnce][kEach], v[kAtOnce], log_decay[kAtOnce], beta[kAtOnce];

  // Of tokens [base, base + n) of the sequence those from base + first on.
  __device__ __forceinline__ void load(const StepArgs& a, const Place& p, int base, int n, int first) {
    const int d_k = a.shape.d_k, lane = lane_id();
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int r = p.seq.first_row + base + min(first + u * kWarps, n - 1);
      const float* row = a.qkv.row(r);
      load_share(row + p.key_head * d_k, d_k, a.whole_vectors, q[u]);
      load_share(row + key_dim(a.shape) + p.key_head * d_k, d_k, a.whole_vectors, k[u]);
      v[u] = 0;
      if (lane < kStateRows && p.first + lane < a.shape.d_v) {
        v[u] = row[2 * key_dim(a.shape) + p.h * a.shape.d_v + p.first + lane];
      }
      log_decay[u] = a.log_decay.row(r)[p.h];
      beta[u] = a.beta.row(r)[p.h];
    }
  }

  // Records k and g on the tape, too.
  __device__ __forceinline__ void put(const StepArgs& a, const Place& p,
                                      const Shared<kColumns, kStateRows>& sh, int n, int first) {
    const int d_k = a.shape.d_k, lane = lane_id();
    const float q_scale = inverse_root(float(d_k));
    float q_factor[kAtOnce], k_factor[kAtOnce], k_q[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      q_factor[u] = inverse_root(share_dot(q[u], q[u]) + kNormEps) * q_scale;
      k_factor[u] = inverse_root(share_dot(k[u], k[u]) + kNormEps);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        q[u][j] *= q_factor[u];
        k[u][j] *= k_factor[u];
      }
      k_q[u] = share_dot(q[u], k[u]);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int t = first + u * kWarps;
      if (t >= n) break;
      const int64_t tape = tape_row(a.state, p.seq, 1 - p.seq.tape, t);
      float* tape_k = a.state.tape_k + tape * key_dim(a.shape) + p.key_head * d_k;
      store_share(q[u], sh.q + t * kColumns);
      store_share(k[u], sh.k + t * kColumns);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int column = lane * kEach + j;
        if (a.decode && p.owns_key && column < d_k) tape_k[column] = k[u][j];
      }
      if (lane < kStateRows) sh.v[t * kStateRows + lane] = v[u];
      if (lane == 0) {
        const float g = exp_(log_decay[u]);
        sh.scalars[t] = make_float4(g, beta[u], k_q[u], log_decay[u]);
        if (a.decode && p.owns_head) a.state.tape_g[tape * a.shape.n_v_heads + p.h] = g;
      }
    }
  }

  // Tokens from base + first on, to the end.
  __device__ __forceinline__ void bring(const StepArgs& a, const Place& p,
                                        const Shared<kColumns, kStateRows>& sh, int base, int n, int first) {
    for (; first < n; first += kWarps * kAtOnce) {
      load(a, p, base, n, first);
      put(a, p, sh, n, first);
    }
  }
};

// 4 or 16 bytes to shared memory, on their way until wait_for_copies().
template <int kBytes>
__device__ __forceinline__ void copy_bytes(float* shared, const float* global) {
#ifdef TANDEM_CUDA_EMULATED
  std::memcpy(shared, global, kBytes);
#else
  const auto to = unsigned(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
  }
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#ifndef TANDEM_CUDA_EMULATED
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Key of pending tape row i.
__device__ __forceinline__ const float* pending_key(const StepArgs& a, const Place& p, int i) {
  return a.state.tape_k + pending_row(a.state, p.seq, i) * key_dim(a.shape) + p.key_head * a.shape.d_k;
}

// Starts to bring pending tape rows [base, base + n) to shared memory; wait_for_copies() and a barrier end
// it.
template <int kVecs, bool kWhole, int kStateRows>
__device__ __forceinline__ void bring_tape(const StepArgs& a, const Place& p,
                                           const Shared<kVecs * 64, kStateRows>& sh, int base, int n) {
  constexpr int kColumns = kVecs * 64;
  if constexpr (kWhole) {
    for (int i = int(threadIdx.x); i < n * kColumns / 4; i += delta_threads(kStateRows)) {
      copy_bytes<16>(sh.fold_k + i * 4, pending_key(a, p, base + i * 4 / kColumns) + i * 4 % kColumns);
    }
  } else {
    for (int i = int(threadIdx.x); i < n * kColumns; i += delta_threads(kStateRows)) {
      const int column = i % kColumns;
      sh.fold_k[i] = column < a.shape.d_k ? pending_key(a, p, base + i / kColumns)[column] : 0.0f;
    }
  }
  for (int i = int(threadIdx.x); i < n * kStateRows; i += delta_threads(kStateRows)) {
    const int64_t row = pending_row(a.state, p.seq, base + i / kStateRows);
    const int of_s = p.first + i % kStateRows;
    if (of_s < a.shape.d_v) {
      copy_bytes<4>(sh.fold_delta + i,
                    a.state.tape_delta + row * value_dim(a.shape) + p.h * a.shape.d_v + of_s);
    } else {
      sh.fold_delta[i] = 0;
    }
    if (i % kStateRows == 0) {
      copy_bytes<4>(sh.fold_g + i / kStateRows, a.state.tape_g + row * a.shape.n_v_heads + p.h);
    }
  }
}

}  // namespace tandem::cuda
