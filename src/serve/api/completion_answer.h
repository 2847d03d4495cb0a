// Answers to completions, whole or streamed, with the log-probabilities in their older shape: parallel
// arrays.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/answer_parts.h"

namespace tandem::serve {

// {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []} as it grows.
class CompletionLogprobs {
 public:
  // `with_top`: the request asked for alternatives (logprobs > 0). `offset`: characters before the text that
  // the entries count from (an echoed prompt).
  void add(const TokenEntry& entry, const Tokenizer& tokenizer, bool with_top, size_t offset);
  // A token of the prompt without anything before it: it has no log-probability.
  void add_first(TokenId id, const Tokenizer& tokenizer);
  bool empty() const { return tokens_.empty(); }
  void append_json(std::string& out) const;
  void clear();

 private:
  std::string tokens_, values_, top_, offsets_;  // comma-separated
};

// The text of an echoed prompt and, when asked for, what the model says of its tokens.
struct PromptEcho {
  std::string text;
  std::vector<TokenId> ids;         // all of the prompt
  std::vector<TokenEntry> entries;  // of ids[1..], in order; empty when no log-probabilities are wanted
};

class CompletionChoice {
 public:
  // `logprobs`: as the request has them.
  CompletionChoice(const Tokenizer& tokenizer, std::optional<int> logprobs)
      : tokenizer_(&tokenizer), logprobs_(logprobs) {}

  void echo(const PromptEcho& prompt);  // before all steps
  void add(const TextStep& step);
  void finish(std::string_view finish_reason, StopReason stop_reason);
  void append_json(int index, std::string& out) const;

 private:
  const Tokenizer* tokenizer_;
  std::optional<int> logprobs_;
  std::string text_;
  size_t offset_ = 0;
  CompletionLogprobs entries_;
  std::string finish_reason_;
  StopReason stop_reason_;
};

std::string completion_body(const AnswerHead& head, std::span<const CompletionChoice> choices,
                            const Usage& usage, const Json& timings);

class CompletionStream {
 public:
  CompletionStream(const AnswerHead& head, const Tokenizer& tokenizer, int n_choices,
                   std::optional<int> logprobs, bool include_usage);

  void echo(int choice, const PromptEcho& prompt, std::string& out);  // before all steps
  void add(int choice, const TextStep& step, std::string& out, const Usage* running = nullptr);
  void finish(int choice, std::string_view finish_reason, const StopReason& stop_reason, std::string& out,
              const Usage* running = nullptr);
  void usage(const Usage& usage, std::string& out) const;

 private:
  struct Choice {
    CompletionLogprobs entries;  // not sent yet
    size_t offset = 0;
  };
  void event(int choice, std::string_view text, std::string_view finish_reason, const StopReason& stop_reason,
             const Usage* running, std::string& out);

  const Tokenizer* tokenizer_;
  std::optional<int> logprobs_;
  bool include_usage_;
  std::string head_, usage_head_;
  std::vector<Choice> choices_;
};

}  // namespace tandem::serve
