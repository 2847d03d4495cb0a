// Parts that all answers share: who answers, usage, timings, log-probabilities.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "serve/api/api_error.h"
#include "serve/text/pipeline.h"

namespace tandem::serve {

struct AnswerHead {
  std::string id;           // the same in all chunks
  int64_t created = 0;      // Unix seconds
  std::string model;        // the served name
  std::string fingerprint;  // fingerprint()
};

// "tandem-<version>-<first 8 of the weights' hash>-<device>"
std::string fingerprint(std::string_view version, std::string_view weights_hash, std::string_view device);

// `prefix` and n characters of A-Z a-z 0-9 made from the two words.
std::string make_id(std::string_view prefix, size_t n, uint64_t word_0, uint64_t word_1);
// "call_<24 characters>": the same for the same call of the same answer, streamed or not.
std::string tool_call_id(std::string_view answer_id, int choice, int call);

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0, reasoning_tokens = 0;
  int64_t accepted_tokens = 0, rejected_tokens = 0;  // of drafts
};
void append_usage(const Usage& usage, std::string& out);

// What ended an answer: nothing to tell, a stop string, or a stop token.
using StopReason = std::variant<std::monostate, std::string, TokenId>;
void append_stop_reason(const StopReason& reason, std::string& out);

struct Timings {
  double queue_ms = 0, prefill_ms = 0, ttft_ms = 0, decode_ms = 0;
  double prompt_tps = 0, generation_tps = 0;
  int64_t rounds = 0, draft_tokens = 0, accepted_tokens = 0;
  double mean_accepted = 0;
  std::vector<double> accepted_by_position;
  std::string prefix_cache = "none";  // none, partial, exact
  int64_t cached_tokens = 0, peak_memory_bytes = 0;
  std::optional<double> energy_joules, prefill_energy_joules, decode_energy_joules;
};
Json timings_json(const Timings& timings);
// The payload of ": generation_stats": five fields with fixed names, and all timings.
Json generation_stats(const Timings& timings, const Usage& usage);

// One entry of logprobs.content: token, logprob, bytes, top_logprobs. `token` is text (U+FFFD where the bytes
// are none), `bytes` the token's own. -infinity is -9999.0; alternatives without a number are left out.
void append_logprob_entry(const TokenEntry& entry, const Tokenizer& tokenizer, std::string& out);
// A token's text as answers show it.
std::string token_text(const Tokenizer& tokenizer, TokenId id);
void append_logprob(float logprob, std::string& out);

}  // namespace tandem::serve
