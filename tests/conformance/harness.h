// What the conformance tests share: seeded random cases, fp32 rows on the host and on a device, packed random
// weights, and the list of backends under test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace tandem::conformance {

// How many of the default number n of random cases a binary runs: n, more in the slow sweep, fewer where
// every case is slow.
int n_cases(int n);

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int uniform(int lowest, int highest);  // both included
  float real(float lowest, float highest);
  float normal();
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[uniform(0, int(values.size()) - 1)];
  }

 private:
  uint64_t state_;
};

// Runs f(rng) for n_cases(n) seeds and stops at the first that fails; the failure names the seed.
template <class F>
void for_cases(int n, uint64_t first_seed, F f) {
  for (int i = 0; i < n_cases(n); ++i) {
    SCOPED_TRACE("case " + std::to_string(i) + ", seed " + std::to_string(first_seed + uint64_t(i)));
    Rng rng(first_seed + uint64_t(i));
    f(rng);
    if (testing::Test::HasFailure()) return;
  }
}

// fp32 rows on the host.
struct Rows {
  int rows = 0, cols = 0;
  std::vector<float> v;

  Rows() = default;
  Rows(int r, int c, float value = 0) : rows(r), cols(c), v(size_t(r) * size_t(c), value) {}
  Rows(int r, int c, std::vector<float> values) : rows(r), cols(c), v(std::move(values)) {}
  float* row(int r) { return v.data() + int64_t{r} * cols; }
  const float* row(int r) const { return v.data() + int64_t{r} * cols; }
  float& at(int r, int c) { return row(r)[c]; }
  float at(int r, int c) const { return row(r)[c]; }
  // Rows [first, first + n), and the given rows in the given order.
  Rows slice(int first, int n) const;
  Rows gather(const std::vector<int>& which) const;
  void append(const Rows& below);
};

Rows normal_rows(Rng& rng, int rows, int cols, float scale = 1);

// The same number of rows and columns and the same bits (NaN equals itself); the message names the first
// difference.
testing::AssertionResult same_bits(const Rows& a, const Rows& b);
testing::AssertionResult same_bits(const std::vector<std::byte>& a, const std::vector<std::byte>& b);

// Rows in a backend's memory. Rows lie `gap` elements apart (so that they are not aligned); gaps and the
// memory before and after hold a pattern that read() checks: no operation may touch it.
class OnDevice {
 public:
  OnDevice(Backend& backend, const Rows& host, int gap = 0);
  OnDevice(Backend& backend, int rows, int cols,
           int gap = 0);  // filled with NaN: an output must be written whole

  MutView view() const { return view_; }
  operator View() const { return view_; }
  operator MutView() const { return view_; }
  Rows read() const;

 private:
  Backend* backend_;
  DeviceBuffer buffer_;
  MutView view_;
};

class IntsOnDevice {
 public:
  IntsOnDevice(Backend& backend, int rows, int cols);
  MutView view() const { return view_; }
  std::vector<int32_t> read() const;  // row-major
  void write(const std::vector<int32_t>& values);

 private:
  Backend* backend_;
  DeviceBuffer buffer_;
  MutView view_;
};

// Zeroed bytes in a backend's memory.
class Memory {
 public:
  Memory(Backend& backend, size_t bytes);
  std::byte* data() const { return buffer_.data(); }
  size_t bytes() const { return buffer_.bytes(); }
  float* floats() const { return reinterpret_cast<float*>(buffer_.data()); }
  std::vector<std::byte> read(size_t offset, size_t bytes) const;
  Rows read_floats(size_t first, int rows, int cols) const;
  void write_floats(size_t first, const Rows& values);

 private:
  Backend* backend_;
  DeviceBuffer buffer_;
};

// SeqStep::parents of a random tree of n rows, anything from a chain to a star.
std::vector<int8_t> random_tree(Rng& rng, int n);
// The rows from the root to `row`, both included.
std::vector<int> path_to(const std::vector<int8_t>& parents, int row);
bool is_leaf(const std::vector<int8_t>& parents, int row);
std::string text(const std::vector<int8_t>& parents);

struct WeightFormat {
  DType dtype = DType::f32;  // dense: f32, f16, bf16; affine: the dtype of scales and biases
  int bits = 0, group = 0;

  bool affine() const { return bits != 0; }
  std::string text() const;
};

// A random matrix as a checkpoint would hold it, at a misaligned address. Entries have standard deviation
// about 1 / sqrt(k).
class RandomMatrix {
 public:
  RandomMatrix(Rng& rng, int n, int k, WeightFormat format);

  const HostMatrix& host() const { return host_; }
  // Decoded bit by bit, independently of the library: the exact value, and the sum of the absolute values of
  // its terms
  // (|scale| code + |bias|; |w| when dense).
  double value(int i, int j) const;
  double magnitude(int i, int j) const;

 private:
  double scale(int i, int j) const;
  double bias(int i, int j) const;
  int code(int i, int j) const;

  std::vector<std::byte> data_, scales_, biases_;
  HostMatrix host_;
};

struct PackOptions {
  int n_experts = 1, n_slices = 1;
  std::vector<float> bias = {};
};
// Packs whole matrices below each other.
std::unique_ptr<Weight> pack(Backend& backend, const std::vector<const RandomMatrix*>& parts,
                             const PackOptions& options = {});

// "reference", "cpu/portable", ..., "cpu/portable, closed form", ...: each is an equality class of its own.
std::unique_ptr<Backend> make(const std::string& name, int threads = 2);
std::vector<std::string> all_backends();          // those this machine can run, in exact form
std::vector<std::string> fast_backends();         // without the reference
std::vector<std::string> closed_form_backends();  // all, in closed form
bool closed_form(const std::string& name);
std::string exact_form(const std::string& name);  // the same backend, token by token
std::string test_name(const testing::TestParamInfo<std::string>& info);

}  // namespace tandem::conformance
