// A load of completions, and what was seen of each answer: the common measure of an endpoint (load_client.h)
// and of an engine without one (load_engine.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"

namespace tandem::bench {

struct Prompt {
  std::vector<TokenId> ids;  // of exact length; empty: the text alone is known
  std::string text;
};

struct Load {
  std::vector<Prompt> prompts = {};  // one request each
  int max_tokens = 1;
  int concurrency = 1;                // closed loop: so many requests at once, the next when one has ended
  std::vector<double> arrivals = {};  // open loop: when each request is sent, in seconds; empty: closed
};

// Times are seconds of one clock.
struct Answer {
  double start = 0;
  double end = 0;               // all of it had come
  std::vector<double> arrived;  // of each event with text; those of one round share a time, or nearly
  int tokens = 0;               // as the server counts them; where it does not, events
  int prompt_tokens = 0, cached_tokens = 0;
  std::string error;  // empty: it is whole
  // What the server says of itself, where it does.
  std::optional<double> server_tokens_per_s, server_ttft_ms, mean_accepted;

  bool ok() const { return error.empty(); }
  double first() const { return arrived.empty() ? end : arrived.front(); }
  double last() const { return arrived.empty() ? end : arrived.back(); }
};

struct LoadResult {
  std::vector<Answer> answers;  // in the order of the prompts
  double client_cpu_share = 0;  // of one core while it ran
  int max_in_flight = 0;
};

// Seconds of the steady clock.
double now_s();

}  // namespace tandem::bench
