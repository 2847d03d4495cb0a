// Messages and the token ids of the prompt they make: what generate --chat and chat share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/loaded_model.h"

namespace tandem {

class Conversation {
 public:
  // thinking: the template's variable enable_thinking, left undefined when not given.
  Conversation(std::optional<std::string> system, std::optional<bool> thinking);

  void add_user(std::string text);
  // As generated. What stands before "</think>" becomes the message's reasoning, which templates leave out
  // of later prompts.
  void add_assistant(const std::string& text);
  // Takes back the last message of either kind.
  void drop_last();
  void clear();  // all but the system message

  // The prompt for the next answer. What users wrote never becomes a special token. Errors: no template or
  // tokenizer; what the template raises; text that is not UTF-8.
  Result<std::vector<TokenId>> prompt(const LoadedModel& model) const;

 private:
  struct Message {
    std::string role, content;
    std::optional<std::string> reasoning;
  };
  std::vector<Message> messages_;
  std::optional<bool> thinking_;
};

}  // namespace tandem
