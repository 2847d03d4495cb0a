#include "serve/service/answer_writer.h"

namespace tandem::serve {
namespace {

// The end of a stream behind its finish and usage chunks.
void append_tail(const Usage& usage, const Timings& timings, std::string& out) {
  append_comment("generation_stats", generation_stats(timings, usage), out);
  out += kSseDone;
}

Json wanted(const Timings& timings, bool with_timings) {
  return with_timings ? timings_json(timings) : Json();
}

class WholeChat final : public AnswerWriter {
 public:
  explicit WholeChat(const WriterOptions& o)
      : head_(o.head), choices_(size_t(o.n_choices), ChatChoice(*o.tokenizer, o.logprobs.has_value())) {}
  void echo(int, const PromptEcho&) override {}
  void add(int choice, const TextStep& step) override { choices_[size_t(choice)].add(step); }
  void finish(int choice, std::string_view finish_reason, StopReason stop_reason) override {
    choices_[size_t(choice)].finish(finish_reason, std::move(stop_reason));
  }
  void end(const Usage& usage, const Timings& timings, bool with_timings) override {
    out_ = chat_completion(head_, choices_, usage, wanted(timings, with_timings),
                           ReasoningField::reasoning_content);
  }

 private:
  AnswerHead head_;
  std::vector<ChatChoice> choices_;
};

class WholeCompletion final : public AnswerWriter {
 public:
  explicit WholeCompletion(const WriterOptions& o)
      : head_(o.head), choices_(size_t(o.n_choices), CompletionChoice(*o.tokenizer, o.logprobs)) {}
  void echo(int choice, const PromptEcho& prompt) override { choices_[size_t(choice)].echo(prompt); }
  void add(int choice, const TextStep& step) override { choices_[size_t(choice)].add(step); }
  void finish(int choice, std::string_view finish_reason, StopReason stop_reason) override {
    choices_[size_t(choice)].finish(finish_reason, std::move(stop_reason));
  }
  void end(const Usage& usage, const Timings& timings, bool with_timings) override {
    out_ = completion_body(head_, choices_, usage, wanted(timings, with_timings));
  }

 private:
  AnswerHead head_;
  std::vector<CompletionChoice> choices_;
};

// Stream: ChatStream or CompletionStream.
template <class Stream>
class Streamed final : public AnswerWriter {
 public:
  explicit Streamed(Stream stream) : stream_(std::move(stream)) {}
  void echo(int choice, const PromptEcho& prompt) override {
    if constexpr (requires { stream_.echo(choice, prompt, out_); }) stream_.echo(choice, prompt, out_);
  }
  void add(int choice, const TextStep& step) override { stream_.add(choice, step, out_); }
  void finish(int choice, std::string_view finish_reason, StopReason stop_reason) override {
    stream_.finish(choice, finish_reason, stop_reason, out_);
  }
  void end(const Usage& usage, const Timings& timings, bool) override {
    stream_.usage(usage, out_);
    append_tail(usage, timings, out_);
  }

 private:
  Stream stream_;
};

}  // namespace

std::unique_ptr<AnswerWriter> chat_writer(const WriterOptions& options, bool stream) {
  if (stream) {
    return std::make_unique<Streamed<ChatStream>>(
        ChatStream(options.head, *options.tokenizer, options.n_choices,
                   {.include_usage = options.include_usage, .logprobs = options.logprobs.has_value()}));
  }
  return std::make_unique<WholeChat>(options);
}

std::unique_ptr<AnswerWriter> completion_writer(const WriterOptions& options, bool stream) {
  if (stream) {
    return std::make_unique<Streamed<CompletionStream>>(CompletionStream(
        options.head, *options.tokenizer, options.n_choices, options.logprobs, options.include_usage));
  }
  return std::make_unique<WholeCompletion>(options);
}

}  // namespace tandem::serve
