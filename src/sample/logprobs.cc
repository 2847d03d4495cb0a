#include "sample/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "sample/candidates.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool is_logit(float x) { return x < kInfinity; }  // false for NaN

}  // namespace

Logprobs logprobs(std::span<const float> logits, TokenId chosen, int k) {
  TD_CHECK(chosen >= 0 && size_t(chosen) < logits.size() && k >= 0, "logprobs of token %d of %zu, top %d",
           int(chosen), logits.size(), k);
  float max = -kInfinity;
  for (const float x : logits) {
    if (is_logit(x) && x > max) max = x;
  }
  double sum = 0;
  for (const float x : logits) {
    if (is_logit(x) && x > -kInfinity) sum += std::exp(x - max);
  }
  const float log_sum = float(std::log(sum));
  const auto logprob = [&](float x) {
    if (!is_logit(x)) return std::numeric_limits<float>::quiet_NaN();
    return x == -kInfinity ? x : (x - max) - log_sum;
  };

  Logprobs result;
  result.chosen = logprob(logits[size_t(chosen)]);
  if (k == 0) return result;
  std::vector<Candidate> best;
  TopSelection selection(best, std::min(size_t(k), logits.size()));
  for (size_t i = 0; i < logits.size(); ++i) {
    if (is_logit(logits[i])) selection.offer(logits[i], TokenId(i));
  }
  selection.finish();
  std::sort(best.begin(), best.end(), better);
  result.top.reserve(best.size());
  for (const Candidate& c : best) result.top.push_back({c.id, logprob(c.score)});
  return result;
}

}  // namespace tandem
