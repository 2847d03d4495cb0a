#include "cli/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "cli/json.h"
#include "text/unicode.h"

namespace tandem {

Conversation::Conversation(std::optional<std::string> system, std::optional<bool> thinking)
    : thinking_(thinking) {
  if (system) messages_.push_back({"system", *std::move(system), std::nullopt});
}

void Conversation::add_user(std::string text) {
  messages_.push_back({"user", std::move(text), std::nullopt});
}

void Conversation::add_assistant(const std::string& text) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const size_t close = text.rfind(kClose);
  if (close == std::string::npos) {
    messages_.push_back({"assistant", text, std::nullopt});
    return;
  }
  std::string_view reasoning = std::string_view(text).substr(0, close);
  if (reasoning.starts_with(kOpen)) reasoning.remove_prefix(kOpen.size());
  std::string_view content = std::string_view(text).substr(close + kClose.size());
  content.remove_prefix(std::min(content.find_first_not_of('\n'), content.size()));
  messages_.push_back({"assistant", std::string(content), std::string(reasoning)});
}

void Conversation::drop_last() {
  if (!messages_.empty() && messages_.back().role != "system") messages_.pop_back();
}

void Conversation::clear() {
  std::erase_if(messages_, [](const Message& m) { return m.role != "system"; });
}

Result<std::vector<TokenId>> Conversation::prompt(const LoadedModel& model) const {
  if (!model.tokenizer) return Error{model.name + ": no tokenizer.json, so text cannot be read"};
  if (!model.chat_template) return model.chat_template_error;
  ChatInput input{.messages = Json::array(), .tools = nullptr, .extra = nullptr, .now = std::nullopt};
  for (const Message& m : messages_) {
    if (const auto bad = first_invalid_utf8(m.content)) {
      return Error{fmt::format("the {} message is not valid UTF-8 at byte {} (0x{:02x})", m.role, *bad,
                               static_cast<unsigned char>(m.content[*bad]))};
    }
    Json message{{"role", m.role}, {"content", m.content}};
    if (m.reasoning) message["reasoning_content"] = *m.reasoning;
    input.messages.push_back(std::move(message));
  }
  if (thinking_) input.extra = Json{{"enable_thinking", *thinking_}};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  if (localtime_r(&now, &local) != nullptr) input.now = local;
  TD_ASSIGN_OR_RETURN(const std::vector<PromptPiece> pieces, model.chat_template->render_pieces(input));
  return model.tokenizer->encode(text_parts(pieces));
}

}  // namespace tandem
