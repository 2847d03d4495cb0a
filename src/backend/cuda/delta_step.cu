// Gated DeltaNet: the delta rule in decode steps, trees, folds and prompts (delta_rows.cuh).
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/delta_closed.cuh"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kPrefillRows = 32;  // tokens in shared memory at a time

enum class Kind : uint8_t { chains, trees, closed };

// Grid: blocks of rows of S, value heads, sequences. kKind: whether there may be trees, and whether chains of
// several rows take the closed form.
template <int kVecs, bool kWhole, int kStateRows, Kind kKind>
__global__ void __launch_bounds__(kStateRows* kLanes) delta_kernel(const __grid_constant__ StepArgs a) {
  constexpr int kColumns = kVecs * 32;
  constexpr bool kTree = kKind != Kind::chains;
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

  if constexpr (kKind == Kind::closed) {
    if (n_rows > 1 && !p.seq.is_tree) return run_closed<kVecs, kStateRows>(a, p, sh, s, of_block, n_rows);
  }
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
void launch(Card& card, const StepArgs& args, unsigned n_seqs, Kind kind) {
  const dim3 grid{unsigned((args.shape.d_v + kStateRows - 1) / kStateRows), unsigned(args.shape.n_v_heads),
                  n_seqs};
  constexpr int kThreads = kStateRows * kLanes;
  const size_t floats = Shared<kVecs * 32, kStateRows>::floats(args.capacity);
  switch (kind) {
    case Kind::chains:
      return card.launch(delta_kernel<kVecs, kWhole, kStateRows, Kind::chains>, grid, kThreads,
                         floats * sizeof(float), args);
    case Kind::trees:
      return card.launch(delta_kernel<kVecs, kWhole, kStateRows, Kind::trees>, grid, kThreads,
                         floats * sizeof(float), args);
    case Kind::closed:
      return card.launch(delta_kernel<kVecs, kWhole, kStateRows, Kind::closed>, grid, kThreads,
                         (floats + ClosedShared::floats(args.capacity)) * sizeof(float), args);
  }
}

void launch_any(Card& card, const StepArgs& args, unsigned n_seqs, Kind kind) {
  const int d_k = args.shape.d_k;
  if (d_k == 128) return launch<4, true, 16>(card, args, n_seqs, kind);
  if (d_k <= 32) return launch<1, false, 16>(card, args, n_seqs, kind);
  if (d_k <= 64) return launch<2, false, 16>(card, args, n_seqs, kind);
  if (d_k <= 128) return launch<4, false, 16>(card, args, n_seqs, kind);
  TD_CHECK(d_k <= 256, "the delta rule with keys of %d values, at most 256", d_k);
  launch<8, false, 16>(card, args, n_seqs, kind);
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
  const bool closed = decode && delta_ == DeltaForm::closed && most > 1;
  launch_any(*card_, args, unsigned(step.seqs.size()),
             closed  ? Kind::closed
             : trees ? Kind::trees
                     : Kind::chains);
}

void CudaBackend::do_fold_states(const Step& step, const DeltaShape& shape, const DeltaState& state) {
  fold_windows(step, shape, state);
  StepArgs args{};
  args.table = table(step);
  args.shape = shape;
  args.state = state;
  args.capacity = 4;
  args.decode = true;
  launch_any(*card_, args, unsigned(step.seqs.size()), Kind::chains);
}

}  // namespace tandem::cuda
