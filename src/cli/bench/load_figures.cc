#include "cli/bench/load_figures.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace tandem::bench {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
// Events that are read within so long of each other left the server together: less than any step takes.
constexpr double kSameRoundS = 20e-6;
constexpr double kSlack = 1.02;

std::optional<double> rate(double amount, double seconds) {
  if (!(seconds > 0) || seconds == kForever) return std::nullopt;
  return amount / seconds;
}

double tokens_per_event(const Answer& a) {
  return a.arrived.empty() ? 0 : double(a.tokens) / double(a.arrived.size());
}

}  // namespace

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

LoadFigures LoadFigures::of(std::span<const Answer> answers) {
  LoadFigures f;
  double start = kForever, end = -kForever;
  double first = kForever, last_first = -kForever;  // of the answers' first events
  double last = -kForever, first_last = kForever;   // of their last ones
  double fastest = 0;
  int64_t streamed = 0;
  int n_streamed = 0;
  for (const Answer& a : answers) {
    ++f.n_requests;
    if (!a.ok()) {
      ++f.n_errors;
      continue;
    }
    f.tokens += a.tokens;
    f.prompt_tokens += a.prompt_tokens;
    f.cached_tokens += a.cached_tokens;
    start = std::min(start, a.start);
    end = std::max(end, a.end);
    if (a.arrived.empty()) continue;
    ++n_streamed;
    streamed += a.tokens;
    first = std::min(first, a.first());
    last_first = std::max(last_first, a.first());
    last = std::max(last, a.last());
    first_last = std::min(first_last, a.last());
    fastest = std::max(fastest, rate(a.tokens, a.last() - a.first()).value_or(kForever));
  }
  f.end_to_end = rate(double(f.tokens), end - start);
  if (n_streamed == 0) return f;
  f.aggregate = rate(double(streamed), last - first);
  f.prefill_aggregate = rate(double(f.prompt_tokens - f.cached_tokens), last_first - start);
  f.coherent = !f.aggregate || *f.aggregate <= n_streamed * fastest * kSlack;
  if (first_last > last_first) {
    double within = 0;
    for (const Answer& a : answers) {
      if (!a.ok()) continue;
      const auto n = std::count_if(a.arrived.begin(), a.arrived.end(),
                                   [&](double t) { return t > last_first && t <= first_last; });
      within += double(n) * tokens_per_event(a);
    }
    f.aggregate_steady = rate(within, first_last - last_first);
  }
  return f;
}

namespace {

template <class Value>
std::vector<double> of_each(std::span<const Answer> answers, const Value& value) {
  std::vector<double> values;
  for (const Answer& a : answers) {
    if (!a.ok() || a.arrived.empty()) continue;
    if (const std::optional<double> v = value(a)) values.push_back(*v);
  }
  return values;
}

}  // namespace

std::vector<double> decode_speeds(std::span<const Answer> answers) {
  return of_each(answers, [](const Answer& a) { return rate(a.tokens - 1, a.last() - a.first()); });
}

std::vector<double> prefill_speeds(std::span<const Answer> answers) {
  return of_each(
      answers, [](const Answer& a) { return rate(a.prompt_tokens - a.cached_tokens, a.first() - a.start); });
}

std::vector<double> ttft_ms(std::span<const Answer> answers) {
  return of_each(answers, [](const Answer& a) { return std::optional((a.first() - a.start) * 1e3); });
}

std::vector<double> tpot_ms(std::span<const Answer> answers) {
  return of_each(answers, [](const Answer& a) -> std::optional<double> {
    if (a.tokens < 2) return std::nullopt;
    return (a.last() - a.first()) / (a.tokens - 1) * 1e3;
  });
}

std::vector<double> gaps_ms(std::span<const Answer> answers, bool per_round) {
  std::vector<double> gaps;
  for (const Answer& a : answers) {
    if (!a.ok()) continue;
    for (size_t i = 1; i < a.arrived.size(); ++i) {
      const double gap = a.arrived[i] - a.arrived[i - 1];
      if (!per_round || gap > kSameRoundS) gaps.push_back(gap * 1e3);
    }
  }
  return gaps;
}

}  // namespace tandem::bench
