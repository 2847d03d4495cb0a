// Gated DeltaNet: the delta rule in decode steps, trees, folds and prompts (delta_rows.cuh).
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/delta_closed.cuh"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kPrefillRows = 32;  // tokens in shared memory at a time

constexpr int kFullCard = 4;  // blocks of 32 rows of S for each processor that keep it busy

enum class Kind : uint8_t { chains, trees, closed };

// Blocks that share a processor, where registers would allow fewer.
constexpr int least_blocks(int vecs, int state_rows, Kind kind) {
  return vecs <= 2 && kind == Kind::chains ? 64 / state_rows : 1;
}

// Whether there may be trees, and whether chains of several rows take the closed form.
// Grid: blocks of rows of S, value heads, sequences.
template <int kVecs, bool kWhole, int kStateRows, Kind kKind>
__global__ void __launch_bounds__(delta_threads(kStateRows), least_blocks(kVecs, kStateRows, kKind))
    delta_kernel(const __grid_constant__ StepArgs a) {
  constexpr int kColumns = kVecs * 64;
  constexpr bool kTree = kKind != Kind::chains;
  const Place p = place_of(a, kStateRows);
  const Shared<kColumns, kStateRows> sh(a.capacity);
  const int d_k = a.shape.d_k, first = p.first + first_of_thread();
  const bool fresh = a.runs && p.seq.start == 0;
  const int n_rows = a.runs ? p.seq.n_rows : 0, n_pending = fresh ? 0 : p.seq.n_pending;
  float* state = state_of(a.shape, a.state, p.seq, p.h) + int64_t{first} * d_k;
  const auto exists = [&](int i) { return first + i < a.shape.d_v; };
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    for (int column = lane_of_row() * 8; column < d_k && !fresh && exists(i); column += kLanes * 8) {
      prefetch(state + i * d_k + column);
    }
  }
  if (int(threadIdx.x) < n_pending) prefetch(pending_key(a, p, int(threadIdx.x)));
  let_next_start();
  wait_for_inputs();

  // Loads in the order in which they are needed.
  int base = 0, n = min(n_rows, a.capacity);
  Tokens<kVecs, kStateRows> tokens;
  if (warp_id() < n) tokens.load(a, p, 0, n, warp_id());
  bring_tape<kVecs, kWhole, kStateRows>(a, p, sh, 0, min(n_pending, kFoldRows));
  StateRows<kVecs> s;
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    s.row[i] = load_part<kVecs, kWhole>(state + i * d_k, d_k, !fresh && exists(i));
  }
  if (warp_id() < n) tokens.put(a, p, sh, n, warp_id());
  tokens.bring(a, p, sh, 0, n, warp_id() + tokens.kWarps * tokens.kAtOnce);
  if constexpr (kTree) {
    if (int(threadIdx.x) < n) {
      const int t = int(threadIdx.x);
      unsigned above = (1u << t) - 1;
      if (p.seq.is_tree) {
        above = 0;
        for (int i = p.seq.parents[t]; i >= 0; i = p.seq.parents[i]) above |= 1u << i;
      }
      sh.above[t] = above;
    }
  }
  wait_for_copies();
  __syncthreads();

  for (int folded = 0; folded < n_pending;) {
    const int rows = min(n_pending - folded, kFoldRows);
    for (int t = 0; t < rows; ++t) {
      fold(s, sh.fold_g[t], sh.fold_delta + t * kStateRows, part_of<kVecs>(sh.fold_k + t * kColumns));
    }
    folded += rows;
    if (folded == n_pending) break;
    __syncthreads();
    bring_tape<kVecs, kWhole, kStateRows>(a, p, sh, folded, min(n_pending - folded, kFoldRows));
    wait_for_copies();
    __syncthreads();
  }
  const auto keep = [&] {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      if (exists(i)) store_part<kVecs, kWhole>(s.row[i], state + i * d_k, d_k);
    }
  };
  if (a.decode && (fresh || n_pending > 0)) keep();
  if (n_rows == 0) return;

  if constexpr (kKind == Kind::closed) {
    if (n_rows > 1 && !p.seq.is_tree) return run_closed<kVecs, kStateRows>(a, p, sh, s, n_rows);
  }
  // What this lane has to say of a token, and where.
  const bool speaks = lane_of_row() % 4 == 0 && exists(has_second());
  const int of_block = first_of_thread() + has_second();
  const int column = p.h * a.shape.d_v + p.first + of_block;
  float* out = nullptr;
  int64_t stride = 0;
  if (has_b()) {
    out = a.y.row(p.seq.first_row) + column;
    stride = a.y.stride;
  } else if (a.decode) {
    out = a.state.tape_delta + tape_row(a.state, p.seq, 1 - p.seq.tape, 0) * value_dim(a.shape) + column;
    stride = value_dim(a.shape);
  }
  if (!speaks) out = nullptr;

  const StateRows<kVecs> before = s;
  for (;;) {
    Part<kVecs> k = part_of<kVecs>(sh.k), q = part_of<kVecs>(sh.q);
    for (int t = 0; t < n; ++t) {
      if constexpr (kTree) {
        const unsigned above = sh.above[t];
        if (t > 0 && (above >> (t - 1) & 1u) == 0) {
          // Back to what the row above left: the state before the step and the tokens on the path, replayed.
          __syncwarp();
          s = before;
          for (int i = 0; i < t; ++i) {
            if ((above >> i & 1u) == 0) continue;
            fold(s, sh.scalars[i].x, sh.delta + i * kStateRows, part_of<kVecs>(sh.k + i * kColumns));
          }
        }
      }
      const int next = min(t + 1, n - 1) * kColumns;
      const Part<kVecs> next_k = part_of<kVecs>(sh.k + next), next_q = part_of<kVecs>(sh.q + next);
      const float mine = run_token(s, k, q, sh.scalars[t], of_thread(sh.v + t * kStateRows));
      if (kTree && !has_b() && lane_of_row() % 4 == 0) sh.delta[t * kStateRows + of_block] = mine;
      if (out != nullptr) {
        *out = mine;
        out += stride;
      }
      k = next_k;
      q = next_q;
    }
    base += n;
    n = min(n_rows - base, a.capacity);
    if (n <= 0) break;
    __syncthreads();
    tokens.bring(a, p, sh, base, n, warp_id());
    __syncthreads();
  }
  if (!a.decode) keep();
}

template <int kVecs, bool kWhole, int kStateRows>
void launch(Card& card, const StepArgs& args, unsigned n_seqs, Kind kind) {
  const dim3 grid{unsigned((args.shape.d_v + kStateRows - 1) / kStateRows), unsigned(args.shape.n_v_heads),
                  n_seqs};
  constexpr int kThreads = delta_threads(kStateRows);
  const size_t floats = Shared<kVecs * 64, kStateRows>::floats(args.capacity);
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
  if (d_k == 128) {
    // Larger blocks share the tokens among more rows of S, as soon as there are enough to fill the card.
    const int64_t rows = int64_t{n_seqs} * args.shape.n_v_heads * args.shape.d_v;
    if (rows >= int64_t{32} * kFullCard * card.info().n_sms)
      return launch<2, true, 32>(card, args, n_seqs, kind);
    return launch<2, true, 16>(card, args, n_seqs, kind);
  }
  if (d_k <= 64) return launch<1, false, 16>(card, args, n_seqs, kind);
  if (d_k <= 128) return launch<2, false, 16>(card, args, n_seqs, kind);
  TD_CHECK(d_k <= 256, "the delta rule with keys of %d values, at most 256", d_k);
  launch<4, false, 16>(card, args, n_seqs, kind);
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
