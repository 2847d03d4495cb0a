// Attention of the cpu backend against plain double softmax over keys and values as bf16 stores them; a row's
// bits against the same row alone; garbage behind a row's own position against none.
#include <algorithm>

#include "backend/cpu/kernels.h"
#include "cpu_ops_test_util.h"

namespace tandem::cpu {
namespace {

struct Case {
  AttentionShape shape;
  bool gated = false, normed = false;
  int n_tokens = 0;
};

struct Tokens {  // inputs of every position of one sequence
  Rows projection, angles;
  Rows q_norm, k_norm;
};

Tokens random_tokens(Random& random, const Case& c) {
  const AttentionShape& s = c.shape;
  Tokens t;
  t.projection = normal_rows(random, c.n_tokens, s.q_dim() * (c.gated ? 2 : 1) + 2 * s.kv_dim());
  t.angles = Rows(c.n_tokens, s.rotary_dims);
  for (int r = 0; r < c.n_tokens; ++r) {
    for (int i = 0; i < s.rotary_dims / 2; ++i) {
      t.angles.at(r, i) = float(std::cos(r * std::pow(0.1, i)));
      t.angles.at(r, s.rotary_dims / 2 + i) = float(std::sin(r * std::pow(0.1, i)));
    }
  }
  t.q_norm = normal_rows(random, 1, s.d_head);
  t.k_norm = normal_rows(random, 1, s.d_head);
  return t;
}

float as_bf16(double x) { return float_from_bf16(bf16_from_float(float(x))); }

// A head after its norm and rotation, in double.
std::vector<double> prepared(const Tokens& t, const Case& c, int r, int column, const Rows& gain) {
  const int d = c.shape.d_head, n = c.shape.rotary_dims;
  std::vector<double> x;
  double squares = 0;
  for (int i = 0; i < d; ++i) {
    x.push_back(t.projection.at(r, column + i));
    squares += x.back() * x.back();
  }
  if (c.normed) {
    for (int i = 0; i < d; ++i) x[size_t(i)] *= gain.at(0, i) / std::sqrt(squares / d + 1e-6);
  }
  for (int i = 0; i < n / 2; ++i) {
    const double a = x[size_t(i)], b = x[size_t(i + n / 2)], co = t.angles.at(r, i),
                 si = t.angles.at(r, n / 2 + i);
    x[size_t(i)] = a * co - b * si;
    x[size_t(i + n / 2)] = b * co + a * si;
  }
  return x;
}

std::vector<std::vector<double>> expected(const Tokens& t, const Case& c, float scale) {
  const AttentionShape& s = c.shape;
  const int d = s.d_head, k_column = s.q_dim() * (c.gated ? 2 : 1), v_column = k_column + s.kv_dim();
  std::vector<std::vector<double>> out(size_t(c.n_tokens), std::vector<double>(size_t(s.q_dim())));
  for (int h = 0; h < s.n_heads; ++h) {
    const int kv = h / (s.n_heads / s.n_kv_heads);
    std::vector<std::vector<double>> keys;
    for (int r = 0; r < c.n_tokens; ++r) {
      keys.push_back(prepared(t, c, r, k_column + kv * d, t.k_norm));
      for (double& x : keys.back()) x = as_bf16(x);
      const std::vector<double> q = prepared(t, c, r, h * d, t.q_norm);
      std::vector<double> score;
      for (const auto& k : keys) {
        double dot = 0;
        for (int i = 0; i < d; ++i) dot += q[size_t(i)] * k[size_t(i)];
        score.push_back(dot * scale);
      }
      const double highest = *std::max_element(score.begin(), score.end());
      double total = 0;
      for (double& x : score) total += x = std::exp(x - highest);
      for (int i = 0; i < d; ++i) {
        double sum = 0;
        for (int j = 0; j <= r; ++j)
          sum += score[size_t(j)] * as_bf16(t.projection.at(j, v_column + kv * d + i));
        if (c.gated) sum *= sigmoid(t.projection.at(r, s.q_dim() + h * d + i));
        out[size_t(r)][size_t(h * d + i)] = sum / total;
      }
    }
  }
  return out;
}

// Keys that are stored as they come are the same in fp32 and in double. Norm and rotation leave fp32 an ulp
// away, which may cross a rounding border of bf16: a key's dimension then differs by 2^-8 of itself.
double bound_of(const Case& c) { return c.normed || c.shape.rotary_dims > 0 ? 4e-3 : 4e-6; }

// Runs tokens [first, first + n) of the sequence as one step and puts their rows into `out`.
class Runner {
 public:
  Runner(Backend& backend, const Case& c, const Tokens& t, float scale)
      : backend_(backend), c_(c), t_(t), scale_(scale), out(c.n_tokens, c.shape.q_dim()) {
    const int n_pages = (c.n_tokens + kPageTokens - 1) / kPageTokens;
    for (int i = 0; i < n_pages; ++i) pages_.push_back(n_pages - 1 - i);  // not in order
    page_bytes_ = backend.kv_page_bytes(c.shape);
    memory_ = std::vector<std::byte>(page_bytes_ * size_t(n_pages) + 64, std::byte{0xff});  // NaN in bf16
    EXPECT_TRUE(backend
                    .reserve({.max_rows = c.n_tokens,
                              .max_positions = c.n_tokens,
                              .attention = c.shape,
                              .delta = {},
                              .weights = {}})
                    .ok());
  }
  void step(Path path, int first, int n) {
    const int projection_cols = t_.projection.cols;
    Rows projection(n, projection_cols), angles(n, c_.shape.rotary_dims);
    for (int r = 0; r < n; ++r) {
      for (int i = 0; i < projection_cols; ++i) projection.at(r, i) = t_.projection.at(first + r, i);
      for (int i = 0; i < angles.cols; ++i) angles.at(r, i) = t_.angles.at(first + r, i);
    }
    const SeqStep seq{.first_row = 0, .n_rows = n, .start = first, .pending = {}, .pages = pages_};
    const Step step{.path = path, .n_rows = n, .seqs = {&seq, 1}};
    auto* base = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    const KvLayer cache{base, page_bytes_};
    const int gate_cols = c_.gated ? c_.shape.q_dim() : 0;
    backend_.attention_prep(step, {.shape = c_.shape,
                                   .projection = projection.mut(),
                                   .gate_cols = gate_cols,
                                   .q_norm = c_.normed ? t_.q_norm.view() : View{},
                                   .k_norm = c_.normed ? t_.k_norm.view() : View{},
                                   .eps = 1e-6f,
                                   .angles = angles.view(),
                                   .cache = cache});
    MutView y = out.mut().row_range(first, n);
    backend_.attention(
        step, {.shape = c_.shape,
               .q = projection.mut().col_range(0, c_.shape.q_dim()),
               .gate = c_.gated ? View(projection.mut().col_range(c_.shape.q_dim(), gate_cols)) : View{},
               .scale = scale_,
               .cache = cache,
               .out = y});
  }

