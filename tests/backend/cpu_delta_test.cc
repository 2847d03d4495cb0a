// Gated DeltaNet of the cpu backend: decode and prefill against the recurrence in double; what decode, verify
// and fold leave, bit for bit; prefill cut anywhere a chunk may be cut.
#include <algorithm>

#include "cpu_ops_test_util.h"

namespace tandem::cpu {
namespace {

struct Inputs {
  DeltaShape shape;
  int n_tokens = 0;
  Rows projection, conv_weight, a_log, dt_bias;
};

Inputs random_inputs(Random& random, const DeltaShape& shape, int n_tokens, float key_scale = 1) {
  Inputs in{shape,
            n_tokens,
            normal_rows(random, n_tokens, shape.projection_dim()),
            normal_rows(random, shape.conv_dim(), kConvTaps, 0.5f * key_scale),
            normal_rows(random, 1, shape.n_v_heads),
            normal_rows(random, 1, shape.n_v_heads)};
  return in;
}

struct Expected {
  std::vector<std::vector<double>> qkv, y;
  std::vector<std::vector<double>> state;  // [n_v_heads * d_v] rows of d_k
};

Expected recurrence(const Inputs& in) {
  const DeltaShape& s = in.shape;
  Expected out;
  out.state.assign(size_t(s.n_v_heads * s.d_v), std::vector<double>(size_t(s.d_k)));
  for (int t = 0; t < in.n_tokens; ++t) {
    std::vector<double> u, y;
    for (int c = 0; c < s.conv_dim(); ++c) {
      double x = 0;
      for (int tap = 0; tap < kConvTaps; ++tap) {
        const int from = t - (kConvTaps - 1) + tap;
        if (from >= 0) x += double(in.conv_weight.at(c, tap)) * in.projection.at(from, c);
      }
      u.push_back(x * sigmoid(x));
    }
    for (int h = 0; h < s.n_v_heads; ++h) {
      const int key_head = h / (s.n_v_heads / s.n_k_heads), gates = s.conv_dim() + s.value_dim();
      const auto unit = [&](int column, double scale) {
        double squares = 1e-6;
        for (int i = 0; i < s.d_k; ++i) squares += u[size_t(column + i)] * u[size_t(column + i)];
        std::vector<double> x;
        for (int i = 0; i < s.d_k; ++i) x.push_back(u[size_t(column + i)] / std::sqrt(squares) * scale);
        return x;
      };
      const auto q = unit(key_head * s.d_k, 1 / std::sqrt(double(s.d_k)));
      const auto k = unit(s.key_dim() + key_head * s.d_k, 1);
      const double beta = sigmoid(in.projection.at(t, gates + h));
      const double x = double(in.projection.at(t, gates + s.n_v_heads + h)) + in.dt_bias.at(0, h);
      const double g = std::exp(-std::exp(double(in.a_log.at(0, h))) * std::log1p(std::exp(x)));
      for (int i = 0; i < s.d_v; ++i) {
        auto& row = out.state[size_t(h * s.d_v + i)];
        double dot = 0, sum = 0;
        for (int j = 0; j < s.d_k; ++j) dot += (row[size_t(j)] *= g) * k[size_t(j)];
        const double delta = beta * (u[size_t(2 * s.key_dim() + h * s.d_v + i)] - dot);
        for (int j = 0; j < s.d_k; ++j) sum += (row[size_t(j)] += delta * k[size_t(j)]) * q[size_t(j)];
        y.push_back(sum);
      }
    }
    out.qkv.push_back(u);
    out.y.push_back(y);
  }
  return out;
}

// One layer's state for one sequence in slot 1 of 2, poisoned with NaN, and the steps of a sequence over it.
class Runner {
 public:
  Rows qkv, y;

  Runner(Backend& backend, const Inputs& in, int tape_rows = 7)
      : qkv(in.n_tokens, in.shape.conv_dim()),
        y(in.n_tokens, in.shape.value_dim()),
        backend_(backend),
        in_(in) {
    const DeltaShape& s = in.shape;
    const auto make = [&](std::vector<float>& v, int64_t n) {
      v.assign(size_t(n), NAN);
      return v.data();
    };
    const int64_t rows = 4 * tape_rows;
    state_ = {.tape_rows = tape_rows,
              .s = make(memory_[0], int64_t{2} * s.n_v_heads * s.d_v * s.d_k),
              .conv = make(memory_[1], int64_t{2} * (kConvTaps - 1) * s.conv_dim()),
              .tape_g = make(memory_[2], rows * s.n_v_heads),
              .tape_k = make(memory_[3], rows * s.key_dim()),
              .tape_delta = make(memory_[4], rows * s.value_dim()),
              .tape_conv = make(memory_[5], rows * s.conv_dim())};
    EXPECT_TRUE(
        backend
            .reserve(
                {.max_rows = in.n_tokens, .max_positions = 0, .attention = {}, .delta = s, .weights = {}})
            .ok());
  }

