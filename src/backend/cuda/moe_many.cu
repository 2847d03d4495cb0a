// Experts of many rows, as prompts bring them: rows are sorted by the expert they chose, and a block takes up
// to 16 of an expert's rows against a few of its outputs, so that a weight is read once for all of them. The
// bits are those of moe.cu: its parts of the columns, its order of slots in each part, its tree over parts.
// The down products of a slot wait in memory, part by part, until all slots of their row are there: a slab
// of outputs at a time, which the card's cache holds.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/experts.cuh"
#include "backend/cuda/linear.cuh"
#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = kLinearWarps * kWarp;
constexpr int kFewRows = 64;  // up to here moe.cu
constexpr int kTiles = 2, kColumns = 2, kPairsAtOnce = 8 * kColumns;
constexpr size_t kPartsBytes = size_t{32} << 20;  // of a slab, unless the smallest takes more
constexpr int kMostExperts = 512;

// A pair is a row and one of its slots: row * slots + slot.
struct SortArgs {
  const int32_t* ids;
  int64_t ids_stride;
  int rows, top_k, slots;
  int32_t* first;  // out [n_experts + 1]
  int32_t* pairs;  // out [rows * top_k], by expert, rows ascending
};
// A warp per expert.
__global__ void sort_kernel(const __grid_constant__ SortArgs a) {
  wait_for_inputs();
  const int expert = int(blockIdx.x), lane = lane_id(), n = a.rows * a.top_k;
  const auto id_of = [&](int i) { return i < n ? a.ids[i / a.top_k * a.ids_stride + i % a.top_k] : -1; };
  int before = 0;  // pairs of experts before this one
  for (int i = 0; i < n; i += kWarp) {
    const int id = id_of(i + lane);
    before += count_bits(__ballot_sync(kAllLanes, id >= 0 && id < expert));
  }
  if (lane == 0) a.first[expert] = before;
  for (int i = 0; i < n; i += kWarp) {
    const bool is_its = id_of(i + lane) == expert;
    const uint32_t its = __ballot_sync(kAllLanes, is_its);
    if (is_its) {
      const int p = i + lane;
      a.pairs[before + count_bits(its & ((1u << lane) - 1u))] = p / a.top_k * a.slots + p % a.top_k;
    }
    before += count_bits(its);
  }
  if (lane == 0 && expert + 1 == int(gridDim.x)) a.first[expert + 1] = before;
}

// The pairs that a block works on: of a routed expert, or a slot of every row.
struct Pairs {
  const int32_t* list;  // null: every row's
  int n, slots, slot;
  __device__ __forceinline__ int operator[](int i) const {
    return list != nullptr ? list[i] : i * slots + slot;
  }
};

struct Experts {
  ExpertPart routed, shared;
  const int32_t* first;
  const int32_t* pairs;
  int n_experts, rows, slots, top_k;

  // Block `e`: a routed expert, then the shared one.
  __device__ __forceinline__ Pairs pairs_of(int e) const {
    if (e < n_experts) return {pairs + first[e], first[e + 1] - first[e], slots, 0};
    return {nullptr, rows, slots, top_k};
  }
};

// Rows of x in any order: `row` for this lane's g (-1: none), the others for its columns of the sums.
template <LinearFormat F>
__device__ __forceinline__ void load_rows(Input<F>& in, const ActivationRows& x, int row,
                                          const int (&of_sums)[2], int group) {
  const int t = lane_id() % 4;
  uint4 low = make_uint4(0, 0, 0, 0), high = low;
  if (row >= 0) {
    const uint16_t* rows = F == LinearFormat::bf16 ? x.bf16 : x.f16;
    const uint16_t* at = rows + (int64_t(row) * x.groups + group) * kGroupColumns + t * 8;
    low = *reinterpret_cast<const uint4*>(at);
    high = *reinterpret_cast<const uint4*>(at + 32);
  }
  in.set_values(low, high);
  if constexpr (is_affine(F)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 s = of_sums[i] >= 0 ? x.stats[int64_t(group) * x.stats_rows + of_sums[i]] : float2{};
      in.step[i] = s.x;
      in.shift[i] = s.y;
    }
  }
}

