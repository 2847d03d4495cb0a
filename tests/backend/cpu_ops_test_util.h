// What the tests of the cpu backend's operations share: random fp32 rows, comparison with a plain double
// computation, and every instruction set this machine has with one thread and with three.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isa.h"

namespace tandem::cpu {

using Random = std::mt19937;

// [rows, cols] floats with a gap between rows, so that nothing is aligned.
struct Rows {
  int rows = 0, cols = 0, stride = 0;
  std::vector<float> v;

  Rows() = default;
  Rows(int r, int c, float value = 0)
      : rows(r), cols(c), stride(c + 3), v(size_t(r) * size_t(stride), value) {}
  float& at(int r, int c) { return v[size_t(r) * size_t(stride) + size_t(c)]; }
  float at(int r, int c) const { return v[size_t(r) * size_t(stride) + size_t(c)]; }
  View view() const { return {v.data(), DType::f32, rows, cols, stride}; }
  MutView mut() { return {v.data(), DType::f32, rows, cols, stride}; }
};

inline Rows normal_rows(Random& random, int rows, int cols, float scale = 1) {
  Rows x(rows, cols);
  std::normal_distribution<float> normal(0, scale);
  for (float& v : x.v) v = normal(random);
  return x;
}

inline int pick(Random& random, int lowest, int highest) {
  return std::uniform_int_distribution<int>(lowest, highest)(random);
}

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};
inline std::vector<NamedBackend> all_backends() {
  std::vector<NamedBackend> all;
  for (const Isa isa : supported_isas()) {
    for (const int threads : {1, 3}) {
      auto made = make_cpu_backend(threads, std::string(isa_name(isa)));
      EXPECT_TRUE(made.ok());
      if (made.ok()) all.push_back({made.value()->description(), std::move(made).value()});
    }
  }
  return all;
}

// |a - b| <= bound * (scale of b's row): the largest |b| of the row.
inline void expect_close(const Rows& a, const std::vector<std::vector<double>>& b, double bound,
                         const std::string& what) {
  ASSERT_EQ(size_t(a.rows), b.size());
  for (int r = 0; r < a.rows; ++r) {
    double largest = 0;
    for (const double x : b[size_t(r)]) largest = std::max(largest, std::abs(x));
    for (int c = 0; c < a.cols; ++c) {
      const double error = std::abs(a.at(r, c) - b[size_t(r)][size_t(c)]);
      ASSERT_TRUE(error <= bound * largest)
          << what << ": row " << r << " column " << c << ": " << a.at(r, c) << ", want "
          << b[size_t(r)][size_t(c)] << " (largest " << largest << ")";
    }
  }
}

inline void expect_same_bits(const Rows& a, const Rows& b, const std::string& what) {
  ASSERT_EQ(a.rows, b.rows);
  for (int r = 0; r < a.rows; ++r) {
    for (int c = 0; c < a.cols; ++c) {
      const float x = a.at(r, c), y = b.at(r, c);
      ASSERT_EQ(0, std::memcmp(&x, &y, sizeof x))
          << what << ": row " << r << " column " << c << ": " << x << " and " << y;
    }
  }
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace tandem::cpu