  void prefill(int first, int n) { step(Path::prefill, first, n); }
  // n rows, of which `keep` are committed.
  void decode(int first, int n, int keep) {
    step(Path::decode, first, n);
    tape_ = 1 - tape_;
    pending_.clear();
    for (int i = 0; i < keep; ++i) pending_.push_back(uint8_t(i));
  }
  void fold() {
    const SeqStep seq = sequence(0, 0);
    backend_.fold_states({.path = Path::decode, .n_rows = 0, .seqs = {&seq, 1}}, in_.shape, state_);
    pending_.clear();
  }
  Rows state() const {
    const DeltaShape& s = in_.shape;
    Rows out(s.n_v_heads * s.d_v, s.d_k);
    for (int r = 0; r < out.rows; ++r) {
      for (int c = 0; c < out.cols; ++c) out.at(r, c) = state_.s[(int64_t{out.rows} + r) * s.d_k + c];
    }
    return out;
  }
  Rows window() const {
    const int n = in_.shape.conv_dim();
    Rows out(kConvTaps - 1, n);
    for (int r = 0; r < out.rows; ++r) {
      for (int c = 0; c < n; ++c) out.at(r, c) = state_.conv[(int64_t{out.rows} + r) * n + c];
    }
    return out;
  }
  bool neighbour_untouched() const {  // slot 0
    const DeltaShape& s = in_.shape;
    const auto all_nan = [](const float* p, int64_t n) {
      return std::all_of(p, p + n, [](float x) { return std::isnan(x); });
    };
    return all_nan(state_.s, int64_t{s.n_v_heads} * s.d_v * s.d_k) &&
           all_nan(state_.conv, int64_t{3} * s.conv_dim()) &&
           all_nan(state_.tape_delta, int64_t{2} * state_.tape_rows * s.value_dim()) &&
           all_nan(state_.tape_conv, int64_t{2} * state_.tape_rows * s.conv_dim());
  }

 private:
  SeqStep sequence(int first, int n) const {
    return {.first_row = 0,
            .n_rows = n,
            .start = first,
            .slot = 1,
            .tape = tape_,
            .pending = pending_,
            .pages = {}};
  }
  void step(Path path, int first, int n) {
    const SeqStep seq = sequence(first, n);
    const Step step{.path = path, .n_rows = n, .seqs = {&seq, 1}};
    const DeltaShape& s = in_.shape;
    Rows projection(n, s.projection_dim()), log_decay(n, s.n_v_heads), beta(n, s.n_v_heads);
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < projection.cols; ++c) projection.at(r, c) = in_.projection.at(first + r, c);
    }
    MutView qkv_rows = qkv.mut().row_range(first, n);
    backend_.delta_conv(step, {.shape = s,
                               .projection = projection.view(),
                               .conv_weight = in_.conv_weight.view(),
                               .a_log = in_.a_log.view(),
                               .dt_bias = in_.dt_bias.view(),
                               .state = state_,
                               .qkv = qkv_rows,
                               .log_decay = log_decay.mut(),
                               .beta = beta.mut()});
    backend_.delta_step(step, {.shape = s,
                               .qkv = qkv_rows,
                               .log_decay = log_decay.view(),
                               .beta = beta.view(),
                               .state = state_,
                               .y = y.mut().row_range(first, n)});
  }

  Backend& backend_;
  const Inputs& in_;
  std::vector<float> memory_[6];
  DeltaState state_;
  int tape_ = 0;
  std::vector<uint8_t> pending_;
};

// The rows of a Rows that must match, to compare what was computed so far.
Rows first_rows(const Rows& x, int n) {
  Rows out = x;
  out.rows = n;
  return out;
}

const DeltaShape kShapes[] = {{1, 1, 8, 5},     {2, 4, 24, 16},  {1, 3, 64, 37},
                              {2, 2, 128, 128}, {1, 1, 256, 48}, {3, 3, 72, 20}};

