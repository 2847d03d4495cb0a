// Softmax attention of a tile of queries of a prefill over the keys and values of one KV head.
//
// Queries of one KV head of a sequence are numbered row * group + head in the group; a tile is kTiles times
// 16 of them. Keys go by kTileKeys at absolute multiples, in ascending order, each time in three passes:
//   scores    a warp takes 32 keys and all queries;  q as the sum of two bf16, so that it loses nothing that
//             fp32 sums would keep
//   softmax   a warp takes a query: running maximum, weights, their sum; a weight is the sum of two bf16
//   values    a warp takes 16 or 32 dimensions and all queries
// What a query sums in which order follows from its own range of keys: other rows of a tile change nothing,
// and keys that a query does not see have weight zero.
#pragma once

#include "backend/cuda/attend.cuh"

namespace tandem::cuda {

constexpr int kAttendWarps = 8, kAttendThreads = kAttendWarps * kWarp;
constexpr int kTileKeys = 256;  // 32 a warp
constexpr int kScoreStride = kTileKeys + 8;

template <int kGroups, int kTiles>
struct AttendTile {
  static constexpr int kDims = kGroups * 32, kQueries = kTiles * 16;
  static constexpr int kBlocks = kDims / 16;                                          // of 16 dimensions
  static constexpr int kMine = kBlocks <= kAttendWarps ? 1 : kBlocks / kAttendWarps;  // of a warp
  static constexpr int kAhead = 4;                                                    // steps of values
  static_assert(kTileKeys == 32 * kAttendWarps);

  struct Shared {
    uint4 q[kTiles * kGroups * 4 * kWarp];  // A operands: [tile][32 dims][step, term][lane]
    float scores[kQueries * kScoreStride];  // then weights: of a pair of keys, the pair of firsts, of rests
    int first[kQueries], end[kQueries];     // keys a query sees
    float highest[kQueries], total[kQueries], factor[kQueries];
  };

  const AttendArgs& a;
  const SeqEntry& seq;
  Shared& shared;
  const int kv_head, group, first_query, n_queries;
  float sums[kMine][2][kTiles][4] = {};  // [block of 16 dims][half of it][tile]
  uint4 values[kAhead][kMine];           // of the next steps

  __device__ __forceinline__ AttendTile(const AttendArgs& args, const SeqEntry& sequence, int first)
      : a(args),
        seq(sequence),
        shared(*reinterpret_cast<Shared*>(shared_memory())),
        kv_head(int(blockIdx.y)),
        group(args.n_heads / args.n_kv_heads),
        first_query(first),
        n_queries(sequence.n_rows * group) {}

  __device__ __forceinline__ const uint16_t* page_head(int place) const {
    return a.cache.head(a.table.pages[seq.first_page + place / kPageTokens], kv_head);
  }
  __device__ __forceinline__ const float* query(int i, const Rows& rows) const {  // null: none
    const int q = first_query + i;
    return q >= n_queries ? nullptr
                          : rows.row(seq.first_row + q / group) + (kv_head * group + q % group) * a.d;
  }

  // Lets keys, then values of the places [tile_begin, end) come nearer.
  __device__ __forceinline__ void prefetch_tile(int tile_begin, int end) const {
    constexpr int kLineElements = 64;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      for (int page = tile_begin; page < end; page += kPageTokens) {
        if (int(threadIdx.x) < kDims) {
          prefetch(page_head(page) + part * kPageTokens * kDims + int(threadIdx.x) * kLineElements);
        }
      }
    }
  }

