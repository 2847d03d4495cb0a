#include "cli/bench/load_engine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

namespace tandem::bench {

LoadResult run_on_engine(Engine& engine, const Load& load) {
  const size_t n = load.prompts.size();
  const bool open = !load.arrivals.empty();
  LoadResult result;
  result.answers.resize(n);
  std::map<int, size_t> running;  // number in the engine -> prompt
  size_t next = 0;
  const double start = now_s();
  while (next < n || !running.empty()) {
    const auto may_submit = [&] {
      if (next == n) return false;
      return open ? start + load.arrivals[next] <= now_s() : running.size() < size_t(load.concurrency);
    };
    while (may_submit()) {
      Answer& answer = result.answers[next];
      answer.start = open ? start + load.arrivals[next] : now_s();
      Request request;
      request.prompt = load.prompts[next].ids;
      request.max_tokens = load.max_tokens;
      const Result<int> number = engine.submit(std::move(request));
      if (number.ok()) {
        running[*number] = next;
      } else {
        answer.end = answer.start;
        answer.error = number.error().message;
      }
      ++next;
    }
    result.max_in_flight = std::max(result.max_in_flight, int(running.size()));
    if (running.empty()) {
      if (next < n) std::this_thread::sleep_for(std::chrono::microseconds(100));
      continue;
    }
    engine.step([&](const Event& event) {
      const auto it = running.find(event.request);
      if (it == running.end()) return;
      Answer& answer = result.answers[it->second];
      if (event.token) {
        answer.arrived.push_back(now_s());
        ++answer.tokens;
      }
      if (event.error != nullptr) answer.error = *event.error;
      if (event.finish == FinishReason::none) return;
      const RequestStats& stats = engine.stats(event.request);
      answer.end = now_s();
      answer.prompt_tokens = stats.prompt_tokens;
      answer.cached_tokens = stats.cached_tokens;
      running.erase(it);
    });
  }
  return result;
}

}  // namespace tandem::bench
