#include "sample/rejection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/check.h"
#include "sample/philox.h"

namespace tandem {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// u in (0, 1), exact in double: unlike the fp32 uniform it never rounds to 1, so that p = q accepts always.
double accept_uniform(const TokenPlace& place) {
  const NoiseKey key{.seed = place.seed, .position = place.position, .purpose = NoisePurpose::accept};
  return (double(noise_bits(key, 0)) + 0.5) * 0x1p-32;
}

// At least log(x) for x > 0, from the exponent alone.
float log_upper_bound(float x) {
  const int exponent = int(std::bit_cast<uint32_t>(x) >> 23) - 127;  // subnormal: -127, still above
  return 0.69315f * float(exponent + 1) + 1e-3f;
}

// argmax of log weight(i) + Gumbel noise over weight(i) > 0; -1 if there is none. A token that cannot win
// costs no logarithm.
template <class WeightAt>
TokenId race(size_t n, const NoiseKey& key, WeightAt weight_at) {
  TokenId best = -1;
  float best_value = kNothing;
  for (size_t i = 0; i < n; i += 4) {
    const size_t n_block = std::min<size_t>(4, n - i);
    std::array<float, 4> weights{};
    bool any = false;
    for (size_t j = 0; j < n_block; ++j) {
      weights[j] = weight_at(i + j);
      any |= weights[j] > 0;  // not NaN
    }
    if (!any) continue;  // after top-k or top-p nearly all
    const PhiloxBlock bits = noise_bits4(key, uint32_t(i / 4));
    for (size_t j = 0; j < n_block; ++j) {
      const float weight = weights[j];
      if (!(weight > 0)) continue;
      const uint32_t word = bits[j];
      if (best >= 0 && log_upper_bound(weight) + gumbel_upper_bound(word) < best_value) continue;
      const float value = std::log(weight) + gumbel_from_bits(word);
      if (best < 0 || value > best_value) {
        best = TokenId(i + j);
        best_value = value;
      }
    }
  }
  return best;
}

bool in_vocabulary(std::span<const float> p, TokenId token) { return token >= 0 && size_t(token) < p.size(); }

}  // namespace

// q at ascending tokens, one after the other.
class ResidualWalk {
 public:
  ResidualWalk(const DraftDistribution& q, TokenId draft) : q_(q), draft_(draft) {}

  float at(size_t token) {
    switch (q_.form_) {
      case DraftDistribution::Form::point_mass:
        return TokenId(token) == draft_ ? 1.0f : 0.0f;
      case DraftDistribution::Form::dense:
        return token < q_.probs_.size() ? q_.probs_[token] : 0.0f;
      case DraftDistribution::Form::sparse:
        break;
    }
    while (next_ < q_.ids_.size() && q_.ids_[next_] < TokenId(token)) ++next_;
    return next_ < q_.ids_.size() && q_.ids_[next_] == TokenId(token) ? q_.probs_[next_] : 0.0f;
  }

 private:
  const DraftDistribution& q_;
  TokenId draft_;
  size_t next_ = 0;
};

DraftDistribution DraftDistribution::dense(std::span<const float> probs) {
  DraftDistribution q;
  q.form_ = Form::dense;
  q.probs_ = probs;
  return q;
}

DraftDistribution DraftDistribution::sparse(std::span<const TokenId> ids, std::span<const float> probs) {
  TD_CHECK(ids.size() == probs.size(), "%zu ids for %zu probabilities", ids.size(), probs.size());
  TD_CHECK(std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end(),
           "ids of a sparse draft distribution must ascend (%zu ids)", ids.size());
  DraftDistribution q;
  q.form_ = Form::sparse;
  q.ids_ = ids;
  q.probs_ = probs;
  return q;
}

float DraftDistribution::at(TokenId token, TokenId draft) const {
  if (form_ == Form::point_mass) return token == draft ? 1.0f : 0.0f;
  if (form_ == Form::dense) return in_vocabulary(probs_, token) ? probs_[size_t(token)] : 0.0f;
  const auto it = std::lower_bound(ids_.begin(), ids_.end(), token);
  return it != ids_.end() && *it == token ? probs_[size_t(it - ids_.begin())] : 0.0f;
}

TokenId draw_target(std::span<const float> p, const TokenPlace& place) {
  const NoiseKey key{.seed = place.seed, .position = place.position, .purpose = NoisePurpose::residual};
  const TokenId token = race(p.size(), key, [&](size_t i) { return p[i]; });
  TD_CHECK(token >= 0, "no probability above zero among %zu at position %u", p.size(), place.position);
  return token;
}

Tested test_draft(std::span<const float> p, TokenId draft, const DraftDistribution& q,
                  const TokenPlace& place, double exponent) {
  TD_CHECK(exponent > 0 && exponent <= 1, "lenient exponent %g, want (0, 1]", exponent);
  const double p_draft = in_vocabulary(p, draft) ? double(p[size_t(draft)]) : 0.0;
  const double q_draft = q.at(draft, draft);
  const double u = accept_uniform(place);
  if (p_draft > 0) {
    // Products, not quotients: nothing divides by q.
    const bool accepted =
        exponent == 1 ? u * q_draft < p_draft : std::pow(u, 1 / exponent) * q_draft < p_draft;
    if (accepted) return {true, draft};
  }
  const NoiseKey key{.seed = place.seed, .position = place.position, .purpose = NoisePurpose::residual};
  ResidualWalk walk(q, draft);
  const TokenId token = race(p.size(), key, [&](size_t i) { return p[i] - walk.at(i); });
  return {false, token >= 0 ? token : draw_target(p, place)};
}

double lenient_total_variation(std::span<const float> p, TokenId draft, const DraftDistribution& q,
                               double exponent) {
  if (exponent == 1) return 0;
  ResidualWalk walk(q, draft);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double p_i = p[i], q_i = walk.at(i);
    if (p_i > 0 && p_i < q_i) sum += std::pow(q_i, 1 - exponent) * std::pow(p_i, exponent) - p_i;
  }
  return sum;
}

}  // namespace tandem
