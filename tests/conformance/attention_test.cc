// Head norms, rotation, the KV cache and attention.
#include <algorithm>
#include <cmath>

#include "conformance/estimate.h"
#include "conformance/harness.h"

namespace tandem::conformance {
namespace {

constexpr float kEps = 1e-6f;

struct Shape {
  AttentionShape heads;
  bool gated = false, head_norms = false;

  int gate_cols() const { return gated ? heads.q_dim() : 0; }
  int cols() const { return heads.q_dim() + gate_cols() + 2 * heads.kv_dim(); }
  std::string text() const {
    return std::to_string(heads.n_heads) + "/" + std::to_string(heads.n_kv_heads) + " heads of " +
           std::to_string(heads.d_head) + ", rotary " + std::to_string(heads.rotary_dims) +
           (gated ? ", gated" : "") + (head_norms ? ", head norms" : "");
  }
};

Shape random_shape(Rng& rng) {
  Shape s;
  s.heads.n_kv_heads = rng.uniform(1, 3);
  s.heads.n_heads = s.heads.n_kv_heads * rng.pick({1, 2, 3, 4, 8});
  s.heads.d_head = rng.pick({8, 16, 24, 32, 64, 80, 128, 256});
  s.heads.rotary_dims = 2 * rng.uniform(1, s.heads.d_head / 2);
  s.gated = rng.uniform(0, 1) == 1;
  s.head_norms = rng.uniform(0, 1) == 1;
  return s;
}

// One sequence, all its projections so far, and the attention of a backend over them.
class Attended {
 public:
  Attended(Backend& backend, const Shape& shape, Rng& rng, int max_positions)
      : backend_(&backend),
        shape_(shape),
        q_norm_(gains(rng, shape.heads.d_head)),
        k_norm_(gains(rng, shape.heads.d_head)),
        frequencies_(1, shape.heads.rotary_dims / 2),
        n_pages_((max_positions + kPageTokens - 1) / kPageTokens),
        // Unwritten positions hold what upsets any sum.
        pages_(backend, size_t(2 * n_pages_) * backend.kv_page_bytes(shape.heads)) {
    for (int i = 0; i < frequencies_.cols; ++i) frequencies_.v[size_t(i)] = std::pow(0.5f, float(i));
    pages_.write_floats(0, Rows(1, int(pages_.bytes() / 4), std::nanf("")));
    for (int i = 0; i < n_pages_; ++i)
      page_ids_.push_back(2 * (n_pages_ - 1 - i));  // not in order, not dense
    EXPECT_TRUE(
        backend.reserve({.max_rows = max_positions, .max_positions = max_positions, .attention = shape.heads})
            .ok());
  }

  void set_scale(float scale) { scale_ = scale; }
  void set_view(bool bidirectional, int window) {
    bidirectional_ = bidirectional;
    window_ = window;
  }
  void no_rotation() { std::fill(frequencies_.v.begin(), frequencies_.v.end(), 0.0f); }
  int length() const { return projections_.rows; }

  // Appends the rows; the result is the attention output of each.
  Rows step(Path path, const Rows& projection, const std::vector<int8_t>& parents = {}) {
    const SeqStep seq{
        .n_rows = projection.rows, .start = projections_.rows, .parents = parents, .pages = page_ids_};
    const Step step{.path = path, .n_rows = projection.rows, .seqs = {&seq, 1}};
    const OnDevice p(*backend_, projection, 5), angles(*backend_, projection.rows, shape_.heads.rotary_dims),
        f(*backend_, frequencies_), q_norm(*backend_, q_norm_), k_norm(*backend_, k_norm_),
        out(*backend_, projection.rows, shape_.heads.q_dim(), 3);
    backend_->rope_angles(step, f, 1, angles);
    const KvLayer cache{pages_.data(), backend_->kv_page_bytes(shape_.heads)};
    backend_->attention_prep(step, {.shape = shape_.heads,
                                    .projection = p,
                                    .gate_cols = shape_.gate_cols(),
                                    .q_norm = shape_.head_norms ? View(q_norm) : View{},
                                    .k_norm = shape_.head_norms ? View(k_norm) : View{},
                                    .eps = kEps,
                                    .angles = angles,
                                    .cache = cache});
    const MutView all = p.view();
    backend_->attention(
        step, {.shape = shape_.heads,
               .q = all.col_range(0, shape_.heads.q_dim()),
               .gate = shape_.gated ? View(all.col_range(shape_.heads.q_dim(), shape_.gate_cols())) : View{},
               .scale = scale_,
               .bidirectional = bidirectional_,
               .window = window_,
               .cache = cache,
               .out = out});
    prepared_.append(p.read());
    projections_.append(projection);
    return out.read();
  }

