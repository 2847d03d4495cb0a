// Softmax attention of the rows of a decode step over one chunk of keys and values of one KV head.
//
// What bounds it is memory, so a block asks for keys and values as early and as many as its registers hold,
// and sums while they come: keys of a tile of 128 places, 16 to a warp; values of the same places, some of
// the dimensions to a warp. Where a tile was written by earlier steps, it asks before the kernel ahead has
// ended.
//
// A tile of the tensor cores has 8 queries: rows 0 to 7 the bf16 nearest to what they multiply with, rows 8
// to 15 the bf16 nearest to the rest, so that nothing is lost that fp32 sums would keep; sums of the two are
// added at the end. Weights stay in registers of the warp whose keys they belong to until they are split, and
// then go to the warps that have the values.
//
// Queries of one KV head of a sequence are numbered row * group + head in the group. What a query sums in
// which order follows from its own range of keys: other queries of a tile change nothing, and keys that it
// does not see have weight zero.
//
// In a tree, keys from `start` on are another set for every row. Scores of all rows of the step are computed,
// and those on a row's path put where a chain has them. Values of steps of 16 keys that reach beyond `start`
// are gathered row by row, again to where a chain has them.
#pragma once

#include <type_traits>

#include "backend/cuda/attend.cuh"

namespace tandem::cuda {

constexpr int kRowsWarps = 8, kRowsThreads = kRowsWarps * kWarp;
constexpr int kRowsTileKeys = 16 * kRowsWarps;
constexpr int kRowsSteps = kRowsTileKeys / 16;  // of values

// kTiles: of 8 queries. kTrees: whether sequences may be trees.
template <int kGroups, int kTiles, bool kTrees>
struct AttendRows {
  static constexpr int kDims = kGroups * 32, kQueries = kTiles * 8;
  static constexpr int kBlocks = kDims / 16;                                      // of 16 dimensions
  static constexpr int kMine = kBlocks <= kRowsWarps ? 1 : kBlocks / kRowsWarps;  // of a warp
  // Blocks on a processor, and what is on its way: 32 dimensions of keys, blocks of values.
  static constexpr int kBlocksAtOnce = !kTrees && kTiles <= (kGroups <= 4 ? 4 : 2) ? 2 : 1;
  static constexpr int kKeysAhead = kGroups < 4 ? kGroups : 4;
  static constexpr int values_ahead() {  // steps
    if (kTiles == 1) return 8 / kMine;
    if (kBlocksAtOnce == 2) return (kTiles == 2 ? 4 : 2) / kMine;
    return (kTrees && kTiles == 6 ? 4 : 8) / kMine;
  }
  static constexpr int kValuesAhead = values_ahead();

  static constexpr int kStaged = 15 + kMaxDecodeRows, kStagedStride = kDims + 8;
  struct NoTree {};
  struct IsTree {
    float scores[kQueries * kMaxDecodeRows];         // [query][depth]
    uint32_t sees[kMaxDecodeRows];                   // rows on the path to a row, itself included
    uint8_t path[kMaxDecodeRows * kMaxDecodeRows];   // [row][depth]
    uint16_t values[(kStaged + 1) * kStagedStride];  // [place][dims]; the last: zeros
  };
  struct Shared {
    uint4 q[kTiles * kGroups * 2 * kWarp];       // A operands: [tile][32 dims][step][lane]
    uint4 weights[kTiles * kRowsSteps * kWarp];  // likewise: [tile][16 keys][lane]
    float highest[kQueries * kRowsWarps];        // of the warp's keys of the tile
    float total[kTiles * kRowsThreads];          // of query lane / 4 and the thread's keys
    int first[kQueries], end[kQueries];          // keys a query sees
    std::conditional_t<kTrees, IsTree, NoTree> tree;
  };

  const AttendArgs& a;
  const SeqEntry& seq;
  Shared& shared;
  const int kv_head, group, first_query, n_queries, written;
  const bool is_tree;
  const int page_elements;
  // This lane's part of page 0: of the keys of the warp's places; of the values' dimensions of the warp.
  const uint16_t *my_keys, *my_values;
  float sums[kMine][2][kTiles][4] = {};  // [block of 16 dims][half of it][tile]
  float highest[kTiles];                 // of query lane / 4
  uint4 keys[kKeysAhead][2];             // [32 dims][8 keys]
  uint4 values[kValuesAhead][kMine];

