#include "sample/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "sample/philox.h"

namespace tandem {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

struct RowScan {
  float max = kMasked;
  bool finite = true;
};

// Maximum and finiteness in one branch-free pass over the bits: as integers with the sign folded, floats
// compare in their order (but for -0 < +0, which the search for the token by value puts right).
RowScan scan(std::span<const float> x) {
  int32_t max = std::numeric_limits<int32_t>::min();
  int32_t not_finite = 0;
  for (const float value : x) {
    const int32_t bits = std::bit_cast<int32_t>(value);
    const int32_t ordered = bits ^ ((bits >> 31) & 0x7fffffff);
    max = ordered > max ? ordered : max;
    not_finite |= -int32_t((bits & 0x7f800000) == 0x7f800000);
  }
  return {std::bit_cast<float>(max ^ ((max >> 31) & 0x7fffffff)), not_finite == 0};
}

Error not_finite(std::span<const float> x) {
  const auto at = std::find_if(x.begin(), x.end(), [](float v) { return !std::isfinite(v); });
  return Error{fmt::format(
      "logits: token {} of {} is {}, want finite numbers; the model's weights or its state are damaged "
      "(`tandem inspect --check` names tensors that are not finite)",
      at - x.begin(), x.size(), *at)};
}

Error nothing_left() {
  return Error{
      "no token is left to choose from: the grammar and min_tokens together mask the whole vocabulary"};
}

TokenId first_equal(std::span<const float> x, float value) {
  return TokenId(std::find(x.begin(), x.end(), value) - x.begin());
}

// Checks the model's logits, applies the processors and returns the largest logit left.
Result<float> prepare(const SampleRow& row) {
  TD_CHECK(!row.logits.empty(), "a row of no logits at position %u", row.position);
  RowScan s = scan(row.logits);
  if (!s.finite) return not_finite(row.logits);
  if (!changes_logits(row.params, row.history, row.allowed)) return s.max;
  process_logits(row.params, row.history, row.allowed, row.logits);
  s = scan(row.logits);
  if (s.max == kMasked) return nothing_left();
  if (!std::isfinite(s.max)) {
    return Error{fmt::format(
        "repetition_penalty {} takes the largest logit out of the range of fp32; use a value nearer 1",
        row.params.repetition_penalty)};
  }
  return s.max;
}

struct Best {
  float value = kMasked;
  TokenId id = -1;

  void offer(float v, TokenId i) {
    if (v > value || (v == value && (id < 0 || i < id))) *this = {v, i};
  }
};

// Gumbel-max over the whole row. Four tokens share a Philox block, and a token whose noise cannot lift it
// over the best so far costs no logarithm.
TokenId draw_from_row(const SampleRow& row, float x_max, const NoiseKey& key) {
  const std::span<const float> x = row.logits;
  Best best;
  for (size_t i = 0; i < x.size(); i += 4) {
    const PhiloxBlock bits = noise_bits4(key, uint32_t(i / 4));
    for (size_t j = i; j < std::min(i + 4, x.size()); ++j) {
      const float score = (x[j] - x_max) / row.params.temperature;
      const uint32_t word = bits[j % 4];
      if (score == kMasked || score + gumbel_upper_bound(word) < best.value) continue;
      best.offer(score + gumbel_from_bits(word), TokenId(j));
    }
  }
  return best.id;
}

TokenId draw(std::span<const Candidate> candidates, const NoiseKey& key) {
  Best best;
  for (const Candidate& c : candidates) best.offer(c.score + gumbel_noise(key, c.id), c.id);
  return best.id;
}

}  // namespace

Sampler::Sampler(int n_vocab) { candidates_.reserve(size_t(n_vocab) + 64); }

std::span<const Candidate> Sampler::survivors(const SampleRow& row, float x_max) {
  const std::span<const float> x = row.logits;
  const SamplingParams& p = row.params;
  const auto score = [&](size_t i) { return (x[i] - x_max) / p.temperature; };
  if (p.top_k > 0 && size_t(p.top_k) < x.size()) {
    TopSelection best(candidates_, size_t(p.top_k));
    for (size_t i = 0; i < x.size(); ++i) {
      if (const float t = score(i); t > kMasked) best.offer(t, TokenId(i));
    }
    best.finish();
  } else {
    candidates_.clear();
    for (size_t i = 0; i < x.size(); ++i) {
      if (const float t = score(i); t > kMasked) candidates_.push_back({t, TokenId(i)});
    }
  }
  return cut(p);
}

std::span<const Candidate> Sampler::cut(const SamplingParams& p) {
  std::span<Candidate> left = candidates_;
  if (p.top_p < 1) left = left.first(cut_top_p(left, p.top_p));
  if (p.min_p > 0) {
    const float least = float(std::log(p.min_p));
    const auto end =
        std::partition(left.begin(), left.end(), [&](const Candidate& c) { return c.score >= least; });
    left = left.first(size_t(end - left.begin()));
  }
  return left;
}

Result<TokenId> Sampler::choose(const SampleRow& row) {
  TD_ASSIGN_OR_RETURN(const float x_max, prepare(row));
  const SamplingParams& p = row.params;
  if (p.temperature == 0) return first_equal(row.logits, x_max);
  const NoiseKey key{.seed = p.seed, .position = row.position, .purpose = NoisePurpose::choose};
  const bool whole_row = p.top_k == 0 && p.top_p >= 1 && p.min_p == 0;
  return whole_row ? draw_from_row(row, x_max, key) : draw(survivors(row, x_max), key);
}

std::optional<TokenId> Sampler::choose_among(std::span<const float> values, std::span<const TokenId> ids,
                                             const SamplingParams& p, uint32_t position) {
  const auto k = size_t(p.top_k);
  TD_CHECK(k > 0 && k < values.size() && p.temperature > 0, "top_k %d of %zu best logits, temperature %g",
           p.top_k, values.size(), double(p.temperature));
  const auto score = [&](size_t i) { return (values[i] - values[0]) / p.temperature; };
  // What is not among the best scores at most as much as the last of them.
  if (const float last = score(values.size() - 1); last > kMasked && last == score(k - 1))
    return std::nullopt;
  candidates_.clear();
  for (size_t i = 0; i < values.size(); ++i) {
    if (const float t = score(i); t > kMasked) candidates_.push_back({t, ids[i]});
  }
  std::sort(candidates_.begin(), candidates_.end(), better);
  if (candidates_.size() > k) candidates_.resize(k);
  return draw(cut(p), {.seed = p.seed, .position = position, .purpose = NoisePurpose::choose});
}

Status Sampler::distribution(const SampleRow& row, std::span<float> probs) {
  TD_CHECK(probs.size() == row.logits.size(), "%zu probabilities for %zu logits", probs.size(),
           row.logits.size());
  TD_ASSIGN_OR_RETURN(const float x_max, prepare(row));
  std::fill(probs.begin(), probs.end(), 0.0f);
  if (row.params.temperature == 0) {
    probs[size_t(first_equal(row.logits, x_max))] = 1;
    return {};
  }
  for (const Candidate& c : survivors(row, x_max)) probs[size_t(c.id)] = std::exp(c.score);
  double sum = 0;  // by id, whatever order the cuts left
  for (const float p : probs) sum += p;
  for (float& p : probs) p = float(p / sum);
  return {};
}

}  // namespace tandem