  // Back to the first n positions.
  void forget_after(int n) {
    projections_ = projections_.slice(0, n);
    prepared_ = prepared_.slice(0, n);
  }

  // What attention_prep left of the rows it was given: q prepared, gate, k and v as they were.
  const Rows& prepared() const { return prepared_; }
  // q, k of all positions, normalised and rotated.
  Estimates prepared_estimate() const;
  // Attention outputs of the last n rows.
  Estimates output_estimate(int n, double kv_roundoff) const;

 private:
  static Rows gains(Rng& rng, int n) {
    Rows g = normal_rows(rng, 1, n, 0.3f);
    for (float& x : g.v) x += 1;
    return g;
  }

  Backend* backend_;
  Shape shape_;
  Rows q_norm_, k_norm_, frequencies_;
  float scale_ = 1;
  bool bidirectional_ = false;
  int window_ = 0;
  int n_pages_;
  Memory pages_;
  std::vector<int32_t> page_ids_;
  Rows projections_, prepared_;
};

Estimates Attended::prepared_estimate() const {
  const AttentionShape& h = shape_.heads;
  Estimates all(projections_);
  const int half = h.rotary_dims / 2;
  const auto prepare = [&](int r, int first, const Rows& gain) {
    Estimates head(1, h.d_head);
    std::copy_n(all.row(r) + first, h.d_head, head.row(0));
    if (shape_.head_norms) head = rms_norm(head, gain, kEps);
    for (int i = 0; i < half; ++i) {
      const double angle = float(r) * frequencies_.v[size_t(i)];
      const double c = std::cos(angle), s = std::sin(angle);
      const Estimate a = head.at(0, i), b = head.at(0, i + half);
      // Cosines within 2 ulp (4 u), then two roundings.
      const double rounding = 6 * kU * (std::abs(a.value) + std::abs(b.value)) + kTiny;
      const double bound = a.bound + b.bound + rounding;
      head.at(0, i) = {a.value * c - b.value * s, bound};
      head.at(0, i + half) = {b.value * c + a.value * s, bound};
    }
    std::copy_n(head.row(0), h.d_head, all.row(r) + first);
  };
  for (int r = 0; r < all.rows; ++r) {
    for (int i = 0; i < h.n_heads; ++i) prepare(r, i * h.d_head, q_norm_);
    for (int i = 0; i < h.n_kv_heads; ++i) {
      prepare(r, h.q_dim() + shape_.gate_cols() + i * h.d_head, k_norm_);
    }
  }
  return all;
}

// With scores off by at most D, each weight is off by a factor of at most exp(2 D) (numerator and
// denominator), so the output by at most (exp(2 D) - 1) sum p |v|; values rounded in the cache and the
// roundings of the sum come on top.
Estimates Attended::output_estimate(int n, double kv_roundoff) const {
  const AttentionShape& h = shape_.heads;
  const Estimates all = prepared_estimate();
  const int k_first = h.q_dim() + shape_.gate_cols(), v_first = k_first + h.kv_dim();
  Estimates out(n, h.q_dim());
  for (int r = 0; r < n; ++r) {
    const int position = all.rows - n + r;
    int from = 0, to = bidirectional_ ? all.rows : position + 1;
    if (window_ > 0) {
      from = std::max(0, position - (window_ - 1));
      to = std::min(to, position + window_);
    }
    for (int head = 0; head < h.n_heads; ++head) {
      const int kv = head / (h.n_heads / h.n_kv_heads) * h.d_head;
      const Estimate* q = all.row(position) + head * h.d_head;
      std::vector<double> p;
      double doubt = 0, highest = -HUGE_VAL, total = 0;
      for (int j = from; j < to; ++j) {
        const Estimate* k = all.row(j) + k_first + kv;
        double score = 0, bound = 0, terms = 0;
        for (int i = 0; i < h.d_head; ++i) {
          const double stored = k[i].bound + kv_roundoff * (std::abs(k[i].value) + k[i].bound);
          score += q[i].value * k[i].value;
          bound += std::abs(q[i].value) * stored + q[i].bound * (std::abs(k[i].value) + stored);
          terms += std::abs(q[i].value * k[i].value);
        }
        bound += score_depth(h.d_head) * kU * terms;
        // scale, then the difference to the maximum, rounded once each; exp is sensitive to the absolute
        // error.
        doubt = std::max(doubt, std::abs(scale_) * (bound + 4 * kU * std::abs(score)));
        p.push_back(score * scale_);
        highest = std::max(highest, p.back());
      }
      for (double& x : p) total += x = std::exp(x - highest);
      const double factor = std::expm1(2 * doubt) + 2 * (kExp + value_depth(to)) * kU;
      for (int i = 0; i < h.d_head; ++i) {
        double value = 0, magnitude = 0;
        for (int j = from; j < to; ++j) {
          const double v = all.at(j, v_first + kv + i).value;
          value += p[size_t(j - from)] / total * v;
          magnitude += p[size_t(j - from)] / total * std::abs(v);
        }
        Estimate e{value,
                   magnitude * (factor + kv_roundoff * (1 + factor)) + 2 * kU * std::abs(value) + kTiny};
        if (shape_.gated) {
          const Estimate gate = sigmoid(all.at(position, h.q_dim() + head * h.d_head + i));
          e = {e.value * gate.value, e.bound * gate.value + std::abs(e.value) * gate.bound +
                                         kU * std::abs(e.value * gate.value) + kTiny};
        }
        out.at(r, head * h.d_head + i) = e;
      }
    }
  }
  return out;
}

// Values that every cache stores exactly: bf16 has 8 significant bits.
Rows storable(Rows x) {
  for (float& v : x.v) v = float_from_bf16(bf16_from_float(v));
  return x;
}

class AttentionOps : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam());
  const double kv_roundoff_ = arithmetic_of(backend_->name()).kv_roundoff;
};

