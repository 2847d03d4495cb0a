// Answers of OpenAI's Responses API: whole, or as the events of a stream, which ends with the whole.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/api/answer_parts.h"
#include "serve/api/blocks.h"

namespace tandem::serve {

class ResponseAnswer {
 public:
  // `echo`: the fields of the request that an answer repeats.
  ResponseAnswer(AnswerHead head, const Json& echo);
  void add(const TextStep& step) { add_to_blocks(step, blocks_); }
  void finish(std::string_view finish_reason) { cut_ = finish_reason == "length"; }
  // `timings`: null for none.
  std::string body(const Usage& usage, const Json& timings) const;

 private:
  friend class ResponseStream;
  // `usage`: null before the end. `error`: null, or what made it fail.
  std::string response(std::string_view status, const Usage* usage, const Json& error) const;
  std::string_view status() const { return cut_ ? "incomplete" : "completed"; }
  std::string item_id(size_t index) const;
  // As it begins: without its content.
  void append_item(size_t index, std::string_view status, bool begun_only, std::string& out) const;
  void append_part(size_t index, bool begun_only, std::string& out) const;

  AnswerHead head_;
  std::string echo_;  // without braces
  std::vector<Block> blocks_;
  bool cut_ = false;  // at the length asked for
};

// Every function appends whole events ("event: ..\ndata: {..}\n\n").
class ResponseStream {
 public:
  ResponseStream(AnswerHead head, const Json& echo) : answer_(std::move(head), echo) {}
  void begin(std::string& out);
  void add(const TextStep& step, std::string& out);
  void finish(std::string_view finish_reason, std::string& out);
  void end(const Usage& usage, std::string& out);
  void failed(const ApiError& error, std::string& out);

 private:
  void begin_event(std::string_view type, std::string& out);
  void item_event(std::string_view type, std::string& out);
  void response_event(std::string_view type, const std::string& response, std::string& out);
  void begin_block(std::string& out);
  void end_block(std::string_view status, std::string& out);

  ResponseAnswer answer_;
  bool open_ = false;  // the last block
  int64_t sequence_ = 0;
};

}  // namespace tandem::serve