  __device__ __forceinline__ AttendRows(const AttendArgs& args, const SeqEntry& sequence, int first)
      : a(args),
        seq(sequence),
        shared(*reinterpret_cast<Shared*>(shared_memory())),
        kv_head(int(blockIdx.y)),
        group(args.n_heads / args.n_kv_heads),
        first_query(first),
        n_queries(sequence.n_rows * group),
        written(sequence.start + sequence.n_rows),
        is_tree(kTrees && sequence.is_tree != 0),
        page_elements(int(args.cache.page_bytes / sizeof(uint16_t))),
        my_keys(args.cache.head(0, kv_head) + warp_id() * 16 % kPageTokens * kDims + lane_id() * 8),
        my_values(args.cache.head(0, kv_head) + kPageTokens * kDims + warp_id() * 256 + lane_id() * 8) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      highest[i] = kNoScore;
      shared.total[i * kRowsThreads + int(threadIdx.x)] = 0;
    }
  }

  // Keys that any of the queries sees.
  __device__ __forceinline__ Keys range() const {
    if (first_query >= n_queries) return {0, 0};
    if (is_tree) return {a.window > 0 ? max(0, seq.start - a.window + 1) : 0, written};
    return {keys_of(a, seq, first_query / group).first,
            keys_of(a, seq, (min(first_query + kQueries, n_queries) - 1) / group).end};
  }

  __device__ __forceinline__ const uint16_t* page_head(int place) const {
    return a.cache.head(a.table.pages[seq.first_page + place / kPageTokens], kv_head);
  }

  // A tile of keys at [begin, end), and the pages of its first and its last places.
  struct Tile {
    int begin, end;
    int pages[2];
  };
  __device__ __forceinline__ Tile tile_at(int begin, int end) const {
    static_assert(kRowsTileKeys == 2 * kPageTokens);
    Tile tile{begin, min(end, begin + kRowsTileKeys), {0, 0}};
    if (begin >= end) return tile;
    const int32_t* pages = a.table.pages + seq.first_page + begin / kPageTokens;
    tile.pages[0] = pages[0];
    tile.pages[1] = begin + kPageTokens < end ? pages[1] : 0;
    return tile;
  }
  // Whether the warp's 16 places hold any keys of a chain.
  __device__ __forceinline__ bool has_keys(const Tile& tile) const {
    return tile.begin + warp_id() * 16 < min(tile.end, is_tree ? seq.start : written);
  }
  // Steps of values that lie as a chain has them.
  __device__ __forceinline__ int n_plain(const Tile& tile) const {
    const int n = (tile.end - tile.begin + 15) / 16;
    return is_tree ? min(n, max(seq.start - tile.begin, 0) / 16) : n;
  }

  __device__ __forceinline__ bool has_values() const { return kBlocks >= kRowsWarps || warp_id() < kBlocks; }
  __device__ __forceinline__ void load_keys(const Tile& tile, int dims) {
    const uint16_t* from =
        my_keys + int64_t((warp_id() < kRowsWarps / 2 ? tile.pages[0] : tile.pages[1])) * page_elements;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      keys[dims % kKeysAhead][n] = stream_load(from + (n * kGroups + dims) * 256);
    }
  }
  __device__ __forceinline__ void load_values(const Tile& tile, int step) {
    constexpr int kOfPage = kPageTokens / 16;
    const uint16_t* from = my_values + int64_t(tile.pages[step / kOfPage]) * page_elements;
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
      values[step % kValuesAhead][m] = stream_load(from + (step % kOfPage * kBlocks + m * kRowsWarps) * 256);
    }
  }
  __device__ __forceinline__ void start_keys(const Tile& tile) {
    if (!has_keys(tile)) return;
#pragma unroll
    for (int dims = 0; dims < kKeysAhead; ++dims) load_keys(tile, dims);
  }
  __device__ __forceinline__ void start_values(const Tile& tile) {
    if (!has_values()) return;
    const int n = n_plain(tile);
#pragma unroll
    for (int step = 0; step < kValuesAhead; ++step) {
      if (step < n) load_values(tile, step);
    }
  }

  // Lets keys and values of the tile's pages come nearer.
  __device__ __forceinline__ void prefetch_tile(const Tile& tile) const {
    constexpr int kLineElements = 64;
    for (int page = tile.begin; page < tile.end; page += kPageTokens) {
      const uint16_t* head = page_head(page);
      for (int i = int(threadIdx.x); i < 2 * kDims; i += kRowsThreads) prefetch(head + i * kLineElements);
    }
  }

  // Four dimensions of query i from `dim` on, 0 beyond the head.
  __device__ __forceinline__ float4 query(int i, int dim) const {
    const int q = first_query + i;
    float4 x = make_float4(0, 0, 0, 0);
    if (q >= n_queries || dim >= a.d) return x;
    const float* from = a.q.row(seq.first_row + q / group) + (kv_head * group + q % group) * a.d + dim;
    if (a.q_aligned != 0) return *reinterpret_cast<const float4*>(from);
    x.x = from[0];
    if (dim + 1 < a.d) x.y = from[1];
    if (dim + 2 < a.d) x.z = from[2];
    if (dim + 3 < a.d) x.w = from[3];
    return x;
  }

  __device__ __forceinline__ void load_queries() {
    constexpr int kItems = kTiles * kGroups * 2 * kWarp, kAtOnce = kTiles == 1 ? 2 : 4;
#pragma unroll 1
    for (int first = int(threadIdx.x); first < kItems; first += kAtOnce * kRowsThreads) {
      float4 x[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int i = first + u * kRowsThreads, lane = i % kWarp, step = i / kWarp % 2, of = i / kWarp / 2;
        x[u] = i < kItems ? query(of / kGroups * 8 + lane / 4, of % kGroups * 32 + lane % 4 * 8 + step * 4)
                          : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (first + u * kRowsThreads >= kItems) break;
        uint4 terms;
        split_pair(x[u].x, x[u].y, terms.x, terms.y);
        split_pair(x[u].z, x[u].w, terms.z, terms.w);
        shared.q[first + u * kRowsThreads] = terms;
      }
    }
  }

  // What is known without waiting.
  __device__ __forceinline__ void load_ranges() {
    for (int i = int(threadIdx.x); i < kQueries; i += kRowsThreads) {
      const int q = first_query + i;
      const Keys seen = q < n_queries ? keys_of(a, seq, q / group) : Keys{0, 0};
      shared.first[i] = seen.first;
      shared.end[i] = seen.end;
    }
    if constexpr (kTrees) {
      const int t = int(threadIdx.x);
      if (!is_tree || t >= seq.n_rows) return;
      uint32_t sees = 0;
      for (int row = t; row >= 0; row = seq.parents[row]) {
        sees |= 1u << row;
        shared.tree.path[t * kMaxDecodeRows + seq.depth[row]] = uint8_t(row);
      }
      shared.tree.sees[t] = sees;
    }
  }

  __device__ __forceinline__ void query_of(int tile, int dims, int step, uint32_t (&operand)[4]) const {
    const uint4 q = shared.q[((tile * kGroups + dims) * 2 + step) * kWarp + lane_id()];
    operand[0] = q.x;
    operand[1] = q.y;
    operand[2] = q.z;
    operand[3] = q.w;
  }

  // Products of query lane / 4 of each tile of queries with the lane's four keys of `tile`, the first
  // dimensions of which are on their way. A key's sums are the same whichever of the 16 it is, and whether of
  // a chain or of a tree.
  __device__ __forceinline__ void products(const Tile& tile, float (&score)[kTiles][4]) {
    float s[kTiles][2][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n) s[i][n][0] = s[i][n][1] = s[i][n][2] = s[i][n][3] = 0;
    }
    if (has_keys(tile)) {
#pragma unroll
      for (int dims = 0; dims < kGroups; ++dims) {
        const uint4 now[2] = {keys[dims % kKeysAhead][0], keys[dims % kKeysAhead][1]};
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            uint32_t q[4];
            query_of(i, dims, step, q);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              mma_bf16(s[i][n], q, step == 0 ? now[n].x : now[n].z, step == 0 ? now[n].y : now[n].w);
            }
          }
        }
        if (dims + kKeysAhead < kGroups) load_keys(tile, dims + kKeysAhead);
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) score[i][e] = s[i][e / 2][e % 2] + s[i][e / 2][e % 2 + 2];
    }
  }

  // Scores of 8 rows of a tree by their depth, for the rows whose path they are on.
  __device__ __forceinline__ void scores_of_tree(int first_row) {
    const int g = lane_id() / 4, t = lane_id() % 4, place = seq.start + min(first_row + g, seq.n_rows - 1);
    const uint16_t* from = page_head(place) + key_index(kDims, place % kPageTokens, t * 8);
    uint4 k[kGroups];
#pragma unroll
    for (int dims = 0; dims < kGroups; ++dims) k[dims] = stream_load(from + dims * 256);
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      float s[4] = {};
#pragma unroll
      for (int dims = 0; dims < kGroups; ++dims) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          uint32_t q[4];
          query_of(tile, dims, step, q);
          mma_bf16(s, q, step == 0 ? k[dims].x : k[dims].z, step == 0 ? k[dims].y : k[dims].w);
        }
      }
      const int query = tile * 8 + g, q = first_query + query;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = first_row + 2 * t + e;
        if (q >= n_queries || (shared.tree.sees[q / group] >> row & 1) == 0) continue;
        shared.tree.scores[query * kMaxDecodeRows + seq.depth[row]] = s[e] + s[e + 2];
      }
    }
  }

  // Products -> scaled scores of the keys that a query sees, kNoScore else; the highest of the warp's.
  __device__ __forceinline__ void scores(const Tile& tile, float (&score)[kTiles][4]) const {
    const int g = lane_id() / 4, t = lane_id() % 4, first_key = tile.begin + warp_id() * 16 + 2 * t;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int first = shared.first[i * 8 + g], end = shared.end[i * 8 + g];
      float top = kNoScore;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first_key + e / 2 * 8 + e % 2;
        float x = score[i][e];
        if constexpr (kTrees) {
          if (is_tree && key >= seq.start && key < end) {
            x = shared.tree.scores[(i * 8 + g) * kMaxDecodeRows + key - seq.start];
          }
        }
        score[i][e] = key >= first && key < end ? x * a.scale : kNoScore;
        top = fmaxf(top, score[i][e]);
      }
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      if (t == 0) shared.highest[(i * 8 + g) * kRowsWarps + warp_id()] = top;
    }
  }

  // Scores -> weights, by the highest score so far; what was summed before becomes that much less.
  __device__ __forceinline__ void weigh(const float (&score)[kTiles][4]) {
    const int g = lane_id() / 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const auto* of_warps = reinterpret_cast<const float4*>(shared.highest + (i * 8 + g) * kRowsWarps);
      static_assert(kRowsWarps == 8);
      const float4 x = of_warps[0], y = of_warps[1];
      const float tops =
          fmaxf(fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)), fmaxf(fmaxf(y.x, y.y), fmaxf(y.z, y.w)));
      const float before = highest[i], high = fmaxf(before, tops);
      const float factor = before == high ? 1.0f : exp_(before - high);
      highest[i] = high;
      float weight[4], sum = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        weight[e] = score[i][e] == kNoScore ? 0.0f : exp_(score[i][e] - high);
        sum += weight[e];
      }
      float& total = shared.total[i * kRowsThreads + int(threadIdx.x)];
      total = fmaf(total, factor, sum);
      uint4 terms;
      split_pair(weight[0], weight[1], terms.x, terms.y);
      split_pair(weight[2], weight[3], terms.z, terms.w);
      shared.weights[(i * kRowsSteps + warp_id()) * kWarp + lane_id()] = terms;
      if (__ballot_sync(kAllLanes, factor != 1.0f) == 0) continue;
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[m][half][i][e] *= factor;
        }
      }
    }
  }

  __device__ __forceinline__ void weights_of(int tile, int step, uint32_t (&operand)[4]) const {
    const uint4 w = shared.weights[(tile * kRowsSteps + step) * kWarp + lane_id()];
    operand[0] = w.x;
    operand[1] = w.y;
    operand[2] = w.z;
    operand[3] = w.w;
  }

  // The plain steps of `tile`, the first of which are on their way; those of `next` are so afterwards. Places
  // from `written` on hold anything.
  __device__ __forceinline__ void add_values(const Tile& tile, const Tile& next) {
    if (!has_values()) return;
    const int n_steps = n_plain(tile), n_next = n_plain(next);
#pragma unroll
    for (int step = 0; step < kRowsSteps; ++step) {
      if (step < n_steps) {
        uint4 v[kMine];
#pragma unroll
        for (int m = 0; m < kMine; ++m) v[m] = values[step % kValuesAhead][m];
        if (step + kValuesAhead < kRowsSteps && step + kValuesAhead < n_steps) {
          load_values(tile, (step + kValuesAhead) % kRowsSteps);
        }
        if (const int n = written - (tile.begin + step * 16); n < 16) {
          const int low = n - lane_id() % 4 * 2;
#pragma unroll
          for (int m = 0; m < kMine; ++m) {
            v[m].x = first_of_pair(v[m].x, low);
            v[m].y = first_of_pair(v[m].y, low - 8);
            v[m].z = first_of_pair(v[m].z, low);
            v[m].w = first_of_pair(v[m].w, low - 8);
          }
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          uint32_t weights[4];
          weights_of(i, step, weights);
#pragma unroll
          for (int m = 0; m < kMine; ++m) {
            mma_bf16(sums[m][0][i], weights, v[m].x, v[m].y);
            mma_bf16(sums[m][1][i], weights, v[m].z, v[m].w);
          }
        }
      }
      constexpr int kLeft = kRowsSteps - kValuesAhead;
      if (step >= kLeft && step - kLeft < n_next) load_values(next, step - kLeft);
    }
  }

  // The warp's dimensions of the places that steps of a tree may ask for, as they lie: from the last multiple
  // of 16 up to `start` on; and zeros.
  __device__ __forceinline__ void stage_values() {
    if (!has_values()) return;
    const int base = seq.start / 16 * 16;
    for (int m = 0; m < kMine; m += 2) {
      if (kMine == 1 && lane_id() >= 16) return;
      const int dim = (warp_id() + (m + lane_id() / 16) * kRowsWarps) * 16 + lane_id() % 16;
      uint16_t* to = shared.tree.values + dim;
#pragma unroll 4
      for (int place = base; place < written; ++place) {
        to[(place - base) * kStagedStride] = page_head(place)[value_index(kDims, place % kPageTokens, dim)];
      }
      to[kStaged * kStagedStride] = 0;
    }
  }

  // Where the value lies that row t sees at `position`.
  __device__ __forceinline__ const uint16_t* staged(int t, int position) const {
    int at = position - seq.start / 16 * 16;
    if (const int depth = position - seq.start; depth >= 0) {
      const int row = depth > int(seq.depth[t]) ? -1 : int(shared.tree.path[t * kMaxDecodeRows + depth]);
      at = row < 0 ? kStaged : seq.start % 16 + row;
    }
    return shared.tree.values + at * kStagedStride;
  }

  // A step of a tree, where every row has its own values.
  __device__ __forceinline__ void add_values_of_tree(int tile_begin, int step) {
    if (!has_values()) return;
    const int g = lane_id() / 4, position = tile_begin + step * 16 + lane_id() % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int q = first_query + i * 8;
      if (q >= n_queries) break;
      uint32_t weights[4];
      weights_of(i, step, weights);
#pragma unroll 1
      for (int t = q / group; t <= min(q + 7, n_queries - 1) / group; ++t) {
        const bool is_mine = (q + g) / group == t;
        const uint16_t* const of_key[4] = {staged(t, position), staged(t, position + 1),
                                           staged(t, position + 8), staged(t, position + 9)};
#pragma unroll
        for (int m = 0; m < kMine; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int dim = (warp_id() + m * kRowsWarps) * 16 + half * 8 + g;
            const uint32_t b0 = of_key[0][dim] | uint32_t(of_key[1][dim]) << 16;
            const uint32_t b1 = of_key[2][dim] | uint32_t(of_key[3][dim]) << 16;
            float(&sum)[4] = sums[m][half][i];
            float of_row[4] = {sum[0], sum[1], sum[2], sum[3]};
            mma_bf16(of_row, weights, b0, b1);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[e] = is_mine ? of_row[e] : sum[e];
          }
        }
      }
    }
  }

  // The tile, whose first keys and values are on their way; those of `next` are so afterwards.
  __device__ __forceinline__ void add_tile(const Tile& tile, const Tile& next) {
    const int n_steps = (tile.end - tile.begin + 15) / 16;
    float score[kTiles][4];
    products(tile, score);
    start_keys(next);
    if constexpr (kTrees) {
      if (is_tree && n_plain(tile) < n_steps) {
        if (warp_id() * 8 < seq.n_rows) scores_of_tree(warp_id() * 8);
        stage_values();
        __syncthreads();
      }
    }
    scores(tile, score);
    __syncthreads();  // and weights of the tile before are no longer needed
    weigh(score);
    __syncthreads();
    add_values(tile, next);
    if constexpr (kTrees) {
      for (int step = n_plain(tile); step < n_steps; ++step) add_values_of_tree(tile.begin, step);
    }
  }

  __device__ __forceinline__ void store(int chunk) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      float& of_thread = shared.total[i * kRowsThreads + int(threadIdx.x)];
      float total = of_thread;
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      of_thread = total;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int q = first_query + i * 8 + g;
      if (q >= n_queries) continue;
      float* partial = partial_of(a, seq.first_row + q / group, kv_head * group + q % group, chunk);
      if (warp_id() == 0 && t == 0) {
        float sum = 0;
        for (int w = 0; w < kRowsWarps; ++w) sum += shared.total[i * kRowsThreads + w * kWarp + lane_id()];
        *reinterpret_cast<float2*>(partial + kDims) = make_float2(highest[i], sum);
      }
      if (!has_values()) continue;
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float(&x)[4] = sums[m][half][i];
          *reinterpret_cast<float2*>(partial + (warp_id() + m * kRowsWarps) * 16 + half * 8 + 2 * t) =
              make_float2(x[0] + x[2], x[1] + x[3]);
        }
      }
    }
  }
};

}  // namespace tandem::cuda