TEST_P(AttentionOps, PrepNormalisesAndRotatesQueriesAndLeavesTheRest) {
  for_cases(12, 20000, [&](Rng& rng) {
    const Shape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Attended a(*backend_, shape, rng, 300);
    a.step(Path::prefill, normal_rows(rng, rng.uniform(1, 140), shape.cols()));
    a.step(Path::decode, normal_rows(rng, rng.uniform(1, 32), shape.cols()));
    Estimates want = a.prepared_estimate();
    Rows got = a.prepared();
    // Keys go to the cache; what the projection holds of them afterwards is the backend's affair.
    const int k_first = shape.heads.q_dim() + shape.gate_cols();
    for (int r = 0; r < got.rows; ++r) {
      for (int c = k_first; c < k_first + shape.heads.kv_dim(); ++c) want.at(r, c) = {got.at(r, c), 0};
    }
    EXPECT_TRUE(within(got, want));
  });
}

TEST_P(AttentionOps, OutputsMatchTheFormulaWithKeysAndValuesThatAreStoredExactly) {
  for_cases(6, 21000, [&](Rng& rng) {
    Shape shape = random_shape(rng);
    shape.head_norms = false;
    SCOPED_TRACE(shape.text());
    Attended a(*backend_, shape, rng, 500);
    a.no_rotation();  // all angles 0: keys stay what they are
    a.set_scale(1 / std::sqrt(float(shape.heads.d_head)));
    const int first = rng.pick({1, 30, 63, 64, 65, 127, 200}), then = rng.pick({1, 2, 15, 32});
    SCOPED_TRACE(std::to_string(first) + " prefilled, then " + std::to_string(then));
    Rows out = a.step(Path::prefill, storable(normal_rows(rng, first, shape.cols())));
    EXPECT_TRUE(within(out, a.output_estimate(first, 0)));
    out = a.step(Path::decode, storable(normal_rows(rng, then, shape.cols())));
    EXPECT_TRUE(within(out, a.output_estimate(then, 0)));
  });
}

