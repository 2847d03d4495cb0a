#include "conformance/estimate.h"

#include <algorithm>
#include <cmath>

namespace tandem::conformance {
namespace {

double exact_silu(double x) { return x / (1 + std::exp(-x)); }

// x rounded to 8 bits per group of 64 columns, as Arithmetic::rounded_activations says; the arithmetic of the
// rounding is fp32. Where x is uncertain, so is the step, and so is a value near the middle between two
// steps.
std::vector<Estimate> round_activations(const Estimate* x, int k) {
  std::vector<Estimate> out(x, x + k);
  for (int first = 0; first < k; first += kActivationColumns) {
    const int n = std::min(kActivationColumns, k - first);
    float highest = 0;
    double highest_bound = 0;
    for (int j = first; j < first + n; ++j) {
      highest = std::max(highest, std::abs(float(x[j].value)));
      highest_bound = std::max(highest_bound, x[j].bound);
    }
    if (highest == 0) continue;
    const float step = highest / 127, inverse = 127 / highest;
    const double step_bound = highest_bound / 127 + 2 * kU * step;
    for (int j = first; j < first + n; ++j) {
      const double scaled = x[j].value / highest * 127;
      const double q = std::nearbyint(float(x[j].value) * inverse);
      out[size_t(j)] = {double(step) * q, std::abs(q) * step_bound};
      // How far `scaled` itself may be off, in steps: near the middle between two codes it may be either.
      const double doubt = (x[j].bound + std::abs(q) * step_bound) / step + 4 * kU * std::abs(q);
      if (std::abs(std::abs(scaled - std::floor(scaled)) - 0.5) <= doubt)
        out[size_t(j)].bound += step * std::ceil(doubt);
    }
  }
  return out;
}

// x rounded to bf16. Where x is uncertain, it may round to a neighbour, one unit in the last place of 8 bits
// away.
std::vector<Estimate> round_to_bf16(const Estimate* x, int k) {
  std::vector<Estimate> out(x, x + k);
  for (Estimate& e : out) {
    const double before = e.value;
    e.value = float_from_bf16(bf16_from_float(float(before)));
    const double lowest = float_from_bf16(bf16_from_float(float(before - e.bound)));
    const double highest = float_from_bf16(bf16_from_float(float(before + e.bound)));
    e.bound = std::max(highest - e.value, e.value - lowest);
  }
  return out;
}

std::vector<Estimate> widen_to_bf16(const Estimate* x, int k) {
  std::vector<Estimate> out(x, x + k);
  for (Estimate& e : out) e.bound += 0x1p-9 * (std::abs(e.value) + e.bound);
  return out;
}

// The cuda backend's: fp16 after a scaling of each group by a power of two that brings its largest value into
// [512, 1024).
std::vector<Estimate> round_to_scaled_f16(const Estimate* x, int k) {
  std::vector<Estimate> out(x, x + k);
  for (int first = 0; first < k; first += kActivationColumns) {
    const int n = std::min(kActivationColumns, k - first);
    double highest = 0;
    for (int j = first; j < first + n; ++j) highest = std::max(highest, std::abs(x[j].value) + x[j].bound);
    if (highest == 0) continue;
    // Where the bound leaves the exponent of the largest open, the smaller scale rounds no worse but for
    // values far below.
    const double step = std::ldexp(1.0, std::ilogb(highest) - 9);
    for (int j = first; j < first + n; ++j) {
      const double scaled = x[j].value / step;
      const double rounded = double(float_from_f16(f16_from_float(float(scaled)))) * step;
      out[size_t(j)] = {rounded, x[j].bound};
      if (x[j].bound == 0) continue;
      // Near the middle between two numbers it may be either.
      const double unit = step * std::ldexp(1.0, std::max(std::ilogb(std::abs(scaled) + 0x1p-24), -14) - 10);
      if (std::abs(std::abs(x[j].value - rounded) - unit / 2) <= 2 * x[j].bound) out[size_t(j)].bound += unit;
    }
  }
  return out;
}

// Half a step per group: what rounding costs at most. Steps from the values themselves.
std::vector<Estimate> widen_activations(const Estimate* x, int k) {
  std::vector<Estimate> out(x, x + k);
  for (int first = 0; first < k; first += kActivationColumns) {
    const int n = std::min(kActivationColumns, k - first);
    double highest = 0;
    for (int j = first; j < first + n; ++j) highest = std::max(highest, std::abs(x[j].value) + x[j].bound);
    for (int j = first; j < first + n; ++j) out[size_t(j)].bound += highest / 127 * (0.5 + 512 * kU);
  }
  return out;
}

}  // namespace

Estimates::Estimates(const Rows& exact) : Estimates(exact.rows, exact.cols) {
  for (size_t i = 0; i < v.size(); ++i) v[i].value = exact.v[i];
}

testing::AssertionResult within(const Rows& got, const Estimates& want) {
  if (got.rows != want.rows || got.cols != want.cols) {
    return testing::AssertionFailure()
           << "[" << got.rows << ", " << got.cols << "], want [" << want.rows << ", " << want.cols << "]";
  }
  int outside = 0;
  size_t worst = 0;
  double worst_excess = 0;
  for (size_t i = 0; i < got.v.size(); ++i) {
    const double error = std::abs(double(got.v[i]) - want.v[i].value);
    if (error <= want.v[i].bound) continue;  // false for NaN
    ++outside;
    const double excess = std::isfinite(error) ? error / (want.v[i].bound + 1e-300) : HUGE_VAL;
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = i;
    }
  }
  if (outside == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << outside << " of " << got.v.size()
                                     << " values outside their bounds, worst at [" << int(worst) / got.cols
                                     << ", " << int(worst) % got.cols << "]: " << got.v[worst] << ", want "
                                     << want.v[worst].value << " within " << want.v[worst].bound << " ("
                                     << worst_excess << " times)";
}

void RelativeL2::add(const Rows& got, const Estimates& want) {
  rows_ += got.rows;
  for (size_t i = 0; i < got.v.size(); ++i) {
    error_ += (got.v[i] - want.v[i].value) * (got.v[i] - want.v[i].value);
    norm_ += want.v[i].value * want.v[i].value;
  }
}

double RelativeL2::value() const { return std::sqrt(error_ / (norm_ + 1e-300)); }

Activations activations_of(const Arithmetic& arithmetic) {
  if (!arithmetic.rounded_activations) return Activations::exact;
  return arithmetic.fine_activations ? Activations::fine : Activations::rounded;
}

Estimates linear(const Estimates& x, const LinearSpec& w, Activations activations) {
  // The matrices' rows in double.
  struct Row {
    const RandomMatrix* matrix;
    int row;
  };
  std::vector<Row> rows;
  for (const RandomMatrix* part : w.parts) {
    for (int i = 0; i < part->host().n; ++i) rows.push_back({part, i});
  }
  rows.erase(rows.begin(), rows.begin() + w.first_row);
  if (w.n >= 0) rows.resize(size_t(w.n));

  const int k = x.cols;
  const double depth = linear_depth(k) + w.extra_roundings;
  Estimates y(x.rows, int(rows.size()));
  std::vector<double> value(static_cast<size_t>(k)), magnitude(static_cast<size_t>(k));
  std::vector<std::vector<Estimate>> plain(static_cast<size_t>(x.rows)),
      quantised(static_cast<size_t>(x.rows)), halves(static_cast<size_t>(x.rows));
  for (int r = 0; r < x.rows; ++r) {
    plain[size_t(r)].assign(x.row(r), x.row(r) + k);
    switch (activations) {
      case Activations::exact:
        quantised[size_t(r)] = halves[size_t(r)] = plain[size_t(r)];
        break;
      case Activations::rounded:
        quantised[size_t(r)] = round_activations(x.row(r), k);
        halves[size_t(r)] = round_to_bf16(x.row(r), k);
        break;
      case Activations::fine:
        quantised[size_t(r)] = round_to_scaled_f16(x.row(r), k);
        halves[size_t(r)] = round_to_bf16(x.row(r), k);
        break;
      case Activations::uncertain:
        quantised[size_t(r)] = widen_activations(x.row(r), k);
        halves[size_t(r)] = widen_to_bf16(x.row(r), k);
        break;
    }
  }
  for (int i = 0; i < y.cols; ++i) {
    const RandomMatrix& m = *rows[size_t(i)].matrix;
    for (int j = 0; j < k; ++j) {
      value[size_t(j)] = m.value(rows[size_t(i)].row, j);
      magnitude[size_t(j)] = m.magnitude(rows[size_t(i)].row, j);
    }
    const double bias = w.bias.empty() ? 0 : double(w.bias[size_t(w.first_row + i)]);
    for (int r = 0; r < x.rows; ++r) {
      const std::vector<Estimate>& in = m.host().affine()               ? quantised[size_t(r)]
                                        : m.host().dtype == DType::bf16 ? halves[size_t(r)]
                                                                        : plain[size_t(r)];
      double sum = bias, from_x = 0, terms = std::abs(bias);
      for (size_t j = 0; j < in.size(); ++j) {
        sum += in[j].value * value[j];
        from_x += in[j].bound * std::abs(value[j]);
        terms += (std::abs(in[j].value) + in[j].bound) * magnitude[j];
      }
      // Roundings inside the sum, two more for w = scale * code + bias, one for the result.
      y.at(r, i) = {sum, from_x + (depth + 2) * kU * terms + kU * std::abs(sum)};
    }
  }
  return y;
}

Estimates add(const Estimates& a, const Estimates& b) {
  Estimates y(a.rows, a.cols);
  for (size_t i = 0; i < y.v.size(); ++i) {
    const double sum = a.v[i].value + b.v[i].value, bound = a.v[i].bound + b.v[i].bound;
    y.v[i] = {sum, bound + kU * (std::abs(sum) + bound)};
  }
  return y;
}

Estimates rms_norm(const Estimates& x, const Rows& gain, float eps) {
  Estimates y(x.rows, x.cols);
  const int n = gain.cols;
  for (int r = 0; r < x.rows; ++r) {
    for (int first = 0; first < x.cols; first += n) {
      double squares = 0, bounds = 0;
      for (int i = first; i < first + n; ++i) {
        squares += x.at(r, i).value * x.at(r, i).value;
        bounds += x.at(r, i).bound * x.at(r, i).bound;
      }
      const double mean = squares / n + eps;
      const double inv = 1 / std::sqrt(mean);
      // The norm moves by at most the norm of the inputs' errors; then the sum's roundings, halved by the
      // root.
      const double relative = std::sqrt(bounds / n) / std::sqrt(mean) + (0.5 * lane_depth(n) + kRsqrt) * kU;
      for (int i = first; i < first + n; ++i) {
        const double g = gain.v[size_t(i - first)];
        const double value = x.at(r, i).value * inv * g;
        y.at(r, i) = {value,
                      std::abs(value) * (relative + 3 * kU) + x.at(r, i).bound * inv * std::abs(g) + kTiny};
      }
    }
  }
  return y;
}

Estimate sigmoid(const Estimate& x) {
  const double value = 1 / (1 + std::exp(-x.value));
  return {value, kSigmoid * kU * value + 0.25 * x.bound + kTiny};
}

Estimates silu(const Estimates& x) {
  Estimates y(x.rows, x.cols);
  for (size_t i = 0; i < y.v.size(); ++i) {
    const double value = exact_silu(x.v[i].value);
    y.v[i] = {value, kSilu * kU * std::abs(value) + kSiluSlope * x.v[i].bound +
                         kTiny * (1 + std::abs(x.v[i].value))};
  }
  return y;
}

Estimates multiply(const Estimates& a, const Estimates& b) {
  Estimates y(a.rows, a.cols);
  for (size_t i = 0; i < y.v.size(); ++i) {
    const Estimate &p = a.v[i], &q = b.v[i];
    const double value = p.value * q.value;
    const double bound = std::abs(p.value) * q.bound + std::abs(q.value) * p.bound + p.bound * q.bound;
    y.v[i] = {value, bound + kU * (std::abs(value) + bound) + kTiny};
  }
  return y;
}

Estimates silu_mul(const Estimates& gate_up) {
  const int n = gate_up.cols / 2;
  Estimates gate(gate_up.rows, n), up(gate_up.rows, n);
  for (int r = 0; r < gate_up.rows; ++r) {
    std::copy_n(gate_up.row(r), n, gate.row(r));
    std::copy_n(gate_up.row(r) + n, n, up.row(r));
  }
  return multiply(silu(gate), up);
}

}  // namespace tandem::conformance
