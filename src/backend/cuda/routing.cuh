// Which experts a row takes: the top_k highest logits, ties to the lower id, NaN lowest. One way of choosing
// for all who need it: a warp does it, so cheaply that every block may choose for itself.
#pragma once

#include "backend/cuda/step_table.cuh"

namespace tandem::cuda {

constexpr int kMaxTopK = 32, kMaxExperts = 512;

// A row's experts in ascending order.
struct Chosen {
  int ids[kMaxTopK];
  float weights[kMaxTopK];
};

// Where the choices of rows come from: their logits, or (logits.data null) ids and weights chosen before.
struct Choices {
  Rows logits;
  int n_experts, top_k;
  bool normalise;
  const int32_t* ids;
  int64_t ids_stride;
  Rows weights;
};

// Unsigned numbers in the order of the floats, all above 0; -0 as 0.
__device__ __forceinline__ uint32_t order_key(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float of_order_key(uint32_t key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

// By one warp, in rounds: each takes the highest logit left. Lane l has the logits of experts 32 i + l.
template <bool kWeights, int kPerLane>
__device__ __forceinline__ void choose_of(const Choices& c, int row, Chosen& out) {
  const int lane = lane_id();
  const float* logits = c.logits.row(row);
  float value[kPerLane];
  uint32_t left[kPerLane];  // keys; 0: none, or taken
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarp + lane;
    const float l = e < c.n_experts ? __ldcg(logits + e) : 0.0f;
    value[i] = l == l ? l : -INFINITY;
    left[i] = e < c.n_experts ? order_key(value[i]) : 0;
  }
  uint32_t taken = 0;  // bit i: of this lane's
  float mine = 0, highest = 0;
  for (int r = 0; r < c.top_k; ++r) {
    uint32_t best = left[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) best = max(best, left[i]);
    const uint32_t most = warp_max_bits(best);
    int own = kPerLane;  // the first of this lane's that has it
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) own = left[i] == most ? i : own;
    const uint32_t lanes = __ballot_sync(kAllLanes, own < kPerLane);
    bool wins = own < kPerLane;
    if ((lanes & (lanes - 1)) != 0) {  // a tie: the lowest id
      const uint32_t before = wins ? uint32_t(kMaxExperts - (own * kWarp + lane)) : 0u;
      const uint32_t lowest = warp_max_bits(before);  // by all lanes
      wins = wins && lowest == before;
    }
    if (wins) {
      taken |= 1u << own;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) left[i] = i == own ? 0 : left[i];
    }
    if (r == 0) highest = of_order_key(most);
    if (r == lane) mine = of_order_key(most);
  }
  float total = 0;
  if (kWeights) {
    if (c.normalise) {
      total = warp_sum(lane < c.top_k ? exp_(mine - highest) : 0.0f);
    } else {  // every 256th by one lane, then lanes, then groups of 32 ascending
      constexpr int kGroups = kMaxExperts / 2 / kWarp;
#pragma unroll
      for (int w = 0; w < kGroups && w < kPerLane; ++w) {
        float sum = 0;
#pragma unroll
        for (int i = w; i < kPerLane; i += kGroups) {
          if (i * kWarp + lane < c.n_experts) sum += exp_(value[i] - highest);
        }
        total += warp_sum(sum);
      }
    }
  }
  int before = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const bool is_taken = (taken >> i & 1) != 0;
    const uint32_t lanes = __ballot_sync(kAllLanes, is_taken);
    if (is_taken) {
      const int place = before + count_bits(lanes & ((1u << lane) - 1u));
      out.ids[place] = i * kWarp + lane;
      if (kWeights) out.weights[place] = exp_(value[i] - highest) / total;
    }
    before += count_bits(lanes);
  }
}

// By one warp: the choice of a row, into shared memory. Past the caches of a processor, so that it may come
// before wait_for_inputs() where what it reads is known to be complete.
template <bool kWeights>
__device__ __forceinline__ void choose(const Choices& c, int row, Chosen& out) {
  if (c.logits.data != nullptr) {
    if (c.n_experts <= kMaxExperts / 2) {
      choose_of<kWeights, kMaxExperts / 2 / kWarp>(c, row, out);
    } else {
      choose_of<kWeights, kMaxExperts / kWarp>(c, row, out);
    }
  } else if (const int lane = lane_id(); lane < c.top_k) {
    out.ids[lane] = __ldcg(c.ids + row * c.ids_stride + lane);
    if (kWeights) out.weights[lane] = __ldcg(c.weights.row(row) + lane);
  }
}

}  // namespace tandem::cuda