TEST_P(AttentionOps, OutputsMatchTheFormulaWithNormsRotationAndARoundedCache) {
  for_cases(5, 22000, [&](Rng& rng) {
    const Shape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Attended a(*backend_, shape, rng, 500);
    a.set_scale(1 / std::sqrt(float(shape.heads.d_head)));
    const int first = rng.uniform(1, 200), then = rng.uniform(1, 32);
    a.step(Path::prefill, normal_rows(rng, first, shape.cols()));
    const Rows out = a.step(Path::decode, normal_rows(rng, then, shape.cols()));
    EXPECT_TRUE(within(out, a.output_estimate(then, kv_roundoff_)));
  });
}

// What block drafters need: rows of a step that see each other, and windows shorter than the context.
TEST_P(AttentionOps, BidirectionalRowsAndWindowsSeeExactlyTheirKeys) {
  for_cases(8, 22500, [&](Rng& rng) {
    Shape shape = random_shape(rng);
    shape.head_norms = false;
    Attended a(*backend_, shape, rng, 2300);
    a.no_rotation();
    a.set_scale(1 / std::sqrt(float(shape.heads.d_head)));
    const int first = rng.pick({1, 63, 64, 130, 1020, 1100, 2080}), then = rng.pick({1, 7, 16, 32});
    const bool bidirectional = rng.uniform(0, 1) == 1;
    const int window = rng.pick({0, 1, 5, 16, 64, 100, 1025, 3000});
    SCOPED_TRACE(shape.text() + ", " + std::to_string(first) + " + " + std::to_string(then) +
                 " rows, window " + std::to_string(window) + (bidirectional ? ", bidirectional" : ""));
    a.step(Path::prefill, storable(normal_rows(rng, first, shape.cols())));
    a.set_view(bidirectional, window);
    const Rows out = a.step(Path::decode, storable(normal_rows(rng, then, shape.cols())));
    EXPECT_TRUE(within(out, a.output_estimate(then, 0)));
  });
}

TEST_P(AttentionOps, EveryPositionAroundThePageEdgesOfALongerContextCounts) {
  Rng rng(23000);
  const Shape shape{.heads = {.n_heads = 4, .n_kv_heads = 2, .d_head = 16, .rotary_dims = 8}};
  Attended a(*backend_, shape, rng, 2200);
  a.no_rotation();
  a.set_scale(0.5f);
  // One decode step each that ends at these lengths, prefill in between.
  for (const int length : {1, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2047, 2049, 2100}) {
    SCOPED_TRACE("length " + std::to_string(length));
    if (length - 1 > a.length()) {
      a.step(Path::prefill, storable(normal_rows(rng, length - 1 - a.length(), shape.cols())));
    }
    const Rows out = a.step(Path::decode, storable(normal_rows(rng, 1, shape.cols())));
    ASSERT_TRUE(within(out, a.output_estimate(1, 0)));
  }
}

