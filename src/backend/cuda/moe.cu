// Sparse mixtures: routing and experts.
//
// Rows choose their experts apart from each other, and so they are computed: a block takes one row, one of
// its experts and some outputs, as linear.cu would with a single row. Two launches: gate and up with SwiGLU
// for all experts of all rows, the shared one as one expert more; then the down products, where a block walks
// the experts of its row in ascending order and adds weight * product to the sum of each of its column parts
// before the tree. Inside a fused block each of them chooses the row's experts itself, from the logits
// (routing.cuh); a warp of the down product rounds the columns that it reads. Experts that rows share are
// read from memory once and from the cache again. Many rows go through moe_many.cu.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/experts.cuh"
#include "backend/cuda/linear.cuh"
#include "backend/cuda/routing.cuh"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = kLinearWarps * kWarp;
constexpr int kMaxParts = 4;

struct RouteArgs {
  Choices choices;
  int32_t* ids;
  int64_t ids_stride;
  MutRows weights;
};
// A warp per row.
__global__ void __launch_bounds__(kWarp) route_kernel(const __grid_constant__ RouteArgs a) {
  __shared__ Chosen chosen;
  const int row = int(blockIdx.x), lane = lane_id();
  let_next_start();
  wait_for_inputs();
  choose<true>(a.choices, row, chosen);
  __syncwarp();
  if (lane >= a.choices.top_k) return;
  a.ids[row * a.ids_stride + lane] = chosen.ids[lane];
  a.weights.row(row)[lane] = chosen.weights[lane];
}

struct UpArgs {
  ExpertPart routed, shared;  // gate and up rows; shared.data null: none
  ExpertPart shared_gate;     // one row; data null: none, or computed elsewhere
  Choices choices;
  ActivationRows x;
  float* inner;  // out [rows, slots, inner_stride]; slot top_k is the shared expert
  int64_t inner_stride;
  int slots;
  float* shared_score;  // out [rows]: shared_gate x
};

// A row is one of two of a pair, the first columns of the tensor cores' operand: its stats lie aligned then.
__device__ __forceinline__ ActivationRows pair_of(const ActivationRows& x, int row) {
  return x.from_row(row / 2 * 2);
}
// The row's sums of outputs g and g + 8, in the lanes of t = 0.
__device__ __forceinline__ float2 own_sums(const float (&acc)[4], int row) {
  return row % 2 == 0 ? make_float2(acc[0], acc[2]) : make_float2(acc[1], acc[3]);
}

template <LinearFormat F, int kAhead>
using Slots = InputSlot<F, 1>[kLinearWarps][kAhead];

// Adds to acc what this warp's part of the columns gives: kTiles tiles whose records begin at `at`, row `row`
// of x, which may be read after ready().
template <LinearFormat F, int kTiles, int kAhead, class Ready>
__device__ __forceinline__ void stream_row(const std::byte* const (&at)[kTiles], const ActivationRows& x,
                                           int row, int groups, InputSlot<F, 1> (&slots)[kAhead],
                                           float (&acc)[kTiles][1][4], Ready&& ready) {
  const int warp = warp_id();
  const int first = warp * groups / kLinearWarps, end = (warp + 1) * groups / kLinearWarps;
  const ActivationRows pair = pair_of(x, row);
  InputPlace<F> input;
  input.enter(pair, first);
  const std::byte* own[kTiles];
#pragma unroll
  for (int r = 0; r < kTiles; ++r) own[r] = Record<F>::own_part(at[r]);
  Record<F> ahead[kAhead][kTiles];
  const auto fetch = [&](int i, int group) {
    if (group >= end) return;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) ahead[i][r].load(own[r] + int64_t(group) * record_bytes(F));
  };
  const auto ask = [&](int i, int group) {
    if (group < end) {
      slots[i].ask(pair, input, row % 2, row % 2 + 1);
      input.next(pair);
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    fetch(i, first + i);
    slots[i].clear();
  }
  ready();
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ask(i, first + i);
  for (int base = first; base < end; base += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      wait_for_copies<kAhead - 1>();
      __syncwarp();
      if (base + i < end) {
        Input<F> b[1];
        b[0].take(slots[i], 0);
        multiply_group<F, kTiles, 1>(ahead[i], b, acc);
      }
      __syncwarp();  // all lanes have read what is replaced now
      ask(i, base + i + kAhead);
      fetch(i, base + i + kAhead);
    }
  }
}

