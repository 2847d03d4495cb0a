// Softmax attention of a tile of queries over the KV pages, and how tokens are stored in them.
//
// Per query: pages in ascending order; in a page, scores (dimensions in ascending order, one fma each), then
// the running maximum, the weights, their sum, and values added in ascending position order. Splits of
// kSplitPages pages start afresh and are merged in ascending order. Which queries share a pass changes none
// of this.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/rowwise_impl.h"
#include "backend/cpu/vec_math.h"

namespace tandem::cpu::TD_ISA {

inline constexpr float kNoScore = -__builtin_inff();

inline void store_kv(const float* k, const float* v, int d_head, int slot, std::byte* head) {
  const PageLayout layout{d_head};
  auto* keys = reinterpret_cast<uint32_t*>(head) + slot;
  for (int d = 0; d < d_head; d += kLanes) {
    uint32_t pairs[kLanes / 2];
    store_bf16(reinterpret_cast<uint16_t*>(pairs), load_up_to(k + d, d_head - d));
    for (int i = 0; i < kLanes / 2 && d + 2 * i < d_head; ++i) keys[(d / 2 + i) * kPageTokens] = pairs[i];
  }
  auto* values = reinterpret_cast<uint16_t*>(head + layout.value_offset()) + slot * layout.value_stride();
  for (int d = 0; d < d_head; d += kLanes) store_bf16(values + d, load_up_to(v + d, d_head - d));
}

// The running state of one query: sums [value_stride], highest score, sum of weights.
struct QueryState {
  float* sums;
  float* highest;
  float* total;
};
inline QueryState query_state(float* at, int d_head) {
  const int stride = round_up(d_head, 16);
  return {at, at + stride, at + stride + 1};
}

// a <- a and b together; a holds the splits before b's.
inline void merge(const QueryState& a, const float* b, int d_head) {
  const int stride = round_up(d_head, 16);
  const float high_b = b[stride], total_b = b[stride + 1];
  if (high_b == kNoScore) return;  // the query sees no key there
  const float high = *a.highest > high_b ? *a.highest : high_b;
  const float scale_a = first_lane(exp(set1(*a.highest - high)));
  const float scale_b = first_lane(exp(set1(high_b - high)));
  for (int d = 0; d < stride; d += kLanes) {
    store(a.sums + d, fma(load(b + d), set1(scale_b), load(a.sums + d) * set1(scale_a)));
  }
  *a.total = __builtin_fmaf(total_b, scale_b, *a.total * scale_a);
  *a.highest = high;
}

inline void finish(const QueryState& a, const float* gate, int d_head, float* out) {
  const Vec inv = set1(1.0f / *a.total);
  for (int d = 0; d < d_head; d += kLanes) {
    Vec y = load(a.sums + d) * inv;
    if (gate != nullptr) y = y * sigmoid(load_up_to(gate + d, d_head - d));
    store_up_to(out + d, y, d_head - d);
  }
}

// scores[i][j] = q_i . k_j for the first n_vecs * 16 keys of a page.
template <int Q, int N>
inline void page_scores(const float* const* q, const uint32_t* keys, int d_head, int first_key,
                        float* scores) {
  Vec acc[Q][N];
  for (int i = 0; i < Q; ++i) {
    for (int n = 0; n < N; ++n) acc[i][n] = zero();
  }
  for (int d = 0; d < d_head; d += 2) {
    Vec even[N], odd[N];
    for (int n = 0; n < N; ++n)
      load_bf16_pairs(keys + (d / 2) * kPageTokens + first_key + n * kLanes, even[n], odd[n]);
    for (int i = 0; i < Q; ++i) {
      const Vec a = set1(q[i][d]), b = set1(q[i][d + 1]);
      for (int n = 0; n < N; ++n) acc[i][n] = fma(b, odd[n], fma(a, even[n], acc[i][n]));
    }
  }
  for (int i = 0; i < Q; ++i) {
    for (int n = 0; n < N; ++n) store(scores + i * kPageTokens + first_key + n * kLanes, acc[i][n]);
  }
}

// Scores of the keys [first, n_valid) -> weights in place; returns the factor of what was summed before.
inline float page_softmax(float* scores, int first, int n_valid, float scale, const QueryState& state) {
  for (int j = 0; j < first; ++j) scores[j] = kNoScore;
  constexpr int kVecs = kPageTokens / kLanes;
  Vec s[kVecs];
  Vec top = set1(kNoScore);
  for (int n = 0; n < kVecs; ++n) {
    s[n] = keep_first(load(scores + n * kLanes) * set1(scale), n_valid - n * kLanes, kNoScore);
    top = max(top, s[n]);
  }
  const float page_top = max_lane(top);
  const float high = *state.highest > page_top ? *state.highest : page_top;
  Vec total = zero();
  for (int n = 0; n < kVecs; ++n) {
    s[n] = keep_first(exp(s[n] - set1(high)), n_valid - n * kLanes, 0.0f);
    store(scores + n * kLanes, s[n]);
    total = total + s[n];
  }
  const float correction = first_lane(exp(set1(*state.highest - high)));
  *state.total = __builtin_fmaf(*state.total, correction, sum(total));
  *state.highest = high;
  return correction;
}

// sums_i = sums_i * correction_i + weights_i . values, for 16 N dimensions from d on. value(i, j): the values
// of the page's key j for query i, the same for all of them where j < shared.
template <int Q, int N, class Value>
inline void page_values(const QueryState* states, const float* corrections, const float* weights,
                        const int* n_valid, int shared, const Value& value, int d) {
  Vec acc[Q][N];
  for (int i = 0; i < Q; ++i) {
    for (int n = 0; n < N; ++n) acc[i][n] = load(states[i].sums + d + n * kLanes) * set1(corrections[i]);
  }
  for (int j = 0; j < shared; ++j) {
    Vec v[N];
    for (int n = 0; n < N; ++n) v[n] = load_bf16(value(0, j) + d + n * kLanes);
    for (int i = 0; i < Q; ++i) {
      const Vec w = set1(weights[i * kPageTokens + j]);
      for (int n = 0; n < N; ++n) acc[i][n] = fma(w, v[n], acc[i][n]);
    }
  }
  for (int i = 0; i < Q; ++i) {  // keys that only some of the queries see
    for (int j = shared; j < n_valid[i]; ++j) {
      const Vec w = set1(weights[i * kPageTokens + j]);
      for (int n = 0; n < N; ++n) {
        acc[i][n] = fma(w, load_bf16(value(i, j) + d + n * kLanes), acc[i][n]);
      }
    }
    for (int n = 0; n < N; ++n) store(states[i].sums + d + n * kLanes, acc[i][n]);
  }
}

// The scores of a page -> the queries' running states.
template <int Q, class Value>
inline void add_page(const AttentionTile& t, const QueryState* states, float* scores, const int* n_before,
                     const int* n_valid, int shared, const Value& value) {
  constexpr int kStep = kGemmVecs * kLanes;
  const int stride = PageLayout{t.d_head}.value_stride();
  float corrections[Q];
  for (int i = 0; i < Q; ++i) {
    corrections[i] = page_softmax(scores + i * kPageTokens, n_before[i], n_valid[i], t.scale, states[i]);
  }
  int d = 0;
  for (; d + kStep <= stride; d += kStep) {
    page_values<Q, kGemmVecs>(states, corrections, scores, n_valid, shared, value, d);
  }
  for (; d < stride; d += kLanes) {
    page_values<Q, 1>(states, corrections, scores, n_valid, shared, value, d);
  }
}

// Queries [first, first + Q) of a tile over one page, keys [n_before[i], n_valid[i]) of it; n_valid in 1 ..
// kPageTokens.
template <int Q>
inline void page_block(const AttentionTile& t, int first, const std::byte* head, const int* n_before,
                       const int* n_valid, float* work) {
  const PageLayout layout{t.d_head};
  const auto* keys = reinterpret_cast<const uint32_t*>(head);
  const auto* values = reinterpret_cast<const uint16_t*>(head + layout.value_offset());
  const int stride = layout.value_stride();
  alignas(64) float scores[Q * kPageTokens];
  QueryState states[Q];
  int most = 0, shared = kPageTokens;
  for (int i = 0; i < Q; ++i) {
    states[i] = query_state(work + (first + i) * partial_floats(t.d_head), t.d_head);
    if (n_valid[i] > most) most = n_valid[i];
    if (n_valid[i] < shared) shared = n_valid[i];
  }
  constexpr int kStep = kGemmVecs * kLanes;
  for (int key = 0; key < most; key += kStep)
    page_scores<Q, kGemmVecs>(t.q + first, keys, t.d_head, key, scores);
  add_page<Q>(t, states, scores, n_before, n_valid, shared, [=](int, int j) { return values + j * stride; });
}

// As page_block, on a page with positions of a tree's rows. Keys lie by row, in this page and the next; each
// query takes those of its path in position order, so that every key has the lane and the turn that it has in
// a chain.
template <int Q>
inline void path_block(const AttentionTile& t, int first, int page, const int* n_before, const int* n_valid,
                       float* work) {
  const PageLayout layout{t.d_head};
  const int origin = page * kPageTokens;
  uint8_t place[Q][kPageTokens];  // where the keys of the page's positions lie, from origin on
  QueryState states[Q];
  int end = 0;               // of the places
  int shared = kPageTokens;  // leading positions whose keys all queries have in common
  for (int i = 0; i < Q; ++i) {
    states[i] = query_state(work + (first + i) * partial_floats(t.d_head), t.d_head);
    int position = t.n_keys[first + i] - 1 - origin, row = t.row[first + i];
    for (; position >= 0 && row >= 0; --position, row = t.parents[row]) {
      if (position < kPageTokens) place[i][position] = uint8_t(t.start + row - origin);
    }
    for (; position >= 0; --position) place[i][position] = uint8_t(position);
    if (place[i][n_valid[i] - 1] >= end) end = place[i][n_valid[i] - 1] + 1;
    if (n_valid[i] < shared) shared = n_valid[i];
  }
  for (int i = 1; i < Q; ++i) {
    int same = 0;
    while (same < shared && place[i][same] == place[0][same]) ++same;
    shared = same;
  }
  alignas(64) float by_place[2][Q * kPageTokens], scores[Q * kPageTokens];
  const std::byte* heads[2] = {};
  for (int k = 0; k * kPageTokens < end; ++k) {
    heads[k] = t.head_in_pages + size_t(t.pages[page + k]) * t.page_bytes;
    const auto* keys = reinterpret_cast<const uint32_t*>(heads[k]);
    for (int key = 0; key < kPageTokens && k * kPageTokens + key < end; key += kGemmVecs * kLanes) {
      page_scores<Q, kGemmVecs>(t.q + first, keys, t.d_head, key, by_place[k]);
    }
  }
  for (int i = 0; i < Q; ++i) {
    for (int j = 0; j < n_valid[i]; ++j) {
      scores[i * kPageTokens + j] =
          by_place[place[i][j] / kPageTokens][i * kPageTokens + place[i][j] % kPageTokens];
    }
  }
  add_page<Q>(t, states, scores, n_before, n_valid, shared, [&](int i, int j) {
    return reinterpret_cast<const uint16_t*>(heads[place[i][j] / kPageTokens] + layout.value_offset()) +
           place[i][j] % kPageTokens * layout.value_stride();
  });
}

// Whether query i sees a key of this page.
inline bool sees(const AttentionTile& t, int i, int page) {
  return t.n_keys[i] > page * kPageTokens && t.first_key[i] < (page + 1) * kPageTokens;
}

// Runs every query of the tile that sees this page.
inline void attend_page(const AttentionTile& t, int page, float* work) {
  const std::byte* head = t.head_in_pages + size_t(t.pages[page]) * t.page_bytes;
  const bool of_tree = t.parents != nullptr && (page + 1) * kPageTokens > t.start;
  int n_before[kMaxTileQueries], n_valid[kMaxTileQueries];
  int first = 0;
  while (first < t.n_queries) {
    int n = 0;
    for (; first + n < t.n_queries && sees(t, first + n, page); ++n) {
      const int seen = t.n_keys[first + n] - page * kPageTokens;
      const int before = t.first_key[first + n] - page * kPageTokens;
      n_valid[n] = seen < kPageTokens ? seen : kPageTokens;
      n_before[n] = before > 0 ? before : 0;
    }
    const auto block = [&]<int Q>(int at) {
      if (of_tree) {
        path_block<Q>(t, first + at, page, n_before + at, n_valid + at, work);
      } else {
        page_block<Q>(t, first + at, head, n_before + at, n_valid + at, work);
      }
    };
    int done = 0;
    for (; done + kQueryBlock <= n; done += kQueryBlock) block.template operator()<kQueryBlock>(done);
    if constexpr (kQueryBlock > 4) {
      for (; done + 4 <= n; done += 4) block.template operator()<4>(done);
    }
    for (; done + 2 <= n; done += 2) block.template operator()<2>(done);
    for (; done < n; ++done) block.template operator()<1>(done);
    first += n + 1;  // the next one, if any, does not see this page
  }
}

inline void attention(const AttentionTile& t) {
  const int stride = partial_floats(t.d_head);
  float* total = t.work;                               // of all splits so far
  float* current = t.work + kMaxTileQueries * stride;  // of this split
  for (int s = 0; s < t.n_splits; ++s) {
    const int first_page = (t.first_split + s) * kSplitPages;
    float* work = s == 0 ? total : current;
    int n_keys = 0, first_key = t.first_key[0];
    for (int i = 0; i < t.n_queries; ++i) {
      if (t.n_keys[i] > n_keys) n_keys = t.n_keys[i];
      if (t.first_key[i] < first_key) first_key = t.first_key[i];
      const QueryState state = query_state(work + i * stride, t.d_head);
      for (int d = 0; d < round_up(t.d_head, 16); d += kLanes) store(state.sums + d, zero());
      *state.highest = kNoScore;
      *state.total = 0;
    }
    const int n_pages = (n_keys + kPageTokens - 1) / kPageTokens;
    for (int page = first_page; page < first_page + kSplitPages && page < n_pages; ++page) {
      if (first_key < (page + 1) * kPageTokens) attend_page(t, page, work);
    }
    if (s == 0) continue;
    for (int i = 0; i < t.n_queries; ++i) {
      if (t.n_keys[i] > first_page * kPageTokens) {
        merge(query_state(total + i * stride, t.d_head), current + i * stride, t.d_head);
      }
    }
  }
  for (int i = 0; i < t.n_queries; ++i) {
    if (t.partial != nullptr) {
      __builtin_memcpy(t.partial + i * t.partial_stride, total + i * stride, size_t(stride) * sizeof(float));
    } else {
      finish(query_state(total + i * stride, t.d_head), t.gate[i], t.d_head, t.out[i]);
    }
  }
}

inline void attention_merge(const AttentionMerge& m) {
  const QueryState state = query_state(m.partials, m.d_head);
  for (int s = 1; s < m.n; ++s) merge(state, m.partials + s * m.stride, m.d_head);
  finish(state, m.gate, m.d_head, m.out);
}

}  // namespace tandem::cpu::TD_ISA
