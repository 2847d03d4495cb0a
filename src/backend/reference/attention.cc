// Rotary embedding, the KV cache and softmax attention.
#include <algorithm>
#include <vector>

#include "backend/reference/reference.h"

namespace tandem {
namespace {

// A page holds K [kPageTokens, kv_dim], then V likewise, in fp32.
float* key_at(const KvLayer& cache, const SeqStep& seq, const AttentionShape& shape, int place) {
  std::byte* page = cache.pages + size_t(seq.pages[place / kPageTokens]) * cache.page_bytes;
  return reinterpret_cast<float*>(page) + int64_t{place % kPageTokens} * shape.kv_dim();
}
float* value_at(const KvLayer& cache, const SeqStep& seq, const AttentionShape& shape, int place) {
  return key_at(cache, seq, shape, place) + int64_t{kPageTokens} * shape.kv_dim();
}

// Where the key of `position` lies that `row` sees.
int place_of(const SeqStep& seq, int row, int position) {
  if (position < seq.start) return position;
  while (seq.start + seq.depth(row) > position) row = seq.parent(row);
  return seq.start + row;
}

// Rotates x[i], x[i + n/2] for i < n/2 by the angle whose cos is angles[i] and whose sin is angles[i + n/2].
void rotate(float* x, const float* angles, int n) {
  for (int i = 0; i < n / 2; ++i) {
    const double a = x[i], b = x[i + n / 2], c = angles[i], s = angles[i + n / 2];
    x[i] = float(a * c - b * s);
    x[i + n / 2] = float(b * c + a * s);
  }
}

}  // namespace

size_t ReferenceBackend::kv_page_bytes(const AttentionShape& shape) const {
  return size_t(2) * kPageTokens * size_t(shape.kv_dim()) * sizeof(float);
}

void ReferenceBackend::do_rope_angles(const Step& step, View frequencies, float m, MutView angles) {
  const int n = frequencies.cols;
  const float* f = ref::row(frequencies, 0);
  for (const SeqStep& seq : step.seqs) {
    for (int t = 0; t < seq.n_rows; ++t) {
      float* out = ref::row(angles, seq.first_row + t);
      const float position = float(seq.start + seq.depth(t));
      for (int i = 0; i < n; ++i) {
        const float angle = position * f[i];  // rounded to fp32, as the model was trained
        out[i] = float(std::cos(double(angle)) * m);
        out[n + i] = float(std::sin(double(angle)) * m);
      }
    }
  }
}

void ReferenceBackend::do_attention_prep(const Step& step, const AttentionPrep& a) {
  const AttentionShape& shape = a.shape;
  const auto prepare = [&](float* heads, int n_heads, View gain, const float* angles) {
    for (int h = 0; h < n_heads; ++h) {
      float* x = heads + h * shape.d_head;
      if (!gain.empty()) ref::rms_norm(x, ref::row(gain, 0), a.eps, shape.d_head, x);
      rotate(x, angles, shape.rotary_dims);
    }
  };
  for (const SeqStep& seq : step.seqs) {
    for (int t = 0; t < seq.n_rows; ++t) {
      const int r = seq.first_row + t;
      float* q = ref::row(a.projection, r);
      const float* k = q + shape.q_dim() + a.gate_cols;
      const float* v = k + shape.kv_dim();
      float* key = key_at(a.cache, seq, shape, seq.start + t);
      std::copy_n(k, shape.kv_dim(), key);
      std::copy_n(v, shape.kv_dim(), value_at(a.cache, seq, shape, seq.start + t));
      prepare(q, shape.n_heads, a.q_norm, ref::row(a.angles, r));
      prepare(key, shape.n_kv_heads, a.k_norm, ref::row(a.angles, r));
    }
  }
}

void ReferenceBackend::do_attention(const Step& step, const Attention& a) {
  const AttentionShape& shape = a.shape;
  const int d = shape.d_head;
  std::vector<double> weights, sum(d);
  std::vector<int> places;
  for (const SeqStep& seq : step.seqs) {
    for (int t = 0; t < seq.n_rows; ++t) {
      const int r = seq.first_row + t;
      const KeyRange keys = key_range(a, seq, t);
      places.resize(size_t(keys.end));
      for (int j = keys.first; j < keys.end; ++j) {
        places[size_t(j)] = seq.parents.empty() ? j : place_of(seq, t, j);
      }
      for (int h = 0; h < shape.n_heads; ++h) {
        const int first = h / (shape.n_heads / shape.n_kv_heads) * d;  // column of its KV head
        weights.assign(size_t(keys.end - keys.first), 0);
        for (int j = keys.first; j < keys.end; ++j) {
          weights[size_t(j - keys.first)] =
              ref::dot(ref::row(a.q, r) + h * d, key_at(a.cache, seq, shape, places[size_t(j)]) + first, d) *
              a.scale;
        }
        const double highest = *std::max_element(weights.begin(), weights.end());
        double total = 0;
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int j = keys.first; j < keys.end; ++j) {
          const double w = std::exp(weights[size_t(j - keys.first)] - highest);
          const float* v = value_at(a.cache, seq, shape, places[size_t(j)]) + first;
          total += w;
          for (int i = 0; i < d; ++i) sum[i] += w * v[i];
        }
        for (int i = 0; i < d; ++i) {
          const double gate = a.gate.empty() ? 1.0 : ref::sigmoid(ref::row(a.gate, r)[h * d + i]);
          ref::row(a.out, r)[h * d + i] = float(sum[i] / total * gate);
        }
      }
    }
  }
}

void ReferenceBackend::do_move_kv(const SeqStep& seq, const AttentionShape& shape, const KvLayer& cache,
                                  std::span<const uint8_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const int from = seq.start + rows[i], to = seq.start + int(i);
    if (from == to) continue;
    std::copy_n(key_at(cache, seq, shape, from), shape.kv_dim(), key_at(cache, seq, shape, to));
    std::copy_n(value_at(cache, seq, shape, from), shape.kv_dim(), value_at(cache, seq, shape, to));
  }
}

}  // namespace tandem