TEST(CpuDelta, DecodeAndPrefillMatchTheRecurrence) {
  Random random(2);
  auto backends = all_backends();
  for (const DeltaShape& shape : kShapes) {
    const Inputs in = random_inputs(random, shape, 150);
    const Expected want = recurrence(in);
    Rows first_y, first_chunked;
    for (const NamedBackend& b : backends) {
      Runner stepped(*b.backend, in), chunked(*b.backend, in);
      for (int t = 0; t < in.n_tokens; ++t) stepped.decode(t, 1, 1);
      stepped.fold();
      expect_close(stepped.qkv, want.qkv, 2e-6, b.name + " convolution");
      expect_close(stepped.y, want.y, 1e-5, b.name + " decode");
      expect_close(stepped.state(), want.state, 1e-5, b.name + " state after decode");
      EXPECT_TRUE(stepped.neighbour_untouched()) << b.name;

      chunked.prefill(0, in.n_tokens);
      expect_same_bits(stepped.qkv, chunked.qkv, b.name + " convolution, decode and prefill");
      expect_close(chunked.y, want.y, 1e-5, b.name + " prefill");
      expect_close(chunked.state(), want.state, 1e-5, b.name + " state after prefill");
      expect_same_bits(stepped.window(), chunked.window(), b.name + " window");
      EXPECT_TRUE(chunked.neighbour_untouched()) << b.name;

      if (first_y.rows == 0) first_y = stepped.y, first_chunked = chunked.y;
      expect_same_bits(first_y, stepped.y, b.name + " and the first instruction set, decode");
      expect_same_bits(first_chunked, chunked.y, b.name + " and the first instruction set, prefill");
    }
  }
}

TEST(CpuDelta, AnyMixOfDraftsLeavesTheBitsOfPlainDecoding) {
  Random random(4);
  for (const NamedBackend& b : all_backends()) {
    for (const DeltaShape& shape : kShapes) {
      const int n_tokens = 40, tape_rows = 12;
      const Inputs in = random_inputs(random, shape, n_tokens);
      Runner plain(*b.backend, in), drafted(*b.backend, in, tape_rows);
      for (int t = 0; t < n_tokens; ++t) plain.decode(t, 1, 1);
      for (int at = 0; at < n_tokens;) {
        const int n = std::min(pick(random, 1, tape_rows), n_tokens - at), keep = pick(random, 1, n);
        drafted.decode(at, n, keep);
        expect_same_bits(first_rows(drafted.y, at + n), first_rows(plain.y, at + n), b.name + " y");
        at += keep;
        if (pick(random, 0, 3) == 0) drafted.fold();
      }
      plain.fold();
      drafted.fold();
      expect_same_bits(plain.state(), drafted.state(), b.name + " state");
      expect_same_bits(plain.window(), drafted.window(), b.name + " window");
    }
  }
}

TEST(CpuDelta, VerifyLeavesTheStateWhereTheLastFoldLeftIt) {
  Random random(9);
  for (const NamedBackend& b : all_backends()) {
    const Inputs in = random_inputs(random, {2, 4, 24, 16}, 20);
    Runner r(*b.backend, in);
    r.prefill(0, 10);
    const Rows state = r.state(), window = r.window();
    r.decode(10, 5, 0);  // nothing accepted
    expect_same_bits(state, r.state(), b.name);
    expect_same_bits(window, r.window(), b.name);
    r.decode(10, 1, 1);
    expect_same_bits(state, r.state(), b.name);
  }
}

TEST(CpuDelta, PrefillBitsDoNotDependOnWhereThePromptIsCut) {
  Random random(6);
  for (const NamedBackend& b : all_backends()) {
    for (const DeltaShape& shape : kShapes) {
      const Inputs in = random_inputs(random, shape, 300);
      Runner whole(*b.backend, in), pieces(*b.backend, in);
      whole.prefill(0, 300);
      for (int at = 0; at < 300;) {
        const int n = std::min(64 * pick(random, 1, 3), 300 - at);
        pieces.prefill(at, n);
        at += n;
      }
      expect_same_bits(whole.y, pieces.y, b.name + " y");
      expect_same_bits(whole.state(), pieces.state(), b.name + " state");
      expect_same_bits(whole.window(), pieces.window(), b.name + " window");
    }
  }
}

