// Rejection acceptance of drafted tokens: one position at a time, as pure functions of the target's
// distribution p (Sampler::distribution), the drafter's distribution q and the place of the token.
//
// For a draft d drawn from q: accepted if u q(d) < p(d), u uniform in (0, 1); else replaced by a draw from
// the residual max(p - q, 0), normalised. The token that comes out then has law p, whatever q is, if
//   - q is the distribution that d was really drawn from, after the drafter's own truncation, and
//   - whether a position is tested at all was decided without looking at its own draft (earlier ones may be
//   looked
//     at): a length chosen by the sampled token would bias it.
// The caller tests positions in order, each with the p that follows the drafts accepted before it (penalties,
// grammar), stops at the first replacement, and calls draw_target() after a draft that was accepted whole.
//
// Source: Leviathan et al. 2023, Chen et al. 2023. Noise: philox.h; drafts use NoisePurpose::choose, u
// accept, the residual and draw_target() residual, so all three are independent, and each is used once per
// emitted token.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"

namespace tandem {

// What a drafter drew its token from. A view: lives as long as the arrays it was made of.
class DraftDistribution {
 public:
  // All mass on the drafted token: argmax drafters, lookup.
  static DraftDistribution point_mass() { return {}; }
  // probs [n_vocab], indexed by token.
  static DraftDistribution dense(std::span<const float> probs);
  // probs[i] is that of ids[i]; ids strictly ascending; zero elsewhere.
  static DraftDistribution sparse(std::span<const TokenId> ids, std::span<const float> probs);

  // q(token), where the drafted token was `draft`.
  float at(TokenId token, TokenId draft) const;

 private:
  friend class ResidualWalk;
  enum class Form { point_mass, dense, sparse };

  Form form_ = Form::point_mass;
  std::span<const TokenId> ids_;
  std::span<const float> probs_;
};

// Where a token stands: with these two all its noise is known.
struct TokenPlace {
  uint64_t seed = 0;
  uint32_t position = 0;  // absolute index of the token, prompt included
};

struct Tested {
  bool accepted = false;
  TokenId token = 0;  // the draft, or what replaces it
};

// Tests one draft.
//   p         [n_vocab] fp32, sums to 1 up to rounding
//   draft     any id: one outside the vocabulary has p = 0, so it is replaced
//   exponent  1 is exact. In (0, 1): lenient, accepted if u < (p/q)^exponent; not lossless. p = 0 is never
//   accepted.
// Where rounding leaves no residual (p = q), the replacement is drawn from p. Equal weights: the lower id.
Tested test_draft(std::span<const float> p, TokenId draft, const DraftDistribution& q,
                  const TokenPlace& place, double exponent = 1);

// The target's own token: after a draft that was accepted whole, and in rounds without a draft.
TokenId draw_target(std::span<const float> p, const TokenPlace& place);

// Total variation between the law of test_draft(exponent) and p: the price of leniency at this position,
// equal to the acceptance it gains. Sum over p < q of q^(1-exponent) p^exponent - p; 0 at exponent 1.
double lenient_total_variation(std::span<const float> p, TokenId draft, const DraftDistribution& q,
                               double exponent);

}  // namespace tandem