// Adds to acc what this warp's part of the columns gives: tiles whose records begin at `at`, by 8 rows for
// each column; `rows`: of x for this lane's g, -1: none.
template <LinearFormat F>
__device__ __forceinline__ void stream_rows(const std::byte* const (&at)[kTiles], const ActivationRows& x,
                                            const int (&rows)[kColumns], int groups,
                                            float (&acc)[kTiles][kColumns][4]) {
  const int warp = warp_id(), t = lane_id() % 4;
  const int first = warp * groups / kLinearWarps, end = (warp + 1) * groups / kLinearWarps;
  int stats_rows[kColumns][2];
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) stats_rows[n][i] = __shfl_sync(kAllLanes, rows[n], (2 * t + i) * 4);
  }
  constexpr int kAhead = F == LinearFormat::affine4 ? 2 : 1;
  Record<F> ahead[kAhead][kTiles];
  const auto fetch = [&](Record<F>(&records)[kTiles], int group) {
    if (group >= end) return;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      records[r].load(Record<F>::own_part(at[r] + int64_t(group) * record_bytes(F)));
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch(ahead[i], first + i);
#pragma unroll 1
  for (int base = first; base < end; base += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= end) break;
      Input<F> b[kColumns];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) load_rows(b[n], x, rows[n], stats_rows[n], base + i);
      multiply_group<F, kTiles, kColumns>(ahead[i], b, acc);
      fetch(ahead[i], base + i + kAhead);
    }
  }
}

struct UpArgs {
  Experts experts;
  ExpertPart shared_gate;  // one row; data null: none, or computed elsewhere
  ActivationRows x;
  float* inner;  // out [pair, inner_stride]
  int64_t inner_stride;
  float* shared_score;  // out [rows]
};
// Blocks: gate and up tiles; experts, the shared one, its score.
template <LinearFormat F>
__global__ void __launch_bounds__(kThreads, 2) many_up_kernel(const __grid_constant__ UpArgs a) {
  __shared__ float4 of_warps[kLinearWarps][kTiles * kColumns][kWarp];
  const int tile = int(blockIdx.x), e = int(blockIdx.y), lane = lane_id(), g = lane / 4, t = lane % 4;
  wait_for_inputs();
  let_next_start();
  const Experts& experts = a.experts;
  const bool is_score = e == experts.n_experts + 1, is_shared = e == experts.n_experts;
  if (is_score && tile > 0) return;
  const Pairs pairs = experts.pairs_of(e);
  const ExpertPart part = is_score ? a.shared_gate : is_shared ? experts.shared : experts.routed;
  const int half = part.tiles / 2;
  if (!is_score && tile >= half) {  // columns that pad the rows of the down product
    for (int i = int(threadIdx.x); i < pairs.n * kTileRows; i += kThreads) {
      a.inner[pairs[i / kTileRows] * a.inner_stride + tile * kTileRows + i % kTileRows] = 0;
    }
    return;
  }
  const int64_t of_tile = int64_t(part.groups) * record_bytes(F);
  const std::byte* base = part.data + (is_score || is_shared ? 0 : int64_t(e) * part.tiles * of_tile);
  const std::byte* const at[kTiles] = {base + tile * of_tile, base + (is_score ? 0 : half + tile) * of_tile};
#pragma unroll 1
  for (int first = 0; first < pairs.n; first += kPairsAtOnce) {
    int rows[kColumns];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int i = first + n * 8 + g;
      rows[n] = i < pairs.n ? pairs[i] / experts.slots : -1;
    }
    float acc[kTiles][kColumns][4] = {};
    stream_rows<F>(at, a.x, rows, part.groups, acc);
    if (first > 0) __syncthreads();  // the sums before have been read
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        of_warps[warp_id()][r * kColumns + n][lane] =
            make_float4(acc[r][n][0], acc[r][n][1], acc[r][n][2], acc[r][n][3]);
      }
    }
    __syncthreads();
    if (const int n = warp_id(); n < kColumns) {
      const float4 gate = tree<kLinearWarps>([&](int w) { return of_warps[w][n][lane]; });
      const float4 up = tree<kLinearWarps>([&](int w) { return of_warps[w][kColumns + n][lane]; });
      const auto put = [&](int i, float gate_low, float up_low, float gate_high, float up_high) {
        if (i >= pairs.n) return;
        if (is_score) {
          if (g == 0) a.shared_score[i] = gate_low;
          return;
        }
        float* inner = a.inner + pairs[i] * a.inner_stride + tile * kTileRows + g;
        inner[0] = silu(gate_low) * up_low;
        inner[8] = silu(gate_high) * up_high;
      };
      put(first + n * 8 + 2 * t, gate.x, up.x, gate.z, up.z);
      put(first + n * 8 + 2 * t + 1, gate.y, up.y, gate.w, up.w);
    }
  }
}

