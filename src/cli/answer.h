// One answer of the engine as text that arrives in pieces: what generate and chat share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace tandem {

struct Answer {
  std::vector<TokenId> tokens;               // without the prompt and the stop token
  std::optional<std::string> text;           // special tokens skipped; none without a tokenizer
  std::vector<Logprobs> logprobs;            // of each token, if asked for
  FinishReason finish = FinishReason::none;  // none: the user or the reader of the output ended it
  RequestStats stats;
};

// Runs the request to its end. Calls `piece` with text as soon as it is certain; without a tokenizer, with
// ids and commas. Stops early when `piece` returns false or Ctrl-C was pressed. A stop string ends the answer
// before itself. Errors: what the engine says; stop strings without a tokenizer.
Result<Answer> run_answer(Engine& engine, const Tokenizer* tokenizer, Request request,
                          const std::vector<std::string>& stop_strings,
                          const std::function<bool(std::string_view)>& piece);

// "7 prompt tokens in 0.012 s (583/s), 96 tokens generated at 812.3/s"
// Says so where the answer ended before max_tokens because the context was full.
std::string figures(const Answer& answer, int max_tokens);
// "dflash: 24 rounds, 3.96 tokens each, 71 of 120 drafts accepted; 61% of the time verifying, 30% drafting,
// 9% the rest". Says so where drafting did not pay. Empty without a drafter.
std::string figures(const SpeculationStats& stats);

}  // namespace tandem