// A tile's sums of outputs g and g + 8 over all warps.
template <int kTiles>
__device__ __forceinline__ float2 tree_of_warps(float2 (&of_warps)[kLinearWarps][kTiles][8], int tile,
                                                int g) {
  const auto load = [&](int w) {
    const float2 v = of_warps[w][tile][g];
    return make_float4(v.x, v.y, 0.0f, 0.0f);
  };
  const float4 v = tree<kLinearWarps>(load);
  return make_float2(v.x, v.y);
}

template <LinearFormat F>
__global__ void __launch_bounds__(kThreads, 3) expert_up_kernel(const __grid_constant__ UpArgs a) {
  constexpr int kAhead = F == LinearFormat::bf16 || is_wide(F) ? 1 : 2;
  __shared__ Slots<F, kAhead> slots;
  __shared__ float2 of_warps[kLinearWarps][2][8];
  __shared__ Chosen chosen;
  const int row = int(blockIdx.z), slot = int(blockIdx.y), g = lane_id() / 4, t = lane_id() % 4;
  // In this order: expert_down_kernel, which comes next, counts on it.
  const auto wait = [] {
    wait_for_inputs();
    let_next_start();
  };
  const bool is_score = slot == a.slots, is_shared = slot == a.choices.top_k;
  if (is_score && blockIdx.x > 0) return wait();
  const ExpertPart part = is_score ? a.shared_gate : is_shared ? a.shared : a.routed;
  const int half = part.tiles / 2, tile = int(blockIdx.x);
  if (!is_score && tile >= half) {  // columns that pad the rows of the down product
    wait();
    if (threadIdx.x < kTileRows) {
      a.inner[(int64_t(row) * a.slots + slot) * a.inner_stride + tile * kTileRows + int(threadIdx.x)] = 0;
    }
    return;
  }
  const bool is_routed = !is_score && !is_shared;
  if (is_routed) {
    wait();
    if (warp_id() == 0) choose<false>(a.choices, row, chosen);
    __syncthreads();
  }
  const int64_t expert = is_routed ? chosen.ids[slot] : 0;
  const int64_t of_tile = int64_t(part.groups) * record_bytes(F);
  const std::byte* base = part.data + expert * part.tiles * of_tile;
  const std::byte* const at[2] = {base + tile * of_tile, base + (is_score ? 0 : half + tile) * of_tile};
  float acc[2][1][4] = {};
  stream_row<F, 2>(at, a.x, row, part.groups, slots[warp_id()], acc, [&] {
    if (!is_routed) wait();  // these weights are known beforehand
  });
  if (t == 0) {
    of_warps[warp_id()][0][g] = own_sums(acc[0][0], row);
    of_warps[warp_id()][1][g] = own_sums(acc[1][0], row);
  }
  __syncthreads();
  if (threadIdx.x >= 8) return;
  const int i = int(threadIdx.x);
  const float2 gate = tree_of_warps<2>(of_warps, 0, i), up = tree_of_warps<2>(of_warps, 1, i);
  if (is_score) {
    if (i == 0) a.shared_score[row] = gate.x;
    return;
  }
  float* inner = a.inner + (int64_t(row) * a.slots + slot) * a.inner_stride + tile * kTileRows;
  inner[i] = silu(gate.x) * up.x;
  inner[i + 8] = silu(gate.y) * up.y;
}