struct DownArgs {
  Experts experts;
  ActivationRows rounded;  // [pair]
  int first_output, slab;  // whole blocks of tiles
  float* parts;            // out [pair, part, slab]
};
// Blocks: tiles of the slab; experts, the shared one.
template <LinearFormat F>
__global__ void __launch_bounds__(kThreads, 2) many_down_kernel(const __grid_constant__ DownArgs a) {
  const int e = int(blockIdx.y), g = lane_id() / 4, t = lane_id() % 4;
  wait_for_inputs();
  let_next_start();
  const Pairs pairs = a.experts.pairs_of(e);
  const bool is_shared = e == a.experts.n_experts;
  const ExpertPart part = is_shared ? a.experts.shared : a.experts.routed;
  const int in_slab = int(blockIdx.x) * kTiles, tile = a.first_output / kTileRows + in_slab;
  const int64_t of_tile = int64_t(part.groups) * record_bytes(F);
  const std::byte* base = part.data + (is_shared ? 0 : int64_t(e) * part.tiles * of_tile);
  const std::byte* const at[kTiles] = {base + min(tile, part.tiles - 1) * of_tile,
                                       base + min(tile + 1, part.tiles - 1) * of_tile};
#pragma unroll 1
  for (int first = 0; first < pairs.n; first += kPairsAtOnce) {
    int rows[kColumns];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int i = first + n * 8 + g;
      rows[n] = i < pairs.n ? pairs[i] : -1;
    }
    float acc[kTiles][kColumns][4] = {};
    stream_rows<F>(at, a.rounded, rows, part.groups, acc);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int pair = __shfl_sync(kAllLanes, rows[n], (2 * t + i) * 4);
        if (pair < 0) continue;
        float* to = a.parts + (int64_t(pair) * kLinearWarps + warp_id()) * a.slab + in_slab * kTileRows + g;
#pragma unroll
        for (int r = 0; r < kTiles; ++r) {
          to[r * kTileRows] = acc[r][n][i];
          to[r * kTileRows + 8] = acc[r][n][2 + i];
        }
      }
    }
  }
}

