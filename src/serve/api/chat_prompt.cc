#include "serve/api/chat_prompt.h"

#include <algorithm>

namespace tandem::serve {
namespace {

bool any_with_role(const Json& messages, std::string_view role) {
  return std::any_of(messages.begin(), messages.end(), [&](const Json& m) { return m["role"] == role; });
}

// Whether the words of a developer message reach the prompt.
bool knows_developer(const ChatTemplate& chat_template, const ChatInput& like) {
  constexpr const char* kProbe = "qzxjkvw";
  ChatInput probe = like;
  probe.messages = {{{"role", "developer"}, {"content", kProbe}}, {{"role", "user"}, {"content", "u"}}};
  const auto text = chat_template.render(probe);
  return text.ok() && text->find(kProbe) != std::string::npos;
}

// All system messages as one, which stands first.
Json with_one_system_message(const Json& messages) {
  std::string system;
  Json rest = Json::array();
  for (const Json& m : messages) {
    if (m["role"] != "system") {
      rest.push_back(m);
      continue;
    }
    if (!system.empty()) system += "\n\n";
    system += m["content"].get_ref<const std::string&>();
  }
  Json out = Json::array({{{"role", "system"}, {"content", std::move(system)}}});
  for (Json& m : rest) out.push_back(std::move(m));
  return out;
}

bool has_late_system_message(const Json& messages) {
  for (size_t i = 1; i < messages.size(); ++i) {
    if (messages[i]["role"] == "system") return true;
  }
  return false;
}

// Cuts the prompt behind the last message's own text, so that it goes on. False: the template changed the
// text.
bool cut_behind_last_message(const Json& messages, std::vector<PromptPiece>& pieces) {
  std::string_view last = messages.back()["content"].get_ref<const std::string&>();
  while (!last.empty() && (last.back() == ' ' || last.back() == '\n')) last.remove_suffix(1);
  if (last.empty()) return false;
  std::string all;
  for (const PromptPiece& piece : pieces) all += piece.text;
  const size_t found = all.rfind(last);
  if (found == std::string::npos) return false;
  size_t left = found + last.size();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].text.size() < left) {
      left -= pieces[i].text.size();
      continue;
    }
    pieces[i].text.resize(left);
    pieces.resize(i + 1);
    break;
  }
  return true;
}

ApiError template_error(const std::string& message) {
  bool limit = false;
  for (const char* words : {"the template ran more than", "the template built more than",
                            "the rendered text is longer than", "the template nests deeper than"}) {
    limit |= message.find(words) != std::string::npos;
  }
  return invalid_field("messages", limit ? "template_limit" : "template_error", "chat template: " + message);
}

}  // namespace

ApiResult<ChatPrompt> make_chat_prompt(const ChatTask& task, const ChatTemplate& chat_template,
                                       const Tokenizer& tokenizer, std::optional<std::tm> now) {
  ChatPrompt prompt;
  ChatInput input{.messages = task.messages,
                  .tools = task.tool_choice == ToolChoice::none ? Json(nullptr) : task.tools,
                  .add_generation_prompt = !task.continue_final_message,
                  .extra = task.template_extra,
                  .now = now};
  if (any_with_role(input.messages, "developer") && !knows_developer(chat_template, input)) {
    for (Json& m : input.messages) {
      if (m["role"] == "developer") m["role"] = "system";
    }
    prompt.note = "developer messages became system messages";
  }
  auto pieces = chat_template.render_pieces(input);
  if (!pieces.ok() && has_late_system_message(input.messages)) {
    ChatInput merged = input;
    merged.messages = with_one_system_message(input.messages);
    if (auto again = chat_template.render_pieces(merged); again.ok()) {
      pieces = std::move(again);
      prompt.note = "the template takes one system message only: they were joined";
    }
  }
  if (!pieces.ok()) return template_error(pieces.error().message);
  prompt.pieces = *std::move(pieces);
  if (task.continue_final_message && !cut_behind_last_message(task.messages, prompt.pieces)) {
    return invalid_field("continue_final_message", "template_error",
                         "continue_final_message: the template does not print the last message as it is");
  }
  auto ids = tokenizer.encode(text_parts(prompt.pieces));
  if (!ids.ok()) return invalid_field("messages", "template_error", ids.error().message);
  prompt.ids = *std::move(ids);
  if (prompt.ids.empty()) return empty_prompt();
  return prompt;
}

}  // namespace tandem::serve
