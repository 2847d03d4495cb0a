// The chat template of a checkpoint: messages -> the prompt that the model was trained on.
//
// Templates are Jinja programs that come with the checkpoint. They run in our own interpreter (jinja_*.h), as
// Hugging Face transformers runs them (trim_blocks, lstrip_blocks, break and continue, tojson = json.dumps
// without ASCII escapes, nothing may be modified), under limits on steps, depth, memory and output. Message
// content is data: it is never read as template text.
//
// A prompt comes as one string, or in pieces that say which text the template wrote and which the
// conversation brought. Tokenise the pieces as one text in which special tokens are recognised in the
// template's own words only (text_parts() below); then what a user types can never become a control token.
//
// Immutable after load; may be used from many threads.
#pragma once

#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja_template.h"
#include "text/tokenizer.h"

namespace tandem {

struct ChatInput {
  // Array of {"role", "content", ...} as the OpenAI API has them. Arguments of tool calls are objects, if the
  // caller could parse them.
  nlohmann::ordered_json messages;
  // Array of tool descriptions, or null.
  nlohmann::ordered_json tools;
  // Ends with the words that open the assistant's turn.
  bool add_generation_prompt = true;
  // More variables for the template (enable_thinking, preserve_thinking, ...): an object, or null.
  nlohmann::ordered_json extra;
  // Local time, for templates that print the date. Without it such templates fail.
  std::optional<std::tm> now;
};

struct PromptPiece {
  std::string text;
  bool from_template = false;  // else from messages, tools or extra
};

class ChatTemplate {
 public:
  // From a checkpoint folder: chat_template.jinja, or else chat_template.json, or else the chat_template
  // field of tokenizer_config.json (a string, or a list of {"name", "template"} with "default" and perhaps
  // "tool_use", which is taken when there are tools). The *_token fields of tokenizer_config.json become
  // variables. Errors: no template, an unreadable or malformed file, a syntax error (with file and line).
  static Result<ChatTemplate> load(const std::string& folder);

  // From a template's text alone. `name` stands for it in errors.
  static Result<ChatTemplate> parse(const std::string& name, std::string_view source);

  // Errors: "file:line: what" for whatever the template raises or does wrong; input that is no array of
  // messages, nests deeper than 100 levels or is not UTF-8; a variable in `extra` that would hide messages or
  // tools.
  Result<std::string> render(const ChatInput& input) const;
  Result<std::vector<PromptPiece>> render_pieces(const ChatInput& input) const;

 private:
  ChatTemplate() = default;
  Result<jinja::Text> render_text(const ChatInput& input) const;

  std::map<std::string, jinja::Template>
      templates_;  // by name; "default" is always there, unless it is the only one
  std::map<std::string, std::string> token_strings_;  // "bos_token" -> "<s>"
};

// The pieces as Tokenizer::encode() takes them; borrows their text.
std::vector<TextPart> text_parts(const std::vector<PromptPiece>& pieces);

}  // namespace tandem
