// An answer as its tokens' text comes: four forms, chat or completion, whole or streamed.
#pragma once

#include <memory>
#include <string>

#include "serve/api/chat_answer.h"
#include "serve/api/completion_answer.h"
#include "serve/api/sse.h"

namespace tandem::serve {

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // Of a stream: what stands before all else, tells that the server is there, and ends one that failed.
  virtual void begin(const Usage&) { keep_alive(); }
  virtual void keep_alive() { out_ += kSseKeepAlive; }
  virtual void failed(const ApiError& error) { append_stream_error(error, out_); }
  virtual void echo(int choice, const PromptEcho& prompt) = 0;  // before all steps; completions only
  virtual void add(int choice, const TextStep& step) = 0;
  virtual void finish(int choice, std::string_view finish_reason, StopReason stop_reason) = 0;
  // Behind the last choice. `timings`: null for none.
  virtual void end(const Usage& usage, const Timings& timings, bool with_timings) = 0;
  // What may be sent now: events, or the body once it is whole.
  std::string& out() { return out_; }

 protected:
  std::string out_;
};

struct WriterOptions {
  AnswerHead head;
  const Tokenizer* tokenizer = nullptr;  // borrowed
  int n_choices = 1;
  bool include_usage = false;
  std::optional<int> logprobs;
};

std::unique_ptr<AnswerWriter> chat_writer(const WriterOptions& options, bool stream);
std::unique_ptr<AnswerWriter> completion_writer(const WriterOptions& options, bool stream);

}  // namespace tandem::serve
