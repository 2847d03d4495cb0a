// One sequence of the delta rule and its convolution, straight on the operations of a backend.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "conformance/harness.h"

namespace tandem::conformance {

constexpr int kDeltaSlots = 3;

inline std::string text(const DeltaShape& s) {
  return std::to_string(s.n_k_heads) + "/" + std::to_string(s.n_v_heads) + " heads of " +
         std::to_string(s.d_k) + "/" + std::to_string(s.d_v);
}

inline DeltaShape random_delta_shape(Rng& rng) {
  DeltaShape s;
  s.n_k_heads = rng.uniform(1, 3);
  s.n_v_heads = s.n_k_heads * rng.uniform(1, 3);
  s.d_k = rng.pick({8, 16, 24, 32, 64, 96, 128});
  s.d_v = rng.pick({8, 16, 24, 32, 64, 96, 128});
  return s;
}

// Inputs of the delta rule for some tokens.
struct Tokens {
  Rows qkv, log_decay, beta;
  int size() const { return qkv.rows; }
  Tokens slice(int first, int n) const {
    return {qkv.slice(first, n), log_decay.slice(first, n), beta.slice(first, n)};
  }
};

inline Tokens random_tokens(Rng& rng, const DeltaShape& shape, int n, float mean_decay) {
  Tokens t{normal_rows(rng, n, shape.conv_dim()), Rows(n, shape.n_v_heads), Rows(n, shape.n_v_heads)};
  for (float& x : t.log_decay.v) x = -mean_decay * rng.real(0, 2);
  for (float& x : t.beta.v) x = rng.real(0, 1);
  return t;
}

// One sequence on one slot of a backend, in steps of the two operations.
class DeltaSequence {
 public:
  DeltaSequence(Backend& backend, const DeltaShape& shape, int tape_rows, int slot)
      : backend_(&backend),
        shape_(shape),
        tape_rows_(tape_rows),
        slot_(slot),
        s_(backend, size_t(kDeltaSlots) * state_floats() * 4),
        conv_(backend, size_t(kDeltaSlots) * 3 * shape.conv_dim() * 4),
        tape_g_(backend, size_t(kDeltaSlots * 2 * tape_rows) * shape.n_v_heads * 4),
        tape_k_(backend, size_t(kDeltaSlots * 2 * tape_rows) * shape.key_dim() * 4),
        tape_delta_(backend, size_t(kDeltaSlots * 2 * tape_rows) * shape.value_dim() * 4),
        tape_conv_(backend, size_t(kDeltaSlots * 2 * tape_rows) * shape.conv_dim() * 4) {
    for (Memory* m : {&s_, &conv_, &tape_g_, &tape_k_, &tape_delta_, &tape_conv_}) {
      m->write_floats(0, Rows(1, int(m->bytes() / 4), 1e20f));
    }
    EXPECT_TRUE(backend.reserve({.max_rows = 2048, .max_positions = 4096, .delta = shape}).ok());
  }

  // The delta rule over the tokens; y [tokens, value_dim].
  Rows delta(Path path, const Tokens& t, const std::vector<int8_t>& parents = {}) {
    SeqStep seq = seq_step(t.size());
    seq.parents = parents;
    const OnDevice qkv(*backend_, t.qkv, 3), log_decay(*backend_, t.log_decay, 1), beta(*backend_, t.beta, 2),
        y(*backend_, t.size(), shape_.value_dim(), 5);
    backend_->delta_step(
        {.path = path, .n_rows = t.size(), .seqs = {&seq, 1}},
        {.shape = shape_, .qkv = qkv, .log_decay = log_decay, .beta = beta, .state = state(), .y = y});
    return y.read();
  }

  // Convolution and gates of projection rows; weights as given.
  Tokens conv(Path path, const Rows& projection, const Rows& weight, const Rows& a_log, const Rows& dt_bias,
              const std::vector<int8_t>& parents = {}) {
    const int n = projection.rows;
    SeqStep seq = seq_step(n);
    seq.parents = parents;
    const OnDevice p(*backend_, projection, 2), w(*backend_, weight), a(*backend_, a_log),
        dt(*backend_, dt_bias), qkv(*backend_, n, shape_.conv_dim(), 3),
        log_decay(*backend_, n, shape_.n_v_heads, 1), beta(*backend_, n, shape_.n_v_heads);
    backend_->delta_conv({.path = path, .n_rows = n, .seqs = {&seq, 1}}, {.shape = shape_,
                                                                          .projection = p,
                                                                          .conv_weight = w,
                                                                          .a_log = a,
                                                                          .dt_bias = dt,
                                                                          .state = state(),
                                                                          .qkv = qkv,
                                                                          .log_decay = log_decay,
                                                                          .beta = beta});
    return {qkv.read(), log_decay.read(), beta.read()};
  }

  void prefilled(int n) { length_ += n; }
  // After a decode step: keeps its first n rows.
  void commit(int n) {
    std::vector<int> rows;
    for (int i = 0; i < n; ++i) rows.push_back(i);
    commit(rows);
  }
  void commit(const std::vector<int>& rows) {
    tape_ = 1 - tape_;
    pending_.assign(rows.begin(), rows.end());
    length_ += int(rows.size());
  }
  void flush() {
    const SeqStep seq = seq_step(1);
    backend_->fold_states({.path = Path::decode, .n_rows = 1, .seqs = {&seq, 1}}, shape_, state());
    pending_.clear();
  }

  int length() const { return length_; }
  // S of the slot [n_v_heads * d_v, d_k], its window [3, conv_dim], and row r of the tape last written.
  Rows state_rows() const {
    return s_.read_floats(size_t(slot_) * state_floats(), shape_.value_dim(), shape_.d_k);
  }
  Rows window() const {
    return conv_.read_floats(size_t(slot_ * 3) * shape_.conv_dim(), 3, shape_.conv_dim());
  }
  Rows tape_keys(int n) const { return tape(tape_k_, shape_.key_dim(), n); }
  // All that the tape holds of its first n rows.
  std::vector<Rows> tape_rows(int n) const {
    return {tape(tape_g_, shape_.n_v_heads, n), tape_keys(n), tape(tape_delta_, shape_.value_dim(), n),
            tape(tape_conv_, shape_.conv_dim(), n)};
  }

 private:
  size_t state_floats() const { return size_t(shape_.value_dim()) * size_t(shape_.d_k); }
  Rows tape(const Memory& m, int cols, int n) const {
    return m.read_floats(size_t((slot_ * 2 + tape_) * tape_rows_) * size_t(cols), n, cols);
  }
  SeqStep seq_step(int n) const {
    return {.n_rows = n, .start = length_, .slot = slot_, .tape = tape_, .pending = pending_};
  }
  DeltaState state() const {
    return {.tape_rows = tape_rows_,
            .s = s_.floats(),
            .conv = conv_.floats(),
            .tape_g = tape_g_.floats(),
            .tape_k = tape_k_.floats(),
            .tape_delta = tape_delta_.floats(),
            .tape_conv = tape_conv_.floats()};
  }

  Backend* backend_;
  DeltaShape shape_;
  int tape_rows_, slot_;
  Memory s_, conv_, tape_g_, tape_k_, tape_delta_, tape_conv_;
  int length_ = 0, tape_ = 0;
  std::vector<uint8_t> pending_;
};

}  // namespace tandem::conformance
