#include "engine/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "state/state_pool.h"

namespace tandem {
namespace {

// One NaN among the logits makes a log-probability NaN or, where it is passed over, merely wrong.
Status check_finite(std::span<const float> logits, int index) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  if (bad == logits.end()) return {};
  return Error{fmt::format(
      "the logits for the token at index {} are not finite (that of token {} is {}): some weights are NaN, "
      "infinite or so large that sums overflow; tandem inspect --check names the tensors that are not finite",
      index, bad - logits.begin(), *bad)};
}

}  // namespace

Status score_tokens(Decoder& decoder, std::span<const TokenId> tokens, int top,
                    const std::function<void(int index, const Logprobs&)>& sink,
                    const std::function<bool()>& stop) {
  const DecoderShape& shape = decoder.shape();
  if (tokens.empty()) return Error{"nothing to score: give at least one token"};
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= shape.n_vocab) {
      return Error{fmt::format("token {} at index {} is outside the vocabulary of {} tokens", tokens[i], i,
                               shape.n_vocab)};
    }
  }
  const int n = int(tokens.size());
  if (n > shape.max_positions) {
    return Error{
        fmt::format("{} tokens to score, the context holds {}: score them in parts", n, shape.max_positions)};
  }
  TD_ASSIGN_OR_RETURN(StatePool pool,
                      StatePool::create(decoder.backend(), decoder.state_shape(),
                                        {.max_sequences = 1, .max_positions = n, .tape_rows = 1}));
  TD_ASSIGN_OR_RETURN(SequenceState state, SequenceState::create(pool));
  const int chunk = decoder.limits().max_rows / kChunkTokens * kChunkTokens;
  const auto n_vocab = size_t(shape.n_vocab);
  for (int start = 0; start < n; start += chunk) {
    if (stop && stop()) return Error{"interrupted"};
    const int rows = std::min(chunk, n - start);
    TD_RETURN_IF_ERROR(state.begin_prefill(rows));
    const SeqStep seq = state.rows(0);
    decoder.forward({.path = Path::prefill, .n_rows = rows, .seqs = std::span(&seq, 1)},
                    tokens.subspan(size_t(start), size_t(rows)), pool);
    state.end_prefill();
    for (int first = 0; first < rows; first += decoder.limits().max_logit_rows) {
      if (stop && stop()) return Error{"interrupted"};
      const int block = std::min(decoder.limits().max_logit_rows, rows - first);
      const std::span<const float> logits = decoder.logits(first, block);
      for (int i = 0; i < block; ++i) {
        const int next = start + first + i + 1;
        if (next >= n) break;
        const std::span<const float> row = logits.subspan(size_t(i) * n_vocab, n_vocab);
        TD_RETURN_IF_ERROR(check_finite(row, next));
        sink(next, logprobs(row, tokens[size_t(next)], top));
      }
    }
  }
  return {};
}

}  // namespace tandem
