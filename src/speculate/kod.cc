#include "speculate/kod.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

constexpr double kDefaultA = 47, kDefaultB = 8.7;  // ms, as published

}  // namespace

KodRule::KodRule(int base_width) : base_width_(std::max(base_width, 2)) {}

void KodRule::observe(int width, int n_accepted, double seconds) {
  if (width < 2) return;
  shares_[size_t(n_seen_) % shares_.size()] = double(n_accepted) / (width - 1);
  rounds_[size_t(n_seen_) % rounds_.size()] = {double(width), seconds * 1e3};
  ++n_seen_;
}

int KodRule::next_width() const {
  if (n_seen_ < 2) return std::min(base_width_, 16);
  const int n_shares = std::min(n_seen_, int(shares_.size()));
  double a = 0;
  for (int i = 0; i < n_shares; ++i) a += shares_[size_t(i)] / n_shares;

  const int n = std::min(n_seen_, int(rounds_.size()));
  double mean_w = 0, mean_ms = 0, ww = 0, wm = 0;
  for (int i = 0; i < n; ++i) mean_w += rounds_[size_t(i)].width / n, mean_ms += rounds_[size_t(i)].ms / n;
  for (int i = 0; i < n; ++i) {
    const double dw = rounds_[size_t(i)].width - mean_w;
    ww += dw * dw;
    wm += dw * (rounds_[size_t(i)].ms - mean_ms);
  }
  double offset = kDefaultA, slope = kDefaultB;
  if (n >= 4 && ww > 1e-6) {
    slope = std::max(wm / ww, 0.1);
    offset = std::max(mean_ms - slope * mean_w, 1.0);
  }

  int best = 2;
  double best_rate = 0;
  for (int b = 2; b <= std::min(2 * base_width_, 16); ++b) {
    const double tokens = a >= 1 ? b : 1 + a * (1 - std::pow(a, b - 1)) / (1 - a);
    const double rate = tokens / (offset + slope * b);
    if (rate > best_rate) best = b, best_rate = rate;
  }
  return best;
}

}  // namespace tandem
