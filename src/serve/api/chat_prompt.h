// A chat task as the token ids of its prompt.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "serve/api/tasks.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::serve {

struct ChatPrompt {
  std::vector<TokenId> ids;
  std::vector<PromptPiece> pieces;
  std::string note;  // for the log: what had to be changed for the template; else empty
};

// What a conversation brought never becomes a special token. Developer messages are system messages for a
// template that does not know them; system messages that the template refuses where they stand are joined
// into the first. Errors (400): template_error with the template's own words, template_limit, empty_prompt.
ApiResult<ChatPrompt> make_chat_prompt(const ChatTask& task, const ChatTemplate& chat_template,
                                       const Tokenizer& tokenizer, std::optional<std::tm> now);

}  // namespace tandem::serve
