// Gated DeltaNet: the delta rule token by token, in decode steps, trees, folds and prompts alike.
//
// S [d_v, d_k] of a value head stays in registers while its rows are run: 8 lanes hold a row of S, lane l the
// columns 32 i + 4 l .. + 3. Rows of S do not meet, so a block takes some of them and needs all of k and q.
// A token's arithmetic, the same wherever it is run:
//   s <- g s;  p = s . k;  o = s . q;  delta = beta (v - p);  s <- fma(delta, k, s);  y = fma(k . q, delta,
//   o)
// Both sums over s take one round of exchanges that way. Sums: a lane's columns 4 i + c of each c ascending,
// then the four c, then the lanes. Columns beyond d_k are zeros in S, k and q.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/delta.cuh"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kLanes = 8;          // of a row of S
constexpr int kFoldRows = 8;       // tape rows in shared memory at a time
constexpr int kPrefillRows = 32;   // tokens in shared memory at a time
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
  float *k, *q;          // [capacity, kColumns], normalised
  float *qk, *g, *beta;  // [capacity]
  float *v, *delta;      // [capacity, kStateRows]
  float* fold_k;         // [kFoldRows, kColumns]
  float* fold_delta;     // [kFoldRows, kStateRows]
  float* fold_g;         // [kFoldRows]
  unsigned* above;       // [capacity]: of a tree, a bit for each row on the path to this one, without it

  static constexpr size_t floats(int capacity) {
    return size_t(capacity) * (2 * kColumns + 4 + 2 * kStateRows) +
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
    fold_g = take(kFoldRows);
    above = reinterpret_cast<unsigned*>(take(capacity));
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
      const float g = exp_(a.log_decay.row(r)[p.h]);
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

// One token on the registers of a row of S; true results in every lane.
struct Outcome {
  float delta, y;
};
template <int kVecs>
__device__ __forceinline__ Outcome run_token(Part<kVecs>& s, const Part<kVecs>& k, const Part<kVecs>& q,
                                             float g, float beta, float v, float qk) {
  decay(s, g);
  float p = dot(s, k), o = dot(s, q);
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    p += __shfl_xor_sync(kAllLanes, p, distance);
    o += __shfl_xor_sync(kAllLanes, o, distance);
  }
  const float delta = beta * (v - p);
  add_outer(s, delta, k);
  return {delta, fmaf(qk, delta, o)};
}

// Grid: blocks of rows of S, value heads, sequences.
template <int kVecs, bool kWhole, int kStateRows, bool kTree>
__global__ void __launch_bounds__(kStateRows* kLanes) delta_kernel(const __grid_constant__ StepArgs a) {
  constexpr int kColumns = kVecs * 32;
  const Place p = place_of<kStateRows>(a);
  const Shared<kColumns, kStateRows> sh(a.capacity);
  const int of_block = int(threadIdx.x) / kLanes, of_s = p.first + of_block;
  const bool exists = of_s < a.shape.d_v, speaks = exists && threadIdx.x % kLanes == 0;
  const bool fresh = a.runs && p.seq.start == 0;
  const int n_rows = a.runs ? p.seq.n_rows : 0, n_pending = fresh ? 0 : p.seq.n_pending;
  float* state = state_of(a.shape, a.state, p.seq, p.h) + int64_t{of_s} * a.shape.d_k;
  if (exists && !fresh) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (threadIdx.x % kLanes == 0 && i * 32 < a.shape.d_k) prefetch(state + i * 32);
    }
  }
  wait_for_inputs();

  Part<kVecs> s = load_state<kVecs, kWhole>(state, a.shape.d_k, exists && !fresh);
  int base = 0, n = min(n_rows, a.capacity);
  bring_tokens<kVecs, kStateRows>(a, p, sh, 0, n);
  bring_tape<kVecs, kStateRows>(a, p, sh, 0, min(n_pending, kFoldRows));
  if constexpr (kTree) {
    if (p.seq.is_tree && int(threadIdx.x) < n) {
      unsigned above = 0;
      for (int t = p.seq.parents[threadIdx.x]; t >= 0; t = p.seq.parents[t]) above |= 1u << t;
      sh.above[threadIdx.x] = above;
    }
  }
  __syncthreads();
  let_next_start();

  for (int folded = 0; folded < n_pending;) {
    const int rows = min(n_pending - folded, kFoldRows);
    for (int t = 0; t < rows; ++t) {
      decay(s, sh.fold_g[t]);
      add_outer(s, sh.fold_delta[t * kStateRows + of_block], part_of<kVecs>(sh.fold_k + t * kColumns));
    }
    folded += rows;
    if (folded == n_pending) break;
    __syncthreads();
    bring_tape<kVecs, kStateRows>(a, p, sh, folded, min(n_pending - folded, kFoldRows));
    __syncthreads();
  }
  if (exists && a.decode && (fresh || n_pending > 0)) store_state<kVecs, kWhole>(s, state, a.shape.d_k);

  const Part<kVecs> before = s;
  while (base < n_rows) {
    for (int t = 0; t < n; ++t) {
      if constexpr (kTree) {
        if (p.seq.is_tree && t > 0 && p.seq.parents[t] != t - 1) {
          // Back to what the row above left: the state before the step and the tokens on the path, replayed.
          __syncwarp();
          s = before;
          const unsigned above = sh.above[t];
          for (int i = 0; i < t; ++i) {
            if ((above >> i & 1u) == 0) continue;
            decay(s, sh.g[i]);
            add_outer(s, sh.delta[i * kStateRows + of_block], part_of<kVecs>(sh.k + i * kColumns));
          }
        }
      }
      const Part<kVecs> k = part_of<kVecs>(sh.k + t * kColumns), q = part_of<kVecs>(sh.q + t * kColumns);
      const Outcome got = run_token(s, k, q, sh.g[t], sh.beta[t], sh.v[t * kStateRows + of_block], sh.qk[t]);
      if (kTree && speaks) sh.delta[t * kStateRows + of_block] = got.delta;
      if (speaks) {
        const int column = p.h * a.shape.d_v + of_s;
        a.y.row(p.seq.first_row + base + t)[column] = got.y;
        if (a.decode) {
          a.state.tape_delta[tape_row(a.state, p.seq, 1 - p.seq.tape, t) * value_dim(a.shape) + column] =
              got.delta;
        }
      }
    }
    base += n;
    n = min(n_rows - base, a.capacity);
    if (n <= 0) break;
    __syncthreads();
    bring_tokens<kVecs, kStateRows>(a, p, sh, base, n);
    __syncthreads();
  }
  if (exists && !a.decode) store_state<kVecs, kWhole>(s, state, a.shape.d_k);
}

