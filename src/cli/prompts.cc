#include "cli/prompts.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/json.h"
#include "cli/model_flags.h"

namespace tandem {

Result<std::vector<std::vector<TokenId>>> read_prompts(const std::string& path, const LoadedModel& model) {
  std::vector<std::vector<TokenId>> prompts;
  TD_ASSIGN_OR_RETURN(const std::string text, read_text(path));
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json json = Json::parse(line, nullptr, false);
    const auto wrong = [&](const char* what) { return Error{fmt::format("{}:{}: {}", path, number, what)}; };
    if (!json.is_object())
      return wrong("expected a JSON object, {\"prompt\": text} or {\"prompt_tokens\": [ids]}");
    if (json.contains("prompt_tokens") && json["prompt_tokens"].is_array()) {
      std::vector<TokenId> ids;
      for (const Json& id : json["prompt_tokens"]) {
        if (!id.is_number_integer()) return wrong("prompt_tokens: expected integers");
        ids.push_back(id.get<TokenId>());
      }
      prompts.push_back(std::move(ids));
      continue;
    }
    if (!json.contains("prompt") || !json["prompt"].is_string())
      return wrong("expected a text under \"prompt\"");
    if (!model.tokenizer) return wrong("a text, but the model has no tokenizer: give prompt_tokens");
    TD_ASSIGN_OR_RETURN(std::vector<TokenId> ids,
                        model.tokenizer->encode(json["prompt"].get<std::string>(), SpecialTokens::recognise));
    prompts.push_back(std::move(ids));
  }
  if (prompts.empty()) return Error{path + ": no prompts in it"};
  return prompts;
}

}  // namespace tandem