  __device__ __forceinline__ void load_queries() {
#pragma unroll 1
    for (int i = int(threadIdx.x); i < kTiles * kGroups * kWarp; i += kAttendThreads) {
      const int lane = i % kWarp, of = i / kWarp, tile = of / kGroups, dim = of % kGroups * 32 + lane % 4 * 8;
      float x[2][8];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* q = query(tile * 16 + lane / 4 + 8 * h, a.q);
#pragma unroll
        for (int e = 0; e < 8; ++e) x[h][e] = q != nullptr && dim + e < a.d ? q[dim + e] : 0.0f;
      }
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        uint4 high, low;
        split_pair(x[0][4 * s], x[0][4 * s + 1], high.x, low.x);
        split_pair(x[1][4 * s], x[1][4 * s + 1], high.y, low.y);
        split_pair(x[0][4 * s + 2], x[0][4 * s + 3], high.z, low.z);
        split_pair(x[1][4 * s + 2], x[1][4 * s + 3], high.w, low.w);
        shared.q[(of * 4 + s * 2) * kWarp + lane] = high;
        shared.q[(of * 4 + s * 2 + 1) * kWarp + lane] = low;
      }
    }
    for (int i = int(threadIdx.x); i < kQueries; i += kAttendThreads) {
      const int q = first_query + i;
      const Keys keys = q < n_queries ? keys_of(a, seq, q / group) : Keys{0, 0};
      shared.first[i] = keys.first;
      shared.end[i] = keys.end;
      shared.highest[i] = kNoScore;
      shared.total[i] = 0;
    }
  }

  // N times 8 keys: this lane's 16 bytes of its key of the n-th 8, first 32 dims; and what is on its way.
  template <int N>
  struct KeyBlock {
    static constexpr int kAhead = kGroups < 2 ? 1 : 2;
    const uint16_t* keys[N];
    uint4 loaded[kAhead][N];

    __device__ __forceinline__ void load(int dims) {
#pragma unroll
      for (int n = 0; n < N; ++n) loaded[dims % kAhead][n] = stream_load(keys[n] + dims * 256);
    }
    __device__ __forceinline__ void start() {
#pragma unroll
      for (int dims = 0; dims < kAhead; ++dims) load(dims);
    }
  };

  // Products of all queries with a block that has been started.
  template <int N>
  __device__ __forceinline__ void products(KeyBlock<N>& k, float (&s)[kTiles][N][4]) {
    constexpr int kAhead = KeyBlock<N>::kAhead;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[tile][n][i] = 0;
      }
    }
