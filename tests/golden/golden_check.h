// Comparison of a model's logits and greedy continuations with golden vectors.
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "golden/golden_file.h"
#include "golden/model_under_test.h"

namespace tandem {

struct GoldenError {
  double max_abs = 0;     // largest |a - b|
  double max_golden = 0;  // largest |b|
  double relative() const { return max_abs / max_golden; }
};

inline GoldenError compare(std::span<const float> got, std::span<const float> golden) {
  GoldenError e;
  for (size_t i = 0; i < golden.size(); ++i) {
    e.max_abs = std::max(e.max_abs, double(std::abs(got[i] - golden[i])));
    e.max_golden = std::max(e.max_golden, double(std::abs(golden[i])));
    if (!std::isfinite(got[i])) e.max_abs = INFINITY;
  }
  return e;
}

// Follows the golden continuation token by token (so that one near-tie does not end the comparison) and
// counts the steps whose margin exceeds `bound` and, of those, the ones where the model's own choice differs.
struct GreedyCheck {
  int n_steps = 0, n_decided = 0, n_wrong = 0;
};

inline GreedyCheck check_greedy(ModelUnderTest& model, std::span<const TokenId> prompt,
                                std::span<const TokenId> greedy, std::span<const float> margin,
                                double bound) {
  StatePool pool = model.make_pool(1, int(prompt.size() + greedy.size()) + 1, 1);
  SequenceState state = value_or_throw(SequenceState::create(pool));
  model.prefill(pool, state, prompt);
  const int last = (int(prompt.size()) - 1) % 512;  // of the last chunk
  const std::span<const float> first = model.decoder().logits(last, 1);
  std::vector<float> logits(first.begin(), first.end());
  GreedyCheck check;
  for (size_t i = 0; i < greedy.size(); ++i) {
    ++check.n_steps;
    if (margin[i] > bound) {
      ++check.n_decided;
      if (argmax(logits) != greedy[i]) ++check.n_wrong;
    }
    if (i + 1 < greedy.size()) logits = model.verify(pool, state, greedy.subspan(i, 1), 1);
  }
  return check;
}

}  // namespace tandem