struct DownArgs {
  ExpertPart routed, shared;
  Choices choices;
  const float* shared_score;
  int slots;
  const float* inner;  // [rows * slots, inner_stride]
  int64_t inner_stride;
  MutRows residual;
  int n_outputs;
};
// One row and one group of activations, rounded here: the first column of the tensor cores' operand.
template <LinearFormat F>
struct RoundedGroup {
  uint4 values[2][4];
  float2 stats;

  // Groups of which lane l has columns 2 l and 2 l + 1.
  template <int kCount>
  static __device__ __forceinline__ void put(RoundedGroup (&to)[kCount], const float2 (&x)[kCount]) {
    const int lane = lane_id();
    uint32_t pair[kCount];
    if constexpr (F == LinearFormat::bf16) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) pair[n] = bf16_pair(x[n].x, x[n].y);
    } else {
      float2 stats[kCount];
      round_to_f16(x, pair, stats);
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        if (lane == 0) to[n].stats = stats[n];
      }
    }
#pragma unroll
    for (int n = 0; n < kCount; ++n) reinterpret_cast<uint32_t*>(to[n].values)[lane] = pair[n];
  }
  __device__ __forceinline__ void take(Input<F>& in) const {
    const int lane = lane_id();
    uint4 first = make_uint4(0, 0, 0, 0), second = first;
    if (lane < 4) {
      first = values[0][lane];
      second = values[1][lane];
    }
    in.set_values(first, second);
    if constexpr (is_affine(F)) in.set_stats(make_float4(stats.x, stats.y, 0.0f, 0.0f));
  }
};
// Where a warp stands in its records of all slots, one after the other.
template <LinearFormat F>
struct DownPlace {
  int slot, group, end;
  const std::byte* at;

  // The first slot from `first` on of which the warp has a part. `experts`: of slot s in lane s.
  __device__ __forceinline__ void enter(const DownArgs& a, int first, int experts) {
    for (slot = first; slot < a.slots; ++slot) {
      const bool is_shared = slot == a.choices.top_k;
      const ExpertPart part = is_shared ? a.shared : a.routed;
      const int expert = __shfl_sync(kAllLanes, experts, slot & (kWarp - 1));
      group = warp_id() * part.groups / kLinearWarps;
      end = (warp_id() + 1) * part.groups / kLinearWarps;
      if (group == end) continue;
      const int64_t tile = int64_t(is_shared ? 0 : expert) * part.tiles + int(blockIdx.x);
      at = Record<F>::own_part(part.data + (tile * part.groups + group) * record_bytes(F));
      return;
    }
  }
};