// A prompt that goes on after generated text starts inside a chunk: the first chunk ends at the next border.
TEST(CpuDelta, PrefillFromInsideAChunkEndsAtTheNextBorder) {
  Random random(8);
  for (const NamedBackend& b : all_backends()) {
    const Inputs in = random_inputs(random, {2, 4, 24, 16}, 300);
    Runner whole(*b.backend, in), pieces(*b.backend, in);
    for (Runner* r : {&whole, &pieces}) {
      r->prefill(0, 70);
      for (int t = 70; t < 75; ++t) r->decode(t, 1, 1);
      r->fold();
    }
    whole.prefill(75, 225);
    pieces.prefill(75, 53);  // to 128
    pieces.prefill(128, 172);
    expect_same_bits(whole.y, pieces.y, b.name);
    expect_same_bits(whole.state(), pieces.state(), b.name);
    const Expected want = recurrence(in);
    expect_close(whole.y, want.y, 1e-5, b.name);
  }
}

// Keys that are nearly the same, and decays from almost none to total: where a careless chunk form breaks
// down.
TEST(CpuDelta, PrefillIsStableForCorrelatedKeysAndStrongDecay) {
  Random random(10);
  for (const float decay : {-12.0f, 0.0f, 6.0f}) {
    Inputs in = random_inputs(random, {1, 2, 64, 32}, 200);
    for (int t = 0; t < in.n_tokens; ++t) {
      for (int c = 0; c < in.shape.conv_dim(); ++c)
        in.projection.at(t, c) = in.projection.at(0, c) + 0.05f * in.projection.at(t, c);
      for (int h = 0; h < 2; ++h)
        in.projection.at(t, in.shape.conv_dim() + in.shape.value_dim() + 2 + h) = decay;
    }
    const Expected want = recurrence(in);
    for (const NamedBackend& b : all_backends()) {
      Runner r(*b.backend, in);
      r.prefill(0, in.n_tokens);
      expect_close(r.y, want.y, 2e-5, b.name);
      expect_close(r.state(), want.state, 2e-5, b.name);
    }
  }
}

TEST(CpuDelta, SequencesOfAStepDoNotMeet) {
  Random random(12);
  for (const NamedBackend& b : all_backends()) {
    const DeltaShape s{2, 4, 24, 16};
    const Inputs in = random_inputs(random, s, 9);
    // Rows 0-3 as one sequence from position 0 in slot 0, rows 4-8 likewise in slot 1; then each alone.
    const auto run = [&](std::vector<SeqStep> seqs, int first, int n) {
      std::vector<std::vector<float>> memory;
      const auto make = [&](int64_t size) {
        memory.emplace_back(size_t(size), NAN);
        return memory.back().data();
      };
      memory.reserve(6);
      const DeltaState state{.tape_rows = 8,
                             .s = make(2 * s.n_v_heads * s.d_v * s.d_k),
                             .conv = make(6 * s.conv_dim()),
                             .tape_g = make(32 * s.n_v_heads),
                             .tape_k = make(32 * s.key_dim()),
                             .tape_delta = make(32 * s.value_dim()),
                             .tape_conv = make(32 * s.conv_dim())};
      Rows qkv(n, s.conv_dim()), y(n, s.value_dim()), log_decay(n, s.n_v_heads), beta(n, s.n_v_heads);
      Rows projection = in.projection;
      const Step step{.path = Path::decode, .n_rows = n, .seqs = seqs};
      b.backend->delta_conv(step,
                            {s, projection.mut().row_range(first, n), in.conv_weight.view(), in.a_log.view(),
                             in.dt_bias.view(), state, qkv.mut(), log_decay.mut(), beta.mut()});
      b.backend->delta_step(step, {s, qkv.view(), log_decay.view(), beta.view(), state, y.mut()});
      return y;
    };
    const SeqStep a{.first_row = 0, .n_rows = 4, .start = 0, .slot = 0, .pending = {}, .pages = {}};
    SeqStep c{.first_row = 4, .n_rows = 5, .start = 0, .slot = 1, .pending = {}, .pages = {}};
    Rows both = run({a, c}, 0, 9);
    c.first_row = 0;
    const Rows alone_a = run({a}, 0, 4), alone_c = run({c}, 4, 5);
    for (int r = 0; r < 9; ++r) {
      for (int i = 0; i < both.cols; ++i) {
        ASSERT_EQ(both.at(r, i), r < 4 ? alone_a.at(r, i) : alone_c.at(r - 4, i)) << b.name << " row " << r;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
