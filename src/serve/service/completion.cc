#include "serve/service/completion.h"

#include <algorithm>

namespace tandem::serve {
namespace {

constexpr std::chrono::seconds kKeepAlive{10};

double ms_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

http::Headers stream_headers(const Exchange& exchange, const std::string& ignored) {
  http::Headers headers = answer_headers(exchange, "text/event-stream; charset=utf-8", ignored);
  headers.emplace_back("cache-control", "no-cache, no-transform");
  headers.emplace_back("x-accel-buffering", "no");
  return headers;
}

}  // namespace

ApiResult<std::shared_ptr<Completion>> Completion::create(const Exchange& exchange, CompletionPlan plan) {
  auto completion = std::shared_ptr<Completion>(new Completion(exchange, std::move(plan)));
  for (Choice& choice : completion->choices_) {
    Result<std::unique_ptr<TextPipeline>> text = TextPipeline::create(completion->plan_.text);
    if (!text.ok()) return invalid_field("stop", "invalid_value", text.error().message);
    choice.text = *std::move(text);
  }
  return completion;
}

Completion::Completion(const Exchange& exchange, CompletionPlan plan)
    : plan_(std::move(plan)),
      exchange_{.request = {},
                .reply = exchange.reply,
                .id = exchange.id,
                .origin = exchange.origin,
                .rest = {},
                .errors = exchange.errors},
      choices_(plan_.requests.size()),
      n_left_(int(plan_.requests.size())) {
  usage_.prompt_tokens = plan_.prompt_tokens;
}

Completion::~Completion() {
  if (plan_.when_over) plan_.when_over();
}

void Completion::refused(const ApiError& error) {
  if (done_) return;
  done_ = true;
  if (began_) {
    plan_.writer->failed(error);
    flush();
    return exchange_.reply->end();
  }
  http::Headers headers = answer_headers(exchange_, "application/json", plan_.ignored);
  if (error.status == 429 || error.status == 503) headers.emplace_back("retry-after", "1");
  WrittenError written = write_error(error, exchange_.errors);
  exchange_.reply->send(written.status, std::move(headers), std::move(written.body));
}

void Completion::accepted() {
  timings_.queue_ms = ms_between(received_, Clock::now());
  if (plan_.stream) {
    began_ = true;
    exchange_.reply->begin_stream(200, stream_headers(exchange_, plan_.ignored));
    plan_.writer->begin(usage_);
    flush();
  }
  for (size_t i = 0; i < plan_.echoes.size(); ++i) plan_.writer->echo(int(i), plan_.echoes[i]);
}

Generation::Next Completion::token(int choice, const Event& event) {
  if (first_token_ == Clock::time_point{}) first_token_ = Clock::now();
  Choice& c = choices_[size_t(choice)];
  const TextStep& step = c.text->feed(*event.token, event.logprobs);
  if (step.stop) c.stop = plan_.text.stops[*step.stop];
  plan_.writer->add(choice, step);
  return step.ended ? Next::stop : Next::go_on;
}

void Completion::over(int choice, const Event* event, const RequestStats& stats) {
  if (done_) return;
  if (event != nullptr && event->finish == FinishReason::error) {
    return refused(engine_failed(*event->error, exchange_.id));
  }
  timings_.queue_ms = std::max(timings_.queue_ms, stats.queue_s * 1e3);
  timings_.prefill_ms = std::max(timings_.prefill_ms, stats.prefill_s * 1e3);
  // The choices of a prompt behind its first find it in the cache by themselves.
  if (choice % plan_.choices_per_prompt == 0) usage_.cached_tokens += stats.cached_tokens;
  decode_s_ += stats.decode_s;
  decoded_ += std::max(0, stats.generated_tokens - 1);
  timings_.rounds += stats.speculation.rounds;
  timings_.draft_tokens += stats.speculation.drafted;
  timings_.accepted_tokens += stats.speculation.accepted;
  usage_.accepted_tokens += stats.speculation.accepted;
  usage_.rejected_tokens += stats.speculation.drafted - stats.speculation.accepted;
  finish(choice,
         event != nullptr && event->finish == FinishReason::length ? EndReason::length : EndReason::stop);
}

void Completion::finish(int choice, EndReason reason) {
  Choice& c = choices_[size_t(choice)];
  plan_.writer->add(choice, c.text->finish(reason));
  plan_.writer->finish(choice, c.text->finish_reason(), c.stop);
  usage_.completion_tokens += c.text->n_tokens();
  usage_.reasoning_tokens += c.text->n_reasoning_tokens();
  if (--n_left_ == 0) end();
}

void Completion::end() {
  done_ = true;
  timings_.ttft_ms = first_token_ == Clock::time_point{} ? 0 : ms_between(received_, first_token_);
  timings_.decode_ms = decode_s_ * 1e3;
  timings_.generation_tps = decode_s_ > 0 ? double(decoded_) / decode_s_ : 0;
  timings_.prompt_tps = timings_.prefill_ms > 0 ? double(usage_.prompt_tokens - usage_.cached_tokens) /
                                                      (timings_.prefill_ms / 1e3)
                                                : 0;
  timings_.cached_tokens = usage_.cached_tokens;
  if (usage_.cached_tokens > 0) timings_.prefix_cache = "partial";
  timings_.mean_accepted =
      timings_.rounds > 0 ? double(timings_.accepted_tokens) / double(timings_.rounds) : 0;
  plan_.writer->end(usage_, timings_, plan_.timings);
  if (plan_.stream) {
    flush();
    return exchange_.reply->end();
  }
  exchange_.reply->send(200, answer_headers(exchange_, "application/json", plan_.ignored),
                        std::move(plan_.writer->out()));
}

void Completion::answer_empty() {
  accepted();
  for (int i = 0; i < int(choices_.size()); ++i) finish(i, EndReason::length);
}

void Completion::flush() {
  std::string& out = plan_.writer->out();
  if (!plan_.stream || out.empty()) return;
  exchange_.reply->write(out);
  out.clear();
  last_write_ = Clock::now();
}

void Completion::tick() {
  if (!began_ || done_ || Clock::now() - last_write_ < kKeepAlive) return;
  plan_.writer->keep_alive();
}

}  // namespace tandem::serve
