// Other APIs over the same chats: their bodies become chat tasks, their writers the shapes they expect.
#include "serve/api/anthropic_answer.h"
#include "serve/api/anthropic_request.h"
#include "serve/api/responses_answer.h"
#include "serve/api/responses_request.h"
#include "serve/service/service.h"

namespace tandem::serve {
namespace {

class WholeMessage final : public AnswerWriter {
 public:
  explicit WholeMessage(const WriterOptions& o) : message_(o.head) {}
  void echo(int, const PromptEcho&) override {}
  void add(int, const TextStep& step) override { message_.add(step); }
  void finish(int, std::string_view finish_reason, StopReason stop_reason) override {
    message_.finish(finish_reason, std::move(stop_reason));
  }
  void end(const Usage& usage, const Timings& timings, bool with_timings) override {
    out_ = message_.body(usage, with_timings ? timings_json(timings) : Json());
  }

 private:
  AnthropicMessage message_;
};

class StreamedMessage final : public AnswerWriter {
 public:
  explicit StreamedMessage(const WriterOptions& o) : stream_(o.head) {}
  void begin(const Usage& usage) override { stream_.begin(usage, out_); }
  void keep_alive() override { stream_.ping(out_); }
  void failed(const ApiError& error) override { stream_.failed(error, out_); }
  void echo(int, const PromptEcho&) override {}
  void add(int, const TextStep& step) override { stream_.add(step, out_); }
  void finish(int, std::string_view finish_reason, StopReason stop_reason) override {
    stream_.finish(finish_reason, std::move(stop_reason), out_);
  }
  void end(const Usage& usage, const Timings&, bool) override { stream_.end(usage, out_); }

 private:
  AnthropicStream stream_;
};

class WholeResponse final : public AnswerWriter {
 public:
  WholeResponse(const WriterOptions& o, const Json& echo) : answer_(o.head, echo) {}
  void echo(int, const PromptEcho&) override {}
  void add(int, const TextStep& step) override { answer_.add(step); }
  void finish(int, std::string_view finish_reason, StopReason) override { answer_.finish(finish_reason); }
  void end(const Usage& usage, const Timings& timings, bool with_timings) override {
    out_ = answer_.body(usage, with_timings ? timings_json(timings) : Json());
  }

 private:
  ResponseAnswer answer_;
};

class StreamedResponse final : public AnswerWriter {
 public:
  StreamedResponse(const WriterOptions& o, const Json& echo) : stream_(o.head, echo) {}
  void begin(const Usage&) override { stream_.begin(out_); }
  void failed(const ApiError& error) override { stream_.failed(error, out_); }
  void echo(int, const PromptEcho&) override {}
  void add(int, const TextStep& step) override { stream_.add(step, out_); }
  void finish(int, std::string_view finish_reason, StopReason) override {
    stream_.finish(finish_reason, out_);
  }
  void end(const Usage& usage, const Timings&, bool) override { stream_.end(usage, out_); }

 private:
  ResponseStream stream_;
};

}  // namespace

void Service::responses(Exchange& exchange) {
  const ApiResult<Json> body = body_of(exchange);
  if (!body.ok()) return answer(exchange, body.error());
  const ApiResult<ResponsesTask> task = read_responses_request(*body, context_);
  if (!task.ok()) return answer(exchange, task.error());
  answer_chat(
      exchange, *task, "resp_",
      [&](const WriterOptions& options) -> std::unique_ptr<AnswerWriter> {
        if (task->stream) return std::make_unique<StreamedResponse>(options, task->echo);
        return std::make_unique<WholeResponse>(options, task->echo);
      },
      "text.format");
}

void Service::messages(Exchange& exchange) {
  const ApiResult<Json> body = body_of(exchange);
  if (!body.ok()) return answer(exchange, body.error());
  const ApiResult<ChatTask> task = read_anthropic_request(*body, context_, false);
  if (!task.ok()) return answer(exchange, task.error());
  answer_chat(
      exchange, *task, "msg_",
      [&](const WriterOptions& options) -> std::unique_ptr<AnswerWriter> {
        if (task->stream) return std::make_unique<StreamedMessage>(options);
        return std::make_unique<WholeMessage>(options);
      },
      "output_config.format");
}

void Service::count_tokens(Exchange& exchange) {
  const ApiResult<Json> body = body_of(exchange);
  if (!body.ok()) return answer(exchange, body.error());
  const ApiResult<ChatTask> task = read_anthropic_request(*body, context_, true);
  if (!task.ok()) return answer(exchange, task.error());
  const ApiResult<ChatPrompt> prompt = prompt_of(*task, "output_config.format");
  if (!prompt.ok()) return answer(exchange, prompt.error());
  answer(exchange, 200, {{"input_tokens", prompt->ids.size()}});
}

}  // namespace tandem::serve
