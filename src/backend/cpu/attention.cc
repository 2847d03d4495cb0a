// Rotary embedding, cache append and attention: from steps to tiles.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "base/check.h"

namespace tandem::cpu {
namespace {

std::byte* head_in_page(const KvLayer& cache, const SeqStep& seq, const AttentionShape& shape, int place,
                        int head) {
  return cache.pages + size_t(seq.pages[size_t(place / kPageTokens)]) * cache.page_bytes +
         size_t(head) * PageLayout{shape.d_head}.head_bytes();
}

int n_splits_of(int n_keys) { return (n_keys + kSplitPages * kPageTokens - 1) / (kSplitPages * kPageTokens); }

// Queries of one KV head of a sequence are numbered row * group + head in the group.
struct SeqTiles {
  int group = 0;      // query heads per KV head
  int n_queries = 0;  // of one KV head
  int n_tiles = 0;    // of one KV head
  SeqTiles(const SeqStep& seq, const AttentionShape& shape)
      : group(shape.n_heads / shape.n_kv_heads),
        n_queries(seq.n_rows * group),
        n_tiles((n_queries + kMaxTileQueries - 1) / kMaxTileQueries) {}
};

// The tile without its splits and its memory.
AttentionTile make_tile(const Attention& a, const SeqStep& seq, int kv_head, int tile_index) {
  const SeqTiles tiles(seq, a.shape);
  const int d = a.shape.d_head, first = tile_index * kMaxTileQueries;
  AttentionTile t;
  t.d_head = d;
  t.n_queries = std::min(kMaxTileQueries, tiles.n_queries - first);
  t.scale = a.scale;
  t.head_in_pages = a.cache.pages + size_t(kv_head) * PageLayout{d}.head_bytes();
  t.page_bytes = a.cache.page_bytes;
  t.pages = seq.pages.data();
  t.parents = seq.parents.empty() ? nullptr : seq.parents.data();
  t.start = seq.start;
  for (int i = 0; i < t.n_queries; ++i) {
    const int in_seq = (first + i) / tiles.group, r = seq.first_row + in_seq;
    const int column = (kv_head * tiles.group + (first + i) % tiles.group) * d;
    t.q[i] = row(a.q, r) + column;
    t.gate[i] = a.gate.empty() ? nullptr : row(a.gate, r) + column;
    t.out[i] = row(a.out, r) + column;
    const KeyRange keys = key_range(a, seq, in_seq);
    t.first_key[i] = keys.first;
    t.n_keys[i] = keys.end;
    if (t.parents != nullptr) t.row[i] = int8_t(in_seq);
  }
  return t;
}

// An estimate for one thread.
double attention_ns(const SeqStep& seq, const AttentionShape& shape) {
  return 0.05 * seq.n_rows * shape.n_heads * (seq.start + 0.5 * seq.n_rows) * shape.d_head;
}

}  // namespace

size_t CpuBackend::kv_page_bytes(const AttentionShape& shape) const {
  return size_t(shape.n_kv_heads) * PageLayout{shape.d_head}.head_bytes();
}

void CpuBackend::do_attention_prep(const Step& step, const AttentionPrep& a) {
  const AttentionShape& shape = a.shape;
  const int d = shape.d_head;
  const float* q_norm = a.q_norm.empty() ? nullptr : row(a.q_norm, 0);
  const float* k_norm = a.k_norm.empty() ? nullptr : row(a.k_norm, 0);
  for (const SeqStep& seq : step.seqs) {
    for_rows(seq.n_rows, 0.5 * (shape.q_dim() + 4 * shape.kv_dim()), [&](int t) {
      const int r = seq.first_row + t, place = seq.start + t;
      const auto prepare = [&](float* head, const float* gain) {
        if (gain != nullptr) kernels_.rms_norm(head, gain, a.eps, d, head);
        kernels_.rotate(head, row(a.angles, r), shape.rotary_dims);
      };
      float* q = row(a.projection, r);
      float* k = q + shape.q_dim() + a.gate_cols;
      const float* v = k + shape.kv_dim();
      for (int h = 0; h < shape.n_heads; ++h) prepare(q + h * d, q_norm);
      for (int h = 0; h < shape.n_kv_heads; ++h) {
        prepare(k + h * d, k_norm);
        kernels_.store_kv(k + h * d, v + h * d, d, place % kPageTokens,
                          head_in_page(a.cache, seq, shape, place, h));
      }
    });
  }
}

void CpuBackend::do_move_kv(const SeqStep& seq, const AttentionShape& shape, const KvLayer& cache,
                            std::span<const uint8_t> rows) {
  const PageLayout layout{shape.d_head};
  share(shape.n_kv_heads, 1, 2.0 * double(rows.size()) * shape.kv_dim(),
        [&](int64_t first, int64_t last, int) {
          for (int64_t h = first; h < last; ++h) {
            for (size_t i = 0; i < rows.size(); ++i) {
              if (rows[i] == i) continue;
              const int from = seq.start + rows[i], to = seq.start + int(i);
              const std::byte* source = head_in_page(cache, seq, shape, from, int(h));
              std::byte* target = head_in_page(cache, seq, shape, to, int(h));
              const auto* from_keys = reinterpret_cast<const uint32_t*>(source) + from % kPageTokens;
              auto* keys = reinterpret_cast<uint32_t*>(target) + to % kPageTokens;
              for (int d = 0; d < shape.d_head / 2; ++d) keys[d * kPageTokens] = from_keys[d * kPageTokens];
              const size_t stride = size_t(layout.value_stride()) * sizeof(uint16_t);
              std::memcpy(target + layout.value_offset() + size_t(to % kPageTokens) * stride,
                          source + layout.value_offset() + size_t(from % kPageTokens) * stride, stride);
            }
          }
        });
}

int max_attention_partials(const AttentionShape& shape) {
  return std::max(1, 4 * kMaxDecodeRows * shape.n_heads);
}

// Whole tiles, all splits of one in order: of every sequence of `step` that is not cut into splits.
void CpuBackend::attend_tiles(const Step& step, const Attention& a) {
  int64_t n_tiles = 0;
  double ns = 0;
  for (const SeqStep& seq : step.seqs) {
    if (splits_go_apart(seq, a.shape)) continue;
    n_tiles += int64_t{SeqTiles(seq, a.shape).n_tiles} * a.shape.n_kv_heads;
    ns += attention_ns(seq, a.shape);
  }
  share(n_tiles, 1, ns, [&](int64_t first, int64_t last, int thread) {
    int64_t i = first, before = 0;  // tiles of the sequences already passed
    for (const SeqStep& seq : step.seqs) {
      if (splits_go_apart(seq, a.shape)) continue;
      const int64_t of_head = SeqTiles(seq, a.shape).n_tiles, end = before + of_head * a.shape.n_kv_heads;
      for (; i < std::min(last, end); ++i) {
        AttentionTile t = make_tile(a, seq, int((i - before) / of_head), int((i - before) % of_head));
        t.n_splits = n_splits_of(*std::max_element(t.n_keys, t.n_keys + t.n_queries));
        t.work = thread_floats(thread, size_t(attention_work_floats(a.shape.d_head)));
        kernels_.attention(t);
      }
      before = end;
    }
  });
}

// Splits of one sequence on different threads, then their merge.
void CpuBackend::attend_splits(const SeqStep& seq, const Attention& a) {
  const AttentionShape& shape = a.shape;
  const SeqTiles tiles(seq, shape);
  const int stride = partial_floats(shape.d_head), n_splits = n_splits_of(seq.start + seq.n_rows);
  const int64_t n_tiles = int64_t{tiles.n_tiles} * shape.n_kv_heads;
  const int n_queries = tiles.n_queries * shape.n_kv_heads;
  // [KV head, query of it, split]
  float* partials = partials_.need_floats(size_t(n_queries) * size_t(n_splits) * size_t(stride));
  share(n_tiles * n_splits, 1, attention_ns(seq, shape), [&](int64_t first, int64_t last, int thread) {
    for (int64_t i = first; i < last; ++i) {
      const int split = int(i % n_splits), tile = int(i / n_splits % tiles.n_tiles);
      const int kv_head = int(i / n_splits / tiles.n_tiles);
      AttentionTile t = make_tile(a, seq, kv_head, tile);
      t.first_split = split;
      t.n_splits = 1;
      t.work = thread_floats(thread, size_t(attention_work_floats(shape.d_head)));
      t.partial = partials +
                  ((int64_t{kv_head} * tiles.n_queries + tile * kMaxTileQueries) * n_splits + split) * stride;
      t.partial_stride = int64_t{n_splits} * stride;
      kernels_.attention(t);
    }
  });
  share(n_tiles, 1, 0.2 * n_queries * n_splits * shape.d_head, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      const int kv_head = int(i / tiles.n_tiles), tile = int(i % tiles.n_tiles);
      const AttentionTile t = make_tile(a, seq, kv_head, tile);
      for (int j = 0; j < t.n_queries; ++j) {
        const int64_t query = int64_t{kv_head} * tiles.n_queries + tile * kMaxTileQueries + j;
        kernels_.attention_merge({.d_head = shape.d_head,
                                  .n = n_splits_of(t.n_keys[j]),
                                  .partials = partials + query * n_splits * stride,
                                  .stride = stride,
                                  .gate = t.gate[j],
                                  .out = t.out[j]});
      }
    }
  });
}

// Only where tiles alone would leave threads idle and there is room for the parts.
bool CpuBackend::splits_go_apart(const SeqStep& seq, const AttentionShape& shape) const {
  const SeqTiles tiles(seq, shape);
  const int n_splits = n_splits_of(seq.start + seq.n_rows);
  return n_splits > 1 && team_.size() > 1 && int64_t{tiles.n_tiles} * shape.n_kv_heads < 2 * team_.size() &&
         int64_t{tiles.n_queries} * shape.n_kv_heads * n_splits <= max_attention_partials(shape);
}

void CpuBackend::do_attention(const Step& step, const Attention& a) {
  attend_tiles(step, a);
  for (const SeqStep& seq : step.seqs) {
    if (splits_go_apart(seq, a.shape)) attend_splits(seq, a);
  }
}

}  // namespace tandem::cpu
