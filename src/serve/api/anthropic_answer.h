// Answers of Anthropic's Messages API: whole, or as the events of a stream. Both are made from the same steps
// of the text pipeline, and say the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/api/answer_parts.h"
#include "serve/api/blocks.h"

namespace tandem::serve {

class AnthropicMessage {
 public:
  explicit AnthropicMessage(AnswerHead head) : head_(std::move(head)) {}
  void add(const TextStep& step) { add_to_blocks(step, blocks_); }
  void finish(std::string_view finish_reason, StopReason stop_reason);
  // `timings`: null for none.
  std::string body(const Usage& usage, const Json& timings) const;

 private:
  AnswerHead head_;
  std::vector<Block> blocks_;
  std::string finish_reason_;
  StopReason stop_reason_;
};

// Every function appends whole events ("event: ..\ndata: {..}\n\n").
class AnthropicStream {
 public:
  explicit AnthropicStream(AnswerHead head) : head_(std::move(head)) {}
  // What of the prompt was cached is known at the end only: until then all of it counts as computed.
  void begin(const Usage& usage, std::string& out) const;
  void ping(std::string& out) const;
  void add(const TextStep& step, std::string& out);
  void finish(std::string_view finish_reason, StopReason stop_reason, std::string& out);
  void end(const Usage& usage, std::string& out) const;
  void failed(const ApiError& error, std::string& out) const;

 private:
  void begin_block(const Piece& piece, std::string& out);
  void end_block(std::string& out);

  AnswerHead head_;
  BlockKind open_ = BlockKind::none;
  int n_blocks_ = 0, n_calls_ = 0;
  std::string finish_reason_;
  StopReason stop_reason_;
};

}  // namespace tandem::serve