struct CombineArgs {
  const float* parts;
  Rows choice_weights;
  const float* shared_score;
  int top_k, slots, first_output, slab, n_outputs;
  MutRows residual;
};
constexpr int kCombineThreads = 128;
// A thread per row and output of the slab.
__global__ void combine_kernel(const __grid_constant__ CombineArgs a) {
  wait_for_inputs();
  let_next_start();
  const int row = int(blockIdx.y), in_slab = int(blockIdx.x) * kCombineThreads + int(threadIdx.x);
  const int output = a.first_output + in_slab;
  if (in_slab >= a.slab || output >= a.n_outputs) return;
  float sums[kLinearWarps] = {};
  for (int slot = 0; slot < a.slots; ++slot) {
    const float weight = slot == a.top_k ? sigmoid(a.shared_score[row]) : a.choice_weights.row(row)[slot];
    const float* v = a.parts + int64_t(row * a.slots + slot) * kLinearWarps * a.slab + in_slab;
#pragma unroll
    for (int p = 0; p < kLinearWarps; ++p) sums[p] = fmaf(weight, v[int64_t(p) * a.slab], sums[p]);
  }
#pragma unroll
  for (int n = kLinearWarps; n > 1; n /= 2) {
#pragma unroll
    for (int i = 0; i < n / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  a.residual.row(row)[output] += sums[0];
}

constexpr int kSlabUnit = kTiles * kTileRows;
int slab_of(int n_pairs, int n_outputs) {
  const size_t of_output = size_t(n_pairs) * kLinearWarps * sizeof(float);
  const int most = int(std::min<size_t>(kPartsBytes / of_output / kSlabUnit * kSlabUnit, size_t{1} << 20));
  return std::clamp(most, kSlabUnit, (n_outputs + kSlabUnit - 1) / kSlabUnit * kSlabUnit);
}
size_t lists_bytes(int n_pairs) {
  return (size_t(kMostExperts + 1 + n_pairs) * sizeof(int32_t) + 15) / 16 * 16;
}

}  // namespace

bool CudaBackend::is_many_for_experts(int rows) { return rows > kFewRows; }

size_t CudaBackend::many_experts_bytes(int rows, int slots) {
  if (!is_many_for_experts(rows)) return 0;
  const int n_pairs = rows * slots;
  return lists_bytes(n_pairs) +
         std::max(kPartsBytes, size_t(n_pairs) * kLinearWarps * kSlabUnit * sizeof(float));
}

void CudaBackend::experts_of_many(const MoeExperts& a, const ActivationRows& x, const ExpertScratch& s,
                                  bool score_too) {
  const MoeWeights& w = a.weights;
  const bool shared = w.shared_down != nullptr;
  const int rows = a.x.rows, n_pairs = rows * s.slots, n_experts = w.gate_up->n_experts();
  TD_CHECK(n_experts <= kMostExperts, "%d experts, at most %d", n_experts, kMostExperts);
  auto* first = reinterpret_cast<int32_t*>(s.many);
  auto* parts = reinterpret_cast<float*>(s.many + lists_bytes(n_pairs));
  Experts experts{.routed = expert_part(w.gate_up),
                  .shared = expert_part(w.shared_gate_up),
                  .first = first,
                  .pairs = first + kMostExperts + 1,
                  .n_experts = n_experts,
                  .rows = rows,
                  .slots = s.slots,
                  .top_k = w.top_k};
  const auto* ids = static_cast<const int32_t*>(a.ids.data);
  card_->launch(sort_kernel, {unsigned(n_experts)}, kWarp, 0,
                SortArgs{ids, a.ids.stride, rows, w.top_k, s.slots, first, first + kMostExperts + 1});
  by_format(ours(*w.gate_up).parts[0].format, [&](auto format) {
    card_->launch(many_up_kernel<format()>,
                  {unsigned(s.inner_stride / kTileRows), unsigned(n_experts + (shared ? 1 + score_too : 0))},
                  kThreads, 0,
                  UpArgs{experts, score_too ? expert_part(w.shared_gate) : ExpertPart{}, x, s.inner,
                         s.inner_stride, s.score});
  });
  const CudaWeight& down = ours(*w.down);
  const View all{s.inner, DType::f32, n_pairs, int(s.inner_stride), s.inner_stride};
  const ActivationRows rounded =
      activation_rows(n_pairs, all.cols, down.takes_bf16(), down.takes_f16(), may_grow());
  round_rows(all, all.cols, rounded);
  experts.routed = expert_part(w.down);
  experts.shared = expert_part(w.shared_down);
  const int n_outputs = w.down->n(), slab = slab_of(n_pairs, n_outputs);
  for (int at = 0; at < n_outputs; at += slab) {
    const int outputs = std::min(slab, n_outputs - at);
    by_format(down.parts[0].format, [&](auto format) {
      card_->launch(many_down_kernel<format()>,
                    {unsigned((outputs + kSlabUnit - 1) / kSlabUnit), unsigned(n_experts + (shared ? 1 : 0))},
                    kThreads, 0, DownArgs{experts, rounded, at, slab, parts});
    });
    card_->launch(combine_kernel,
                  {unsigned((outputs + kCombineThreads - 1) / kCombineThreads), unsigned(rows)},
                  kCombineThreads, 0,
                  CombineArgs{parts, rows_of(a.choice_weights), s.score, w.top_k, s.slots, at, slab,
                              n_outputs, rows_of(a.residual)});
  }
}

}  // namespace tandem::cuda