 private:
  Backend& backend_;
  const Case& c_;
  const Tokens& t_;
  const float scale_;
  std::vector<int32_t> pages_;
  size_t page_bytes_ = 0;
  std::vector<std::byte> memory_;

 public:
  Rows out;
};

TEST(CpuAttention, MatchesDoubleAndItsOwnBitsHoweverTheSequenceIsCut) {
  Random random(11);
  auto backends = all_backends();
  const Case cases[] = {
      {{4, 2, 16, 0}, false, false, 130},  {{8, 1, 72, 0}, true, false, 70},
      {{4, 2, 16, 8}, false, false, 70},   {{6, 1, 24, 24}, true, true, 130},
      {{3, 3, 34, 10}, false, true, 65},   {{8, 2, 64, 16}, true, true, 200},
      {{5, 5, 8, 0}, true, false, 9},      {{16, 2, 128, 64}, false, true, 90},
      {{70, 1, 16, 16}, false, false, 40},
  };
  for (const Case& c : cases) {
    const Tokens t = random_tokens(random, c);
    const float scale = float(1 / std::sqrt(double(c.shape.d_head)));
    const auto want = expected(t, c, scale);
    Rows first;
    for (const NamedBackend& b : backends) {
      Runner whole(*b.backend, c, t, scale), pieces(*b.backend, c, t, scale);
      whole.step(Path::prefill, 0, c.n_tokens);
      expect_close(whole.out, want, bound_of(c), b.name);
      for (int at = 0; at < c.n_tokens;) {
        const int n = std::min(pick(random, 1, kMaxDecodeRows), c.n_tokens - at);
        pieces.step(Path::decode, at, n);
        at += n;
      }
      expect_same_bits(whole.out, pieces.out, b.name + " whole and in pieces");
      if (first.rows == 0) first = whole.out;
      expect_same_bits(first, whole.out, b.name + " and the first instruction set");
    }
  }
}

TEST(CpuAttention, LongSequencesAreSplitAtAbsolutePositions) {
  Random random(5);
  auto backends = all_backends();
  const Case c{{4, 2, 16, 8}, true, true, 2 * kSplitPages * kPageTokens + 100};
  const Tokens t = random_tokens(random, c);
  Rows first;
  for (const NamedBackend& b : backends) {
    Runner whole(*b.backend, c, t, 0.5f), pieces(*b.backend, c, t, 0.5f);
    whole.step(Path::prefill, 0, c.n_tokens);
    pieces.step(Path::prefill, 0, c.n_tokens - 33);
    pieces.step(Path::decode, c.n_tokens - 33, 32);  // shares its splits over threads
    pieces.step(Path::decode, c.n_tokens - 1, 1);
    expect_same_bits(whole.out, pieces.out, b.name);
    if (first.rows == 0) {
      first = whole.out;
      const auto want = expected(t, c, 0.5f);
      expect_close(whole.out, want, bound_of(c), b.name);
    }
    expect_same_bits(first, whole.out, b.name + " and the first instruction set");
  }
}

// One sequence long enough that its splits go to different threads, beside two short ones.
TEST(CpuAttention, SequencesOfAStepDoNotMeet) {
  Random random(17);
  const AttentionShape shape{4, 2, 16, 0};
  const int starts[] = {5, 2 * kSplitPages * kPageTokens + 7, 70}, counts[] = {2, 3, 1};
  for (const NamedBackend& b : all_backends()) {
    const size_t page_bytes = b.backend->kv_page_bytes(shape);
    std::vector<std::byte> memory(page_bytes * 40);
    ASSERT_TRUE(
        b.backend
            ->reserve({.max_rows = 6, .max_positions = 4096, .attention = shape, .delta = {}, .weights = {}})
            .ok());
    // Any finite bf16 will do for what is behind the rows: small integers' bit patterns over the whole pool.
    for (size_t i = 0; i + 1 < memory.size(); i += 2) {
      const uint16_t x = bf16_from_float(float(int(i * 2654435761u % 17) - 8) / 8);
      std::memcpy(&memory[i], &x, sizeof x);
    }
    const Rows q = normal_rows(random, 6, shape.q_dim());
    std::vector<int32_t> pages[3];
    for (int i = 0; i < 40; ++i) pages[i == 0 ? 0 : i < 36 ? 1 : 2].push_back(i);
    const auto sequence = [&](int i, int first_row) {
      return SeqStep{
          .first_row = first_row, .n_rows = counts[i], .start = starts[i], .pending = {}, .pages = pages[i]};
    };
    const auto run = [&](const std::vector<SeqStep>& seqs, int first, int n) {
      Rows in = q, out(n, shape.q_dim());
      b.backend->attention({.path = Path::decode, .n_rows = n, .seqs = seqs},
                           {.shape = shape,
                            .q = in.mut().row_range(first, n),
                            .gate = {},
                            .scale = 0.25f,
                            .cache = {memory.data(), page_bytes},
                            .out = out.mut()});
      return out;
    };
    const Rows together = run({sequence(0, 0), sequence(1, 2), sequence(2, 5)}, 0, 6);
    for (int i = 0, first = 0; i < 3; first += counts[i++]) {
      const Rows alone = run({sequence(i, 0)}, first, counts[i]);
      for (int r = 0; r < counts[i]; ++r) {
        for (int c = 0; c < alone.cols; ++c) {
          ASSERT_EQ(alone.at(r, c), together.at(first + r, c)) << b.name << " sequence " << i << " row " << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
