// Sparse mixtures: routing and experts.
//
// Rows choose their experts apart from each other, and so they are computed: a block takes one row, one of
// its experts and some outputs, as linear.cu would with a single row. Two launches: gate and up with SwiGLU
// for all experts of all rows, the shared one as one expert more; then the down products, where a block walks
// the experts of its row in ascending order and adds weight * product to the sum of each of its column parts
// before the tree. Experts that rows share are read from memory once and from the cache again. Many rows go
// through moe_many.cu.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/experts.cuh"
#include "backend/cuda/linear.cuh"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = kLinearWarps * kWarp;
constexpr int kMaxTopK = 32, kMaxExperts = 512;
constexpr int kMaxParts = 4;

struct RouteArgs {
  Rows logits;
  int n_experts, top_k;
  bool normalise;
  int32_t* ids;
  int64_t ids_stride;
  MutRows weights;
};
// A block per row. An expert's rank is the number of those that beat it: a higher logit, or the same and a
// lower id; NaN counts as lowest. So there are no rounds that wait for each other.
__global__ void __launch_bounds__(kThreads) route_kernel(const __grid_constant__ RouteArgs a) {
  __shared__ float4 four_logits[kMaxExperts / 4];
  __shared__ int chosen[kMaxTopK];
  __shared__ float chosen_logit[kMaxTopK];
  __shared__ float of_warp[kLinearWarps];
  const int row = int(blockIdx.x), lane = lane_id();
  auto* logits = reinterpret_cast<float*>(four_logits);
  let_next_start();
  wait_for_inputs();
  for (int e = int(threadIdx.x); e < kMaxExperts; e += kThreads) {
    const float l = e < a.n_experts ? a.logits.row(row)[e] : -INFINITY;
    logits[e] = l == l ? l : -INFINITY;
  }
  __syncthreads();
  for (int e = int(threadIdx.x); e < a.n_experts; e += kThreads) {
    const float mine = logits[e];
    const int warp_first = e - lane, warp_end = min(warp_first + kWarp, a.n_experts);
    int rank = 0;
    for (int j = 0; j < warp_first; j += 4) {
      const float4 l = four_logits[j / 4];
      rank += (l.x >= mine) + (l.y >= mine) + (l.z >= mine) + (l.w >= mine);
    }
    for (int j = warp_first; j < warp_end; ++j) rank += logits[j] > mine || (logits[j] == mine && j < e);
    for (int j = warp_end; j < a.n_experts; j += 4) {  // what lies beyond beats nobody
      const float4 l = four_logits[j / 4];
      rank += (l.x > mine) + (l.y > mine) + (l.z > mine) + (l.w > mine);
    }
    if (rank < a.top_k) {
      chosen[rank] = e;
      chosen_logit[rank] = mine;
    }
  }
  __syncthreads();
  const float highest = chosen_logit[0];
  float total = 0;
  if (a.normalise) {
    total = warp_sum(lane < a.top_k ? exp_(chosen_logit[lane] - highest) : 0.0f);
  } else {
    for (int e = int(threadIdx.x); e < a.n_experts; e += kThreads) total += exp_(logits[e] - highest);
    total = warp_sum(total);
    if (lane == 0) of_warp[warp_id()] = total;
    __syncthreads();
    total = 0;
    for (int w = 0; w < kLinearWarps; ++w) total += of_warp[w];
  }
  if (warp_id() == 0 && lane < a.top_k) {
    int place = 0;  // among the chosen in ascending order
    for (int i = 0; i < a.top_k; ++i) place += chosen[i] < chosen[lane];
    a.ids[row * a.ids_stride + place] = chosen[lane];
    a.weights.row(row)[place] = exp_(chosen_logit[lane] - highest) / total;
  }
}

struct UpArgs {
  ExpertPart routed, shared;  // gate and up rows; shared.data null: none
  ExpertPart shared_gate;     // one row; data null: none, or computed elsewhere
  const int32_t* ids;
  int64_t ids_stride;
  int top_k;
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
// of x.
template <LinearFormat F, int kTiles, int kAhead>
__device__ __forceinline__ void stream_row(const std::byte* const (&at)[kTiles], const ActivationRows& x,
                                           int row, int groups, InputSlot<F, 1> (&slots)[kAhead],
                                           float (&acc)[kTiles][1][4]) {
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
    if (group < end) {
      slots[i].ask(pair, input, row % 2, row % 2 + 1);
      input.next(pair);
#pragma unroll
      for (int r = 0; r < kTiles; ++r) ahead[i][r].load(own[r] + int64_t(group) * record_bytes(F));
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    slots[i].clear();
    fetch(i, first + i);
  }
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
  const int row = int(blockIdx.z), slot = int(blockIdx.y), g = lane_id() / 4, t = lane_id() % 4;
  let_next_start();
  wait_for_inputs();
  const bool is_score = slot == a.slots, is_shared = slot == a.top_k;
  if (is_score && blockIdx.x > 0) return;
  const ExpertPart part = is_score ? a.shared_gate : is_shared ? a.shared : a.routed;
  const int half = part.tiles / 2, tile = int(blockIdx.x);
  if (!is_score && tile >= half) {  // columns that pad the rows of the down product
    if (threadIdx.x < kTileRows) {
      a.inner[(int64_t(row) * a.slots + slot) * a.inner_stride + tile * kTileRows + int(threadIdx.x)] = 0;
    }
    return;
  }
  const int64_t expert = is_score || is_shared ? 0 : a.ids[row * a.ids_stride + slot];
  const int64_t of_tile = int64_t(part.groups) * record_bytes(F);
  const std::byte* base = part.data + expert * part.tiles * of_tile;
  const std::byte* const at[2] = {base + tile * of_tile, base + (is_score ? 0 : half + tile) * of_tile};
  float acc[2][1][4] = {};
  stream_row<F, 2>(at, a.x, row, part.groups, slots[warp_id()], acc);
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
  const int32_t* ids;
  int64_t ids_stride;
  Rows choice_weights;
  const float* shared_score;
  int top_k, slots;
  ActivationRows rounded;  // [rows * slots]
  MutRows residual;
  int n_outputs;
};
// Where a warp stands in its records of all slots, one after the other.
template <LinearFormat F>
struct DownPlace {
  int slot, group, end;
  const std::byte* at;