#pragma unroll
    for (int dims = 0; dims < kGroups; ++dims) {
      const uint4(&now)[N] = k.loaded[dims % kAhead];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int term = 0; term < 2; ++term) {
            const uint4 q = shared.q[((tile * kGroups + dims) * 4 + step * 2 + term) * kWarp + lane_id()];
            const uint32_t operand[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int n = 0; n < N; ++n) {
              mma_bf16(s[tile][n], operand, step == 0 ? now[n].x : now[n].z, step == 0 ? now[n].y : now[n].w);
            }
          }
        }
      }
      if (dims + kAhead < kGroups) k.load(dims + kAhead);
    }
  }

  // The warp's 32 places of the tile.
  __device__ __forceinline__ void start_keys(int tile_begin, KeyBlock<4>& k) const {
    const int first = tile_begin + warp_id() * 32;
    const uint16_t* block = page_head(first) + (first % kPageTokens / 8) * kGroups * 256 + lane_id() * 8;
#pragma unroll
    for (int n = 0; n < 4; ++n) k.keys[n] = block + n * kGroups * 256;
    k.start();
  }
  __device__ __forceinline__ void scores_in_place(KeyBlock<4>& k) {
    float s[kTiles][4][4];
    products(k, s);
    float* at = shared.scores + lane_id() / 4 * kScoreStride + warp_id() * 32 + lane_id() % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile, at += 16 * kScoreStride) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        *reinterpret_cast<float2*>(at + n * 8) = make_float2(s[tile][n][0], s[tile][n][1]);
        *reinterpret_cast<float2*>(at + 8 * kScoreStride + n * 8) = make_float2(s[tile][n][2], s[tile][n][3]);
      }
    }
  }

  // The queries' scores -> weights.
  __device__ __forceinline__ void softmax(int tile_begin) {
    for (int i = warp_id(); i < kQueries; i += kAttendWarps) {
      const int first = shared.first[i] - tile_begin, end = shared.end[i] - tile_begin;
      auto* row = reinterpret_cast<float2*>(shared.scores + i * kScoreStride);
      float s[4][2];
      float top = kNoScore;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int key = 2 * (n * kWarp + lane_id());
        const float2 pair = row[n * kWarp + lane_id()];
        s[n][0] = key >= first && key < end ? pair.x * a.scale : kNoScore;
        s[n][1] = key + 1 >= first && key + 1 < end ? pair.y * a.scale : kNoScore;
        top = fmaxf(top, fmaxf(s[n][0], s[n][1]));
      }
      const float before = shared.highest[i], high = fmaxf(before, warp_max(top));
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          s[n][e] = s[n][e] == kNoScore ? 0.0f : exp_(s[n][e] - high);
          sum += s[n][e];
        }
        uint2 terms;
        split_pair(s[n][0], s[n][1], terms.x, terms.y);
        *reinterpret_cast<uint2*>(row + n * kWarp + lane_id()) = terms;
      }
      sum = warp_sum(sum);
      const float factor = before == kNoScore ? 0.0f : exp_(before - high);
      __syncwarp();  // all lanes have read what lane 0 replaces
      if (lane_id() == 0) {
        shared.highest[i] = high;
        shared.total[i] = fmaf(shared.total[i], factor, sum);
        shared.factor[i] = factor;
      }
    }
  }

  __device__ __forceinline__ bool has_values() const {
    return kBlocks >= kAttendWarps || warp_id() < kBlocks;
  }

  // This lane's part of the values of the 16 places from `place` on.
  __device__ __forceinline__ void load_values(int place, uint4 (&v)[kMine]) const {
    const uint16_t* block =
        page_head(place) + kPageTokens * kDims + place % kPageTokens / 16 * kBlocks * 256 + lane_id() * 8;
#pragma unroll
    for (int m = 0; m < kMine; ++m) v[m] = stream_load(block + (warp_id() + m * kAttendWarps) * 256);
  }

  // The first steps of the tile, before anyone asks for them.
  __device__ __forceinline__ void load_first_values(int tile_begin, int n_steps) {
    if (!has_values()) return;
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      // Something else otherwise, or the compiler keeps what the tile before left.
      for (uint4& v : values[u]) v = make_uint4(0, 0, 0, 0);
      if (u < n_steps) load_values(tile_begin + u * 16, values[u]);
    }
  }

  // A operands of the weights of tile `tile`, keys [step * 16, step * 16 + 16).
  __device__ __forceinline__ void weights(int tile, int step, uint32_t (&high)[4], uint32_t (&low)[4]) const {
    const float* at =
        shared.scores + (tile * 16 + lane_id() / 4) * kScoreStride + step * 16 + lane_id() % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 pair = *reinterpret_cast<const uint2*>(at + i % 2 * 8 * kScoreStride + i / 2 * 8);
      high[i] = pair.x;
      low[i] = pair.y;
    }
  }

  __device__ __forceinline__ void rescale() {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float f[2] = {shared.factor[tile * 16 + lane_id() / 4],
                          shared.factor[tile * 16 + lane_id() / 4 + 8]};
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[m][half][tile][i] *= f[i / 2];
        }
      }
    }
  }

  // Steps [0, n_steps) of 16 keys of the tile. Places from `written` on hold anything.
  __device__ __forceinline__ void add_values(int tile_begin, int n_steps, int written) {
    if (!has_values()) return;
    for (int step0 = 0; step0 < n_steps; step0 += kAhead) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int step = step0 + u;
        if (step >= n_steps) break;
        uint4 v[kMine];
#pragma unroll
        for (int m = 0; m < kMine; ++m) v[m] = values[u][m];
        if (step + kAhead < n_steps) load_values(tile_begin + (step + kAhead) * 16, values[u]);
        if (const int n = written - (tile_begin + step * 16); n < 16) {
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
        for (int tile = 0; tile < kTiles; ++tile) {
          uint32_t high[4], low[4];
          weights(tile, step, high, low);
#pragma unroll
          for (int m = 0; m < kMine; ++m) {
            mma_bf16(sums[m][0][tile], high, v[m].x, v[m].y);
            mma_bf16(sums[m][1][tile], high, v[m].z, v[m].w);
            mma_bf16(sums[m][0][tile], low, v[m].x, v[m].y);
            mma_bf16(sums[m][1][tile], low, v[m].z, v[m].w);
          }
        }
      }
    }
  }

  // Calls put(query, row, head, dimension, sums of it and the next).
  template <class Put>
  __device__ __forceinline__ void for_sums(Put&& put) {
    if (!has_values()) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = tile * 16 + lane_id() / 4 + 8 * h, q = first_query + i;
        if (q >= n_queries) continue;
#pragma unroll
        for (int m = 0; m < kMine; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            put(i, seq.first_row + q / group, kv_head * group + q % group,
                (warp_id() + m * kAttendWarps) * 16 + half * 8 + lane_id() % 4 * 2,
                sums[m][half][tile][2 * h], sums[m][half][tile][2 * h + 1]);
          }
        }
      }
    }
  }
};

}  // namespace tandem::cuda
