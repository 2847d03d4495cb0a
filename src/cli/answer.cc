#include "cli/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/interrupt.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace tandem {
namespace {

// Tokens -> text with stop strings taken out.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, StopMatcher matcher)
      : detokenizer_(tokenizer, SpecialText::skip), matcher_(std::move(matcher)) {}

  std::string feed(TokenId id) { return match(detokenizer_.feed(id)); }
  std::string finish() {
    std::string text = match(detokenizer_.finish());
    if (!stopped_) text += matcher_.finish();
    return text;
  }
  bool stopped() const { return stopped_; }

 private:
  std::string match(std::string_view piece) {
    if (stopped_) return {};
    StopMatcher::Output out = matcher_.feed(piece);
    stopped_ = out.matched.has_value();
    return std::move(out.text);
  }

  Detokenizer detokenizer_;
  StopMatcher matcher_;
  bool stopped_ = false;
};

}  // namespace

Result<Answer> run_answer(Engine& engine, const Tokenizer* tokenizer, Request request,
                          const std::vector<std::string>& stop_strings,
                          const std::function<bool(std::string_view)>& piece) {
  std::optional<TextStream> stream;
  if (tokenizer != nullptr) {
    TD_ASSIGN_OR_RETURN(StopMatcher matcher, StopMatcher::create(stop_strings));
    stream.emplace(*tokenizer, std::move(matcher));
  } else if (!stop_strings.empty()) {
    return Error{"--stop needs a tokenizer, and the model's folder has no tokenizer.json"};
  }
  Answer answer;
  if (tokenizer != nullptr) answer.text.emplace();
  TD_ASSIGN_OR_RETURN(const int number, engine.submit(std::move(request)));
  std::string error;
  bool go_on = true;
  const auto give = [&](std::string_view text) {
    if (text.empty()) return;
    if (answer.text) *answer.text += text;
    go_on = piece(text) && go_on;
  };
  const auto sink = [&](const Event& event) {
    // A round may give more tokens than the answer takes.
    if ((stream && stream->stopped()) || !go_on) return;
    if (event.token) {
      answer.tokens.push_back(*event.token);
      if (event.logprobs != nullptr) answer.logprobs.push_back(*event.logprobs);
      if (stream) {
        give(stream->feed(*event.token));
      } else {
        give(fmt::format("{}{}", answer.tokens.size() > 1 ? "," : "", *event.token));
      }
    }
    if (event.error != nullptr) error = *event.error;
    answer.finish = event.finish;
  };
  while (!engine.idle()) {
    engine.step(sink);
    const bool stopped = stream && stream->stopped();
    if (stopped) answer.finish = FinishReason::stop;
    if (stopped || !go_on || interrupted()) engine.cancel(number);
  }
  if (!error.empty()) return Error{error};
  if (stream && go_on) {
    give(stream->finish());
    if (stream->stopped()) answer.finish = FinishReason::stop;
  }
  answer.stats = engine.stats(number);
  answer.stats.generated_tokens = int(answer.tokens.size());
  return answer;
}

std::string figures(const Answer& answer, int max_tokens) {
  const RequestStats& s = answer.stats;
  const bool context_full = answer.finish == FinishReason::length && s.generated_tokens < max_tokens;
  return fmt::format("{} prompt tokens in {:.3f} s ({:.0f}/s), {} tokens generated{}{}", s.prompt_tokens,
                     s.prefill_s, s.prefill_s > 0 ? s.prompt_tokens / s.prefill_s : 0.0, s.generated_tokens,
                     s.generated_tokens > 1 ? fmt::format(" at {:.1f}/s", s.decode_tokens_per_s()) : "",
                     context_full ? " until the context was full" : "");
}

std::string figures(const SpeculationStats& s) {
  if (s.drafter.empty()) return {};
  const double all_s = s.draft_s + s.verify_s + s.other_s;
  const auto share = [&](double seconds) { return all_s > 0 ? std::lround(100 * seconds / all_s) : 0; };
  const long verify = share(s.verify_s), draft = std::min(share(s.draft_s), 100 - verify);
  // A few rounds say nothing, and neither do a few lucky drafts.
  const bool paid = s.rounds <= 20 || s.tokens_per_round() >= 1.05;
  return fmt::format(
      "{}{}: {}{} rounds, {:.2f} tokens each, {} of {} drafts accepted{}; {}% of the time verifying, "
      "{}% drafting, {}% the rest",
      s.drafter, s.simulated ? " (accepted by lot: the text is no model's)" : "",
      s.speed_up() > 0 && paid ? fmt::format("about {:.2f}x plain decoding, ", s.speed_up()) : "", s.rounds,
      s.tokens_per_round(), s.accepted, s.drafted, paid ? "" : ": drafting did not pay for this text", verify,
      draft, all_s > 0 ? 100 - verify - draft : 0);
}

}  // namespace tandem