// kAhead: groups whose records are on their way to registers; kBlocks: blocks a processor has at once.
//
// Until all blocks of expert_up_kernel have come past its wait_for_inputs(), no block of this kernel starts:
// all that was written before that kernel can be read before this one's own wait_for_inputs(), so its logits
// or ids, though not inner and the shared expert's score.
template <LinearFormat F, int kAhead, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) expert_down_kernel(const __grid_constant__ DownArgs a) {
  __shared__ float2 of_warps[kLinearWarps][1][8];
  __shared__ RoundedGroup<F> all_inputs[kLinearWarps][kAhead];
  __shared__ Chosen chosen;
  RoundedGroup<F>(&inputs)[kAhead] = all_inputs[warp_id()];
  const int row = int(blockIdx.y), tile = int(blockIdx.x), lane = lane_id(), g = lane / 4, t = lane % 4;
  const int top_k = a.choices.top_k;
  let_next_start();
  if (warp_id() == 0) choose<true>(a.choices, row, chosen);
  __syncthreads();
  const int experts = lane < top_k ? chosen.ids[lane] : 0;

  DownPlace<F> load;
  load.enter(a, 0, experts);
  Record<F> ahead[kAhead][1];
  const float* from[kAhead];  // this lane's columns of inner; null: none
  const auto fetch = [&](int i) {
    from[i] = nullptr;
    if (load.slot >= a.slots) return;
    from[i] = a.inner + (int64_t(row) * a.slots + load.slot) * a.inner_stride + load.group * kGroupColumns +
              2 * lane;
    ahead[i][0].load(load.at);
    load.at += record_bytes(F);
    if (++load.group == load.end) load.enter(a, load.slot + 1, experts);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch(i);
  wait_for_inputs();
  const float weights = lane < top_k ? chosen.weights[lane] : 0.0f;
  const float shared_weight = a.slots > top_k ? sigmoid(a.shared_score[row]) : 0.0f;

  DownPlace<F> at;
  at.enter(a, 0, experts);
  float2 sum = make_float2(0.0f, 0.0f);
  float acc[1][1][4] = {};
#pragma unroll 1
  while (at.slot < a.slots) {
    float2 x[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      x[i] = from[i] != nullptr ? *reinterpret_cast<const float2*>(from[i]) : make_float2(0.0f, 0.0f);
    __syncwarp();  // all lanes have read what is replaced now
    RoundedGroup<F>::put(inputs, x);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (at.slot >= a.slots) break;
      Input<F> input[1];
      inputs[i].take(input[0]);
      multiply_group<F, 1, 1>(ahead[i], input, acc);
      fetch(i);
      if (++at.group < at.end) continue;
      const float2 of_slot = own_sums(acc[0][0], 0);
      const float weight =
          at.slot == top_k ? shared_weight : __shfl_sync(kAllLanes, weights, at.slot & (kWarp - 1));
      sum.x = fmaf(weight, of_slot.x, sum.x);
      sum.y = fmaf(weight, of_slot.y, sum.y);
#pragma unroll
      for (float& v : acc[0][0]) v = 0;
      at.enter(a, at.slot + 1, experts);
    }
  }
  if (t == 0) of_warps[warp_id()][0][g] = sum;
  __syncthreads();
  if (threadIdx.x >= 8) return;
  const int i = int(threadIdx.x), output = tile * kTileRows + i;
  const float2 v = tree_of_warps<1>(of_warps, 0, i);
  float* y = a.residual.row(row);
  if (output < a.n_outputs) y[output] += v.x;
  if (output + 8 < a.n_outputs) y[output + 8] += v.y;
}

// ---- any formats: a warp per output, values one by one ----

struct AnyPart {
  const std::byte* data;
  LinearFormat format;
  int first, n, tiles, groups;
};
struct AnyWeight {
  AnyPart parts[kMaxParts];
  int n_parts, n, k, n_slices;
};

// Sums over the slices of output `output` of expert `expert`, in every lane.
template <class Input>
__device__ void slice_sums(const AnyWeight& w, int64_t expert, int output, Input&& x, float (&sums)[8]) {
  int p = 0;
  while (output >= w.parts[p].first + w.parts[p].n) ++p;
  const AnyPart& part = w.parts[p];
  const int width = w.k / w.n_slices;
  for (int s = 0; s < w.n_slices; ++s) {
    float sum = 0;
    for (int c = s * width + lane_id(); c < (s + 1) * width; c += kWarp) {
      const float v = part.format == LinearFormat::f32 ? x(c) : bf16_value(bf16_bits(x(c)));
      sum = fmaf(
          v,
          weight_value(part.format, part.data, expert * part.tiles, part.groups, w.k, output - part.first, c),
          sum);
    }
    sums[s] = warp_sum(sum);
  }
}
__device__ __forceinline__ float slice_tree(float (&sums)[8], int n) {
  for (; n > 1; n /= 2) {
    for (int i = 0; i < n / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

struct AnyUpArgs {
  AnyWeight routed, shared, shared_gate;
  const int32_t* ids;
  int64_t ids_stride;
  Rows x;
  int top_k, slots;
  float* inner;  // [rows, slots, inner_stride]
  int64_t inner_stride;
  float* shared_score;
};
__global__ void any_up_kernel(const __grid_constant__ AnyUpArgs a) {
  let_next_start();
  wait_for_inputs();
  const int row = int(blockIdx.z), slot = int(blockIdx.y), output = int(blockIdx.x);
  const bool is_score = slot == a.slots, is_shared = slot == a.top_k;
  const float* x = a.x.row(row);
  const auto input = [&](int c) { return x[c]; };
  float sums[8];
  if (is_score) {
    if (output > 0) return;
    slice_sums(a.shared_gate, 0, 0, input, sums);
    if (lane_id() == 0) a.shared_score[row] = slice_tree(sums, a.shared_gate.n_slices);
    return;
  }
  const AnyWeight& w = is_shared ? a.shared : a.routed;
  const int width = w.n / 2;
  if (output >= width) return;
  const int64_t expert = is_shared ? 0 : a.ids[row * a.ids_stride + slot];
  slice_sums(w, expert, output, input, sums);
  const float gate = slice_tree(sums, w.n_slices);
  slice_sums(w, expert, width + output, input, sums);
  const float up = slice_tree(sums, w.n_slices);
  if (lane_id() == 0) a.inner[(int64_t(row) * a.slots + slot) * a.inner_stride + output] = silu(gate) * up;
}

struct AnyDownArgs {
  AnyWeight routed, shared;
  const int32_t* ids;
  int64_t ids_stride;
  Rows choice_weights;
  const float* shared_score;
  int top_k, slots;
  const float* inner;
  int64_t inner_stride;
  MutRows residual;
};
__global__ void any_down_kernel(const __grid_constant__ AnyDownArgs a) {
  let_next_start();
  wait_for_inputs();
  const int row = int(blockIdx.y), output = int(blockIdx.x);
  float total[8] = {};
  for (int slot = 0; slot < a.slots; ++slot) {
    const bool is_shared = slot == a.top_k;
    const float weight = is_shared ? sigmoid(a.shared_score[row]) : a.choice_weights.row(row)[slot];
    const float* inner = a.inner + (int64_t(row) * a.slots + slot) * a.inner_stride;
    float sums[8];
    slice_sums(
        is_shared ? a.shared : a.routed, is_shared ? 0 : a.ids[row * a.ids_stride + slot], output,
        [&](int c) { return inner[c]; }, sums);
    for (int s = 0; s < a.routed.n_slices; ++s) total[s] = fmaf(weight, sums[s], total[s]);
  }
  if (lane_id() == 0) a.residual.row(row)[output] += slice_tree(total, a.routed.n_slices);
}

AnyWeight any_weight(const Weight* weight) {
  AnyWeight any{};
  if (weight == nullptr) return any;
  const CudaWeight& w = ours(*weight);
  TD_CHECK(w.parts.size() <= size_t(kMaxParts), "an expert of %zu number formats, at most %d", w.parts.size(),
           kMaxParts);
  for (const WeightPart& p : w.parts)
    any.parts[any.n_parts++] = {p.data, p.format, p.first, p.n, p.tiles, p.groups};
  any.n = w.n();
  any.k = w.k();
  any.n_slices = w.n_slices();
  return any;
}

// Whether all these weights are of one part and one format that the tensor cores take.
bool uniform(std::initializer_list<const Weight*> weights) {
  const LinearFormat format = ours(**weights.begin()).parts[0].format;
  return format != LinearFormat::f32 && std::all_of(weights.begin(), weights.end(), [&](const Weight* w) {
           return w == nullptr || (ours(*w).parts.size() == 1 && ours(*w).parts[0].format == format);
         });
}

bool whole_tiles(const Weight* gate_up) { return gate_up == nullptr || gate_up->n() % (2 * kTileRows) == 0; }

// Whether the tensor cores' kernels can do it: one format up, one down, gate and up rows in whole tiles.
bool tensor_experts(const MoeWeights& w) {
  const bool score = w.shared_gate == nullptr || ours(*w.shared_gate).parts[0].format != LinearFormat::f32;
  return score && uniform({w.gate_up, w.shared_gate_up}) && uniform({w.down, w.shared_down}) &&
         whole_tiles(w.gate_up) && whole_tiles(w.shared_gate_up);
}

int columns(int k) { return (k + kGroupColumns - 1) / kGroupColumns * kGroupColumns; }

// A score per row, then what the experts make of each row.
size_t score_bytes(int rows) { return (size_t(rows) * sizeof(float) + 15) / 16 * 16; }
size_t expert_bytes(int rows, int slots, int inner_stride) {
  return score_bytes(rows) + size_t(rows) * size_t(slots) * size_t(inner_stride) * sizeof(float);
}

Choices choices_of(View logits, int top_k, bool normalise) {
  TD_CHECK(top_k <= kMaxTopK && logits.cols <= kMaxExperts, "%d of %d experts a row, at most %d of %d", top_k,
           logits.cols, kMaxTopK, kMaxExperts);
  Choices c{};
  c.logits = rows_of(logits);
  c.n_experts = logits.cols;
  c.top_k = top_k;
  c.normalise = normalise;
  return c;
}
Choices choices_of(const MoeExperts& a) {
  Choices c{};
  c.top_k = a.weights.top_k;
  c.ids = static_cast<const int32_t*>(a.ids.data);
  c.ids_stride = a.ids.stride;
  c.weights = rows_of(a.choice_weights);
  return c;
}

}  // namespace

void CudaBackend::do_moe_route(View logits, bool normalise, MutView ids, MutView weights) {
  card_->launch(route_kernel, {unsigned(logits.rows)}, kWarp, 0,
                RouteArgs{choices_of(logits, ids.cols, normalise), static_cast<int32_t*>(ids.data),
                          ids.stride, rows_of(weights)});
}

void CudaBackend::reserve_experts(const Reserve& largest) {
  if (largest.moe_top_k == 0) return;
  int width = 0;
  for (const Weight* w : largest.weights) width = std::max(width, w->k());
  const int slots = largest.moe_top_k + 1;
  experts_.need(
      expert_bytes(largest.max_rows, slots, columns(width)) + many_experts_bytes(largest.max_rows, slots),
      true);
  activation_rows(largest.max_rows * slots, columns(width), true, true, true);
}

ActivationRows CudaBackend::rows_for(std::initializer_list<const Weight*> readers, int rows) {
  bool bf16 = false, f16 = false;
  for (const Weight* w : readers) {
    if (w == nullptr) continue;
    bf16 = bf16 || ours(*w).takes_bf16();
    f16 = f16 || ours(*w).takes_f16();
  }
  return activation_rows(rows, (*readers.begin())->k(), bf16, f16, may_grow());
}

void CudaBackend::do_moe_experts(Path, const MoeExperts& a) { experts(a, nullptr, nullptr); }

void CudaBackend::do_moe(const Step& step, const Moe& a, Scratch& s) {
  const MoeWeights& w = a.weights;
  if (!takes_rounded_rows(ours(*w.router)) || !tensor_experts(w)) return Backend::do_moe(step, a, s);
  // The router and the experts read the same rounded rows.
  const CudaWeight& router = ours(*w.router);
  const int rows = step.n_rows;
  const ActivationRows x = rows_for({w.router, w.gate_up, w.shared_gate}, rows);
  rounded_norm(a.x, a.gain, a.eps, x);
  const MutView logits = s.router.row_range(0, rows).col_range(0, router.n());
  const MutView ids = s.choice.row_range(0, rows).col_range(0, w.top_k),
                weights = s.choice_weight.row_range(0, rows).col_range(0, w.top_k);
  product(x, {}, router, logits, false);
  // A few rows' kernels choose for themselves.
  const View own = logits;
  const bool is_many = is_many_for_experts(rows);
  if (is_many) moe_route(logits, w.normalise, ids, weights);
  experts({.x = a.x, .weights = w, .ids = ids, .choice_weights = weights, .residual = a.x}, &x,
          is_many ? nullptr : &own);
}

void CudaBackend::experts(const MoeExperts& a, const ActivationRows* rounded_x, const View* logits) {
  const MoeWeights& w = a.weights;
  const bool shared = w.shared_down != nullptr;
  const int rows = a.x.rows, slots = w.top_k + (shared ? 1 : 0);
  const int width = std::max(w.down->k(), shared ? w.shared_down->k() : 0);
  const size_t inner_stride = size_t(columns(width));
  const size_t own_bytes = expert_bytes(rows, slots, int(inner_stride));
  std::byte* memory = experts_.need(own_bytes + many_experts_bytes(rows, slots), may_grow());
  auto* score = reinterpret_cast<float*>(memory);
  auto* inner = reinterpret_cast<float*>(memory + score_bytes(rows));
  const auto* ids = static_cast<const int32_t*>(a.ids.data);

  if (!tensor_experts(w)) {
    auto* inner = reinterpret_cast<float*>(memory + score_bytes(rows));
    card_->launch(
        any_up_kernel, {unsigned(width), unsigned(slots + (shared ? 1 : 0)), unsigned(rows)}, kWarp, 0,
        AnyUpArgs{any_weight(w.gate_up), any_weight(w.shared_gate_up), any_weight(w.shared_gate), ids,
                  a.ids.stride, rows_of(a.x), w.top_k, slots, inner, int64_t(inner_stride), score});
    card_->launch(any_down_kernel, {unsigned(w.down->n()), unsigned(rows)}, kWarp, 0,
                  AnyDownArgs{any_weight(w.down), any_weight(w.shared_down), ids, a.ids.stride,
                              rows_of(a.choice_weights), score, w.top_k, slots, inner, int64_t(inner_stride),
                              rows_of(a.residual)});
    return;
  }

  ActivationRows x;
  if (rounded_x != nullptr) {
    x = *rounded_x;
  } else {
    x = rows_for({w.gate_up, w.shared_gate}, rows);
    round_rows(a.x, w.gate_up->k(), x);
  }
  // The shared expert's score: with the experts where the formats agree, else a product of its own.
  const bool score_too = shared && uniform({w.gate_up, w.shared_gate});
  if (shared && !score_too) product(x, {}, ours(*w.shared_gate), {score, DType::f32, rows, 1, 1}, false);
  if (is_many_for_experts(rows)) {
    return experts_of_many(a, x, {score, inner, int64_t(inner_stride), slots, memory + own_bytes}, score_too);
  }
  const ExpertPart up = expert_part(w.gate_up), shared_up = expert_part(w.shared_gate_up);
  const unsigned tiles = unsigned(inner_stride) / kTileRows;
  const Choices choices = logits != nullptr ? choices_of(*logits, w.top_k, w.normalise) : choices_of(a);
  by_format(ours(*w.gate_up).parts[0].format, [&](auto format) {
    card_->launch(expert_up_kernel<format()>, {tiles, unsigned(slots + (shared ? 1 : 0)), unsigned(rows)},
                  kThreads, 0,
                  UpArgs{up, shared_up, score_too ? expert_part(w.shared_gate) : ExpertPart{}, choices, x,
                         inner, int64_t(inner_stride), slots, score});
  });
  // Directly after it, for what it may read ahead.
  const unsigned down_tiles = unsigned(expert_part(w.down).tiles);
  const DownArgs down{expert_part(w.down),   expert_part(w.shared_down), choices,    score, slots, inner,
                      int64_t(inner_stride), rows_of(a.residual),        w.down->n()};
  by_format(ours(*w.down).parts[0].format, [&](auto format) {
    // Blocks that have a processor to themselves ask for more at once.
    constexpr bool kLarge = format() == LinearFormat::bf16 || is_wide(format());
    const auto kernel = int(down_tiles) * rows <= card_->info().n_sms ? expert_down_kernel < format(),
               kLarge ? 5 : 9, 1 > : expert_down_kernel < format(), kLarge ? 3 : 5, 2 > ;
    card_->launch(kernel, {down_tiles, unsigned(rows)}, kThreads, 0, down);
  });
}

}  // namespace tandem::cuda
