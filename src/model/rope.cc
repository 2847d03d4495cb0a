#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem {
namespace {

double llama3(double inv, const RopeConfig& c) {
  const double wavelength = 2 * std::numbers::pi / inv;
  const double original = c.original_max_position;
  if (wavelength > original / c.low_freq_factor) return inv / c.factor;
  if (wavelength < original / c.high_freq_factor) return inv;
  const double blend = (original / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
  return (1 - blend) * inv / c.factor + blend * inv;
}

struct YarnRamp {
  double low, high;
  // 1 where the frequency is kept, 0 where it is divided by the factor.
  double keep(int i) const { return 1 - std::clamp((i - low) / (high - low), 0.0, 1.0); }
};

YarnRamp yarn_ramp(const RopeConfig& c) {
  const auto dimension_of_turns = [&](double turns) {
    return c.rotary_dims * std::log(c.original_max_position / (2 * std::numbers::pi * turns)) /
           (2 * std::log(c.theta));
  };
  double low = dimension_of_turns(c.beta_fast), high = dimension_of_turns(c.beta_slow);
  if (c.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, double(c.rotary_dims - 1));
  if (low == high) high += 0.001;
  return {low, high};
}

double yarn_factor(const RopeConfig& c) {
  if (c.attention_factor) return *c.attention_factor;
  const auto g = [&](double m) { return c.factor <= 1 ? 1.0 : 0.1 * m * std::log(c.factor) + 1; };
  if (c.mscale != 0 && c.mscale_all_dim != 0) return g(c.mscale) / g(c.mscale_all_dim);
  return g(1);
}

}  // namespace

RopeTable rope_table(const RopeConfig& c) {
  RopeTable table;
  const YarnRamp ramp = c.type == RopeConfig::Type::yarn ? yarn_ramp(c) : YarnRamp{0, 1};
  for (int i = 0; i < c.rotary_dims / 2; ++i) {
    double inv = std::pow(c.theta, -2.0 * i / c.rotary_dims);
    switch (c.type) {
      case RopeConfig::Type::plain:
        break;
      case RopeConfig::Type::linear:
        inv /= c.factor;
        break;
      case RopeConfig::Type::llama3:
        inv = llama3(inv, c);
        break;
      case RopeConfig::Type::yarn: {
        const double keep = ramp.keep(i);
        inv = (1 - keep) * inv / c.factor + keep * inv;
        break;
      }
    }
    table.frequencies.push_back(float(inv));
  }
  if (c.type == RopeConfig::Type::yarn) table.factor = float(yarn_factor(c));
  return table;
}

}  // namespace tandem
