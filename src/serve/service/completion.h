// A chat or completion on its way through the engine: tokens in, what the client reads out.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/service/answer_writer.h"
#include "serve/service/engine_loop.h"
#include "serve/service/exchange.h"
#include "serve/text/pipeline.h"

namespace tandem::serve {

struct CompletionPlan {
  std::vector<Request> requests;   // one for each choice
  PipelineOptions text;            // of every choice
  std::vector<PromptEcho> echoes;  // of every choice, or none
  std::unique_ptr<AnswerWriter> writer;
  int64_t prompt_tokens = 0;   // of all prompts, each counted once
  int choices_per_prompt = 1;  // that stand together
  bool stream = false, timings = false;
  std::string ignored;              // x-tandem-ignored
  std::function<void()> when_over;  // whatever the end was; on the engine's thread
};

class Completion final : public Generation {
 public:
  // Errors: a stop string that the pipeline refuses.
  static ApiResult<std::shared_ptr<Completion>> create(const Exchange& exchange, CompletionPlan plan);
  ~Completion() override;

  std::vector<Request> take_requests() override { return std::move(plan_.requests); }
  void refused(const ApiError& error) override;
  void accepted() override;
  Next token(int choice, const Event& event) override;
  void over(int choice, const Event* event, const RequestStats& stats) override;
  void flush() override;
  void tick() override;
  // An answer for which nothing need be generated.
  void answer_empty();

 private:
  using Clock = std::chrono::steady_clock;
  struct Choice {
    std::unique_ptr<TextPipeline> text;
    StopReason stop;
  };

  Completion(const Exchange& exchange, CompletionPlan plan);
  void finish(int choice, EndReason reason);
  void end();

  CompletionPlan plan_;
  Exchange exchange_;  // without the request's body
  std::vector<Choice> choices_;
  int n_left_;
  bool began_ = false;  // the stream's head is out
  bool done_ = false;
  Usage usage_;
  Timings timings_;
  double decode_s_ = 0;
  int64_t decoded_ = 0;
  const Clock::time_point received_ = Clock::now();
  Clock::time_point first_token_{}, last_write_ = received_;
};

}  // namespace tandem::serve