// One key far above the rest takes all the weight, wherever it lies; scores of thousands neither overflow nor
// drown.
TEST_P(AttentionOps, ASharpPeakReturnsItsValueAtAnyPosition) {
  for_cases(4, 24000, [&](Rng& rng) {
    const Shape shape{.heads = {.n_heads = 2, .n_kv_heads = 1, .d_head = 32, .rotary_dims = 2}};
    Attended a(*backend_, shape, rng, 1200);
    a.no_rotation();
    a.set_scale(100);
    const int n = rng.uniform(2, 1100), peak = rng.uniform(0, n - 2);
    SCOPED_TRACE("peak " + std::to_string(peak) + " of " + std::to_string(n));
    Rows p = storable(normal_rows(rng, n, shape.cols(), 0.1f));
    const int k_first = shape.heads.q_dim(), v_first = k_first + shape.heads.kv_dim();
    for (int i = 0; i < 64; ++i) p.at(n - 1, i) = 1;
    for (int i = 0; i < 32; ++i) p.at(peak, k_first + i) = 1;
    if (n > 1) a.step(Path::prefill, p.slice(0, n - 1));
    const Rows out = a.step(Path::decode, p.slice(n - 1, 1));
    for (int i = 0; i < 64; ++i) EXPECT_EQ(out.at(0, i), p.at(peak, v_first + i % 32));
  });
}

// A query's bits are its own: as one of many prefill rows, or cut anywhere, or as one of many decode rows.
TEST_P(AttentionOps, OutputsDoNotDependOnHowRowsShareSteps) {
  for_cases(4, 25000, [&](Rng& rng) {
    const Shape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    const Rng same = rng;
    const int n = rng.uniform(40, 180), m = 32;
    const Rows prompt = normal_rows(rng, n, shape.cols()), rows = normal_rows(rng, m, shape.cols());
    Rng rng_a = same, rng_b = same;
    Attended a(*backend_, shape, rng_a, 300), b(*backend_, shape, rng_b, 300);
    const Rows whole = a.step(Path::prefill, prompt), verified = a.step(Path::decode, rows);
    Rows cut, plain;
    while (b.length() < n) {
      cut.append(
          b.step(Path::prefill, prompt.slice(b.length(), std::min(n - b.length(), rng.uniform(1, 64)))));
    }
    for (int i = 0; i < m; ++i) plain.append(b.step(Path::decode, rows.slice(i, 1)));
    EXPECT_TRUE(same_bits(whole, cut));
    EXPECT_TRUE(same_bits(verified, plain));
  });
}

// Around the edges of pages and of splits, where a path's keys lie on other pages than its positions.
TEST_P(AttentionOps, RowsOfATreeEqualTheirPathsAsChains) {
  for_cases(5, 26000, [&](Rng& rng) {
    const Shape shape = random_shape(rng);
    const int n = rng.uniform(2, 32), window = rng.pick({0, 0, 1, 20, 100});
    const int first = rng.pick({1, 40, 63, 64, 120, 1000, 1022, 1024}) + rng.uniform(-1, 1);
    const std::vector<int8_t> parents = random_tree(rng, n);
    SCOPED_TRACE(shape.text() + ", " + std::to_string(first) + " rows, window " + std::to_string(window) +
                 ", " + text(parents));
    const Rows prompt = normal_rows(rng, first, shape.cols()), rows = normal_rows(rng, n, shape.cols());
    Attended a(*backend_, shape, rng, first + n);
    a.set_view(false, window);
    if (first > 0) a.step(Path::prefill, prompt);
    const Rows got = a.step(Path::decode, rows, parents), prepared = a.prepared().slice(first, n);
    for (int row = 0; row < n; ++row) {
      if (!is_leaf(parents, row) || (row + 1 < n && rng.uniform(0, 2) > 0)) continue;
      const std::vector<int> path = path_to(parents, row);
      a.forget_after(first);
      ASSERT_TRUE(same_bits(a.step(Path::decode, rows.gather(path)), got.gather(path))) << "to row " << row;
      ASSERT_TRUE(same_bits(a.prepared().slice(first, int(path.size())), prepared.gather(path)))
          << "to row " << row;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionOps, testing::ValuesIn(all_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
