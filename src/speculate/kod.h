// KOD, a published rule for the width of a draft, kept for comparison: width b (last known token included)
// that maximises (1 + a (1 - a^(b-1)) / (1 - a)) / (A + B b), where a is the mean of the last 8 values
// accepted / (b - 1) and A, B in milliseconds are the least squares line through the last 16 rounds.
// Its estimate of a is the share of the window, which falls with the width; see LengthControl for one that
// does not. Source: github.com/0xClandestine/mirror-sd.
#pragma once

#include <array>

namespace tandem {

class KodRule {
 public:
  // base_width: the width until two rounds have been seen; later ones lie in [2, min(2 base_width, 16)].
  explicit KodRule(int base_width);

  int next_width() const;
  void observe(int width, int n_accepted, double seconds);

 private:
  struct Round {
    double width = 0, ms = 0;
  };

  int base_width_;
  std::array<double, 8> shares_{};
  std::array<Round, 16> rounds_{};
  int n_seen_ = 0;
};

}  // namespace tandem
