// Random matrices as checkpoints hold them, and the arithmetic of a product written out in scalars.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/linear.h"

namespace tandem::cpu {

// A matrix with the memory its HostMatrix points into, one byte off alignment as real files are.
struct TestMatrix {
  HostMatrix host;
  std::vector<std::byte> data, scales, biases;

  int code(int row, int column) const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(data.data() + 1) + int64_t{row} * host.row_bytes();
    int code = 0;
    for (int b = 0; b < host.bits; ++b) {
      const int bit = column * host.bits + b;
      code |= ((bytes[bit / 8] >> (bit % 8)) & 1) << b;
    }
    return code;
  }
  float scale(int row, int group) const {
    return value(scales, host.scale_dtype, row * (host.k / host.group) + group);
  }
  float bias(int row, int group) const {
    return value(biases, host.scale_dtype, row * (host.k / host.group) + group);
  }
  float dense(int row, int column) const { return value(data, host.dtype, int64_t{row} * host.k + column); }
  // The exact weight.
  double weight(int row, int column) const {
    if (!host.affine()) return dense(row, column);
    const int group = column / host.group;
    return double(scale(row, group)) * code(row, column) + double(bias(row, group));
  }

 private:
  static float value(const std::vector<std::byte>& bytes, DType dtype, int64_t i) {
    const std::byte* p = bytes.data() + 1 + i * int64_t(dtype_bytes(dtype));
    if (dtype == DType::f32) {
      float v;
      memcpy(&v, p, 4);
      return v;
    }
    uint16_t v;
    memcpy(&v, p, 2);
    return dtype == DType::bf16 ? float_from_bf16(v) : float_from_f16(v);
  }
};

inline std::vector<std::byte> stored(const std::vector<float>& values, DType dtype) {
  const size_t size = dtype_bytes(dtype);
  std::vector<std::byte> out(1 + values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = dtype == DType::bf16 ? bf16_from_float(values[i]) : f16_from_float(values[i]);
    memcpy(out.data() + 1 + i * size, size == 4 ? static_cast<const void*>(&values[i]) : &half, size);
  }
  return out;
}

using Rng = std::mt19937;

inline std::vector<float> random_floats(Rng& rng, size_t n, float spread = 1) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

inline TestMatrix random_matrix(Rng& rng, const LinearFormat& format, int n, int k) {
  TestMatrix m;
  m.host.name = "test";
  m.host.n = n;
  m.host.k = k;
  if (format.affine()) {
    m.host.bits = format.bits;
    m.host.group = format.group;
    m.host.scale_dtype = format.scale_dtype;
    m.data.resize(1 + size_t(n) * size_t(m.host.row_bytes()));
    for (std::byte& b : m.data) b = std::byte(rng());
    const size_t n_groups = size_t(n) * size_t(k / format.group);
    m.scales = stored(random_floats(rng, n_groups, 0.01f), format.scale_dtype);
    m.biases = stored(random_floats(rng, n_groups, 0.5f), format.scale_dtype);
    m.host.scales = m.scales.data() + 1;
    m.host.biases = m.biases.data() + 1;
  } else {
    m.host.dtype = format.dtype;
    m.data = stored(random_floats(rng, size_t(n) * size_t(k)), format.dtype);
  }
  m.host.data = m.data.data() + 1;
  return m;
}

// What quantize_row is defined to compute.
inline ActivationGroup quantize_group(const float* x, int n) {
  float a = 0;
  for (int i = 0; i < n; ++i) a = std::max(a, std::fabs(x[i]));
  const float inverse = a > 0 ? 127.0f / a : 0.0f;
  ActivationGroup g = {};
  int sum[2] = {};
  for (int i = 0; i < n; ++i) {
    g.q[i] = int8_t(std::clamp(int(std::nearbyint(x[i] * inverse)), -127, 127));
    sum[i / 32] += g.q[i];
  }
  g.step = a / 127.0f;
  g.sum = g.step * float(sum[0] + sum[1]);
  g.half_sum[0] = g.step * float(sum[0]);
  g.half_sum[1] = g.step * float(sum[1]);
  return g;
}

// One output of one row, slice by slice, in the order that linear.h fixes. `x` are the row's k values.
inline std::vector<float> expected_slices(const TestMatrix& m, int row, const float* x, int n_slices) {
  const HostMatrix& host = m.host;
  const int slice_k = host.k / n_slices;
  std::vector<float> sums;
  for (int s = 0; s < n_slices; ++s) {
    float acc = 0;
    for (int first = s * slice_k; first < (s + 1) * slice_k; first += 64) {
      const int last = std::min(first + 64, (s + 1) * slice_k);
      if (!host.affine()) {
        float part = 0;
        for (int i = first; i < last; ++i) {
          int c = i;
          float value = x[i];
          if (host.dtype == DType::bf16) {  // rounded activations, the odd column of a pair first
            if (((i - first) ^ 1) + first < last) c = ((i - first) ^ 1) + first;
            value = float_from_bf16(bf16_from_float(x[c]));
          }
          part = std::fma(m.dense(row, c), value, part);
        }
        acc = acc + part;
        continue;
      }
      const ActivationGroup a = quantize_group(x + first, last - first);
      const int width = std::min(64, host.group);
      for (int begin = first; begin < last; begin += width) {
        int dot = 0;
        for (int c = begin; c < begin + width; ++c) dot += m.code(row, c) * a.q[c - first];
        const float sum = width == 64 ? a.sum : a.half_sum[(begin - first) / 32];
        acc = std::fma(float(dot), m.scale(row, begin / host.group) * a.step, acc);
        acc = std::fma(m.bias(row, begin / host.group), sum, acc);
      }
    }
    sums.push_back(acc);
  }
  return sums;
}

// The binary tree over the slice index.
inline float tree_sum(const float* slices, int n) {
  return n == 1 ? slices[0] : tree_sum(slices, n / 2) + tree_sum(slices + n / 2, n / 2);
}

inline std::string describe(const LinearFormat& f) {
  if (!f.affine()) return std::string(dtype_name(f.dtype));
  return std::to_string(f.bits) + "-bit/" + std::to_string(f.group) + "/" +
         std::string(dtype_name(f.scale_dtype));
}

inline std::vector<LinearFormat> all_formats() {
  std::vector<LinearFormat> formats = {{.dtype = DType::f32}, {.dtype = DType::f16}, {.dtype = DType::bf16}};
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) formats.push_back({.bits = bits, .group = group});
  }
  for (const DType scale : {DType::f16, DType::f32}) {
    for (const int bits : {4, 8}) formats.push_back({.bits = bits, .group = 64, .scale_dtype = scale});
  }
  formats.push_back({.bits = 8, .group = 128, .scale_dtype = DType::f32});
  formats.push_back({.bits = 3, .group = 32, .scale_dtype = DType::f16});
  return formats;
}

}  // namespace tandem::cpu
