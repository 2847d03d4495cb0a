// Answers to chats: whole, or as the chunks of a stream. Both are made from the same steps of the text
// pipeline, and say the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/api/answer_parts.h"

namespace tandem::serve {

// The field in which thinking is sent.
enum class ReasoningField : uint8_t { reasoning_content, reasoning, both };

// One choice of an answer that is sent as a whole.
class ChatChoice {
 public:
  // Borrows the tokenizer. `logprobs`: the request asked for them.
  ChatChoice(const Tokenizer& tokenizer, bool logprobs) : tokenizer_(&tokenizer), logprobs_(logprobs) {}

  void add(const TextStep& step);
  void finish(std::string_view finish_reason, StopReason stop_reason);
  void append_json(const AnswerHead& head, int index, ReasoningField field, std::string& out) const;

 private:
  struct Call {
    std::string name, arguments;
  };
  const Tokenizer* tokenizer_;
  bool logprobs_;
  std::string content_, reasoning_, entries_;
  std::vector<Call> calls_;
  std::string finish_reason_;
  StopReason stop_reason_;
};

// The body of a chat.completion. `timings`: null for none.
std::string chat_completion(const AnswerHead& head, std::span<const ChatChoice> choices, const Usage& usage,
                            const Json& timings, ReasoningField field);

struct ChunkOptions {
  ReasoningField reasoning = ReasoningField::reasoning_content;
  bool include_usage = false;  // chunks carry "usage": null, and one at the end carries it
  bool logprobs = false;       // the request asked for them
};

// Writes the events of one streamed answer; every function appends whole events ("data: {..}\n\n").
class ChatStream {
 public:
  ChatStream(const AnswerHead& head, const Tokenizer& tokenizer, int n_choices, ChunkOptions options);

  // The role chunk comes by itself before a choice's first event. `running`: usage so far, for clients that
  // want it in every chunk.
  void add(int choice, const TextStep& step, std::string& out, const Usage* running = nullptr);
  void finish(int choice, std::string_view finish_reason, const StopReason& stop_reason, std::string& out,
              const Usage* running = nullptr);
  // Behind the last choice's finish: the usage chunk, if the request asked for it.
  void usage(const Usage& usage, std::string& out) const;

 private:
  struct Choice {
    bool began = false;
    std::string entries;  // log-probabilities whose token had no event of its own
  };
  void begin(int choice, std::string& out) const;
  void end(int choice, const Usage* running, std::string& out);
  void role(int choice, std::string& out, const Usage* running);
  void add_piece(int choice, const Piece& piece, std::string& out);

  const Tokenizer* tokenizer_;
  ChunkOptions options_;
  std::string id_;
  std::string head_;  // up to the choice's index
  std::string usage_head_;
  std::vector<Choice> choices_;
};

}  // namespace tandem::serve
