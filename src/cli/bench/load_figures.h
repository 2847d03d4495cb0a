// Answers -> figures. What they mean stands in docs/serving.md.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "cli/bench/load.h"

namespace tandem::bench {

// Of the answers of one load; those that failed count in n_errors alone.
struct LoadFigures {
  int n_requests = 0, n_errors = 0;
  int64_t tokens = 0, prompt_tokens = 0, cached_tokens = 0;
  // All tokens over the time from the first event of any answer to the last of any.
  std::optional<double> aggregate;
  // Tokens that came while all answers ran, over that time; none where they never did.
  std::optional<double> aggregate_steady;
  std::optional<double> end_to_end;         // all tokens over the time from the first request to the last end
  std::optional<double> prefill_aggregate;  // computed prompt tokens until the last first event
  bool coherent = true;                     // the aggregate is no more than the requests' own speeds allow

  static LoadFigures of(std::span<const Answer> answers);
};

// One value for each answer that has it.
std::vector<double> decode_speeds(std::span<const Answer> answers);   // (tokens - 1) / (last - first)
std::vector<double> prefill_speeds(std::span<const Answer> answers);  // computed ones / (first - start)
std::vector<double> ttft_ms(std::span<const Answer> answers);
std::vector<double> tpot_ms(std::span<const Answer> answers);
// Between events with text of an answer; per_round: events that came together are one.
std::vector<double> gaps_ms(std::span<const Answer> answers, bool per_round);

}  // namespace tandem::bench