  // The first slot from `first` on of which the warp has a part. `experts`: of slot s in lane s.
  __device__ __forceinline__ void enter(const DownArgs& a, int first, int experts) {
    for (slot = first; slot < a.slots; ++slot) {
      const bool is_shared = slot == a.top_k;
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

template <LinearFormat F>
__global__ void __launch_bounds__(kThreads, 2) expert_down_kernel(const __grid_constant__ DownArgs a) {
  constexpr int kAhead = F == LinearFormat::bf16 || is_wide(F) ? 3 : 5;
  __shared__ float2 of_warps[kLinearWarps][1][8];
  __shared__ Slots<F, kAhead> all_slots;
  InputSlot<F, 1>(&slots)[kAhead] = all_slots[warp_id()];
  const int row = int(blockIdx.y), tile = int(blockIdx.x), lane = lane_id(), g = lane / 4, t = lane % 4;
  let_next_start();
  wait_for_inputs();
  const int experts = lane < a.top_k ? a.ids[row * a.ids_stride + lane] : 0;
  const float weights = lane < a.top_k ? a.choice_weights.row(row)[lane] : 0.0f;
  const float shared_weight = a.slots > a.top_k ? sigmoid(a.shared_score[row]) : 0.0f;

  DownPlace<F> load;
  load.enter(a, 0, experts);
  Record<F> ahead[kAhead][1];
  const auto fetch = [&](int i) {
    if (load.slot < a.slots) {
      const int input = row * a.slots + load.slot;
      const ActivationRows pair = pair_of(a.rounded, input);
      InputPlace<F> from;
      from.enter(pair, load.group);
      slots[i].ask(pair, from, input % 2, input % 2 + 1);
      ahead[i][0].load(load.at);
      load.at += record_bytes(F);
      if (++load.group == load.end) load.enter(a, load.slot + 1, experts);
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    slots[i].clear();
    fetch(i);
  }
  DownPlace<F> at;
  at.enter(a, 0, experts);
  float2 sum = make_float2(0.0f, 0.0f);
  float acc[1][1][4] = {};
  while (at.slot < a.slots) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (at.slot >= a.slots) break;
      wait_for_copies<kAhead - 1>();
      __syncwarp();
      Input<F> x[1];
      x[0].take(slots[i], 0);
      multiply_group<F, 1, 1>(ahead[i], x, acc);
      __syncwarp();  // all lanes have read what is replaced now
      fetch(i);
      if (++at.group < at.end) continue;
      const float2 of_slot = own_sums(acc[0][0], row * a.slots + at.slot);
      const float weight =
          at.slot == a.top_k ? shared_weight : __shfl_sync(kAllLanes, weights, at.slot & (kWarp - 1));
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

}  // namespace

void CudaBackend::do_moe_route(View logits, bool normalise, MutView ids, MutView weights) {
  TD_CHECK(ids.cols <= kMaxTopK && logits.cols <= kMaxExperts, "%d of %d experts a row, at most %d of %d",
           ids.cols, logits.cols, kMaxTopK, kMaxExperts);
  card_->launch(route_kernel, {unsigned(logits.rows)}, kThreads, 0,
                RouteArgs{rows_of(logits), logits.cols, ids.cols, normalise, static_cast<int32_t*>(ids.data),
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

void CudaBackend::do_moe_experts(Path, const MoeExperts& a) { experts(a, nullptr); }

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
  moe_route(logits, w.normalise, ids, weights);
  experts({.x = a.x, .weights = w, .ids = ids, .choice_weights = weights, .residual = a.x}, &x);
}

void CudaBackend::experts(const MoeExperts& a, const ActivationRows* rounded_x) {
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
  by_format(ours(*w.gate_up).parts[0].format, [&](auto format) {
    card_->launch(expert_up_kernel<format()>, {tiles, unsigned(slots + (shared ? 1 : 0)), unsigned(rows)},
                  kThreads, 0,
                  UpArgs{up, shared_up, score_too ? expert_part(w.shared_gate) : ExpertPart{}, ids,
                         a.ids.stride, w.top_k, x, inner, int64_t(inner_stride), slots, score});
  });
  const View all{inner, DType::f32, rows * slots, int(inner_stride), int64_t(inner_stride)};
  const CudaWeight& down = ours(*w.down);
  const ActivationRows inner_rows =
      activation_rows(all.rows, all.cols, down.takes_bf16(), down.takes_f16(), may_grow());
  round_rows(all, all.cols, inner_rows);
  by_format(ours(*w.down).parts[0].format, [&](auto format) {
    card_->launch(expert_down_kernel<format()>, {unsigned(expert_part(w.down).tiles), unsigned(rows)},
                  kThreads, 0,
                  DownArgs{expert_part(w.down), expert_part(w.shared_down), ids, a.ids.stride,
                           rows_of(a.choice_weights), score, w.top_k, slots, inner_rows, rows_of(a.residual),
                           w.down->n()});
  });
}

}  // namespace tandem::cuda