template <int kVecs, bool kWhole, int kStateRows>
void launch(Card& card, const StepArgs& args, unsigned n_seqs, bool trees) {
  const dim3 grid{unsigned((args.shape.d_v + kStateRows - 1) / kStateRows), unsigned(args.shape.n_v_heads),
                  n_seqs};
  const size_t shared = Shared<kVecs * 32, kStateRows>::floats(args.capacity) * sizeof(float);
  if (trees) {
    card.launch(delta_kernel<kVecs, kWhole, kStateRows, true>, grid, kStateRows * kLanes, shared, args);
  } else {
    card.launch(delta_kernel<kVecs, kWhole, kStateRows, false>, grid, kStateRows * kLanes, shared, args);
  }
}

void launch_any(Card& card, const StepArgs& args, unsigned n_seqs, bool trees) {
  const int d_k = args.shape.d_k;
  if (d_k == 128) return launch<4, true, 16>(card, args, n_seqs, trees);
  if (d_k <= 32) return launch<1, false, 16>(card, args, n_seqs, trees);
  if (d_k <= 64) return launch<2, false, 16>(card, args, n_seqs, trees);
  if (d_k <= 128) return launch<4, false, 16>(card, args, n_seqs, trees);
  TD_CHECK(d_k <= 256, "the delta rule with keys of %d values, at most 256", d_k);
  launch<8, false, 16>(card, args, n_seqs, trees);
}

}  // namespace

void CudaBackend::do_delta_step(const Step& step, const DeltaStep& a) {
  const bool decode = step.path == Path::decode;
  const int most = most_rows(step);
  const StepArgs args{.table = table(step),
                      .shape = a.shape,
                      .state = a.state,
                      .qkv = rows_of(a.qkv),
                      .log_decay = rows_of(a.log_decay),
                      .beta = rows_of(a.beta),
                      .y = rows_of(a.y),
                      .capacity = decode ? (most + 3) / 4 * 4 : kPrefillRows,
                      .runs = true,
                      .decode = decode,
                      .whole_vectors = aligned16(a.qkv.data, a.qkv.stride) && a.shape.d_k % 128 == 0};
  const bool trees = std::any_of(step.seqs.begin(), step.seqs.end(),
                                 [](const SeqStep& seq) { return !seq.parents.empty(); });
  launch_any(*card_, args, unsigned(step.seqs.size()), trees);
}

void CudaBackend::do_fold_states(const Step& step, const DeltaShape& shape, const DeltaState& state) {
  fold_windows(step, shape, state);
  StepArgs args{};
  args.table = table(step);
  args.shape = shape;
  args.state = state;
  args.capacity = 4;
  args.decode = true;
  launch_any(*card_, args, unsigned(step.seqs.size()), false);
}

}  // namespace tandem::cuda
