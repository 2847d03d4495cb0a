#include "text/chat_template.h"

#include <fmt/format.h>

#include <utility>

#include "base/mapped_file.h"
#include "format/json.h"
#include "text/jinja_json.h"

namespace tandem {

namespace {

constexpr const char* kDefault = "default";
constexpr const char* kToolUse = "tool_use";

namespace dom = simdjson::dom;

using Sources = std::map<std::string, std::string>;

// The chat_template field: one template, or several by name. Empty if there is none.
Result<Sources> read_templates(const JsonFields& fields) {
  Sources sources;
  const std::optional<dom::element> field = fields.element("chat_template");
  if (!field) return sources;
  std::string_view text;
  if (field->get(text) == simdjson::SUCCESS) {
    sources.emplace(kDefault, text);
    return sources;
  }
  dom::array list;
  if (field->get(list) != simdjson::SUCCESS) {
    return fields.error("chat_template",
                        "expected a string or a list of templates, found " + describe(*field));
  }
  for (const dom::element entry : list) {
    std::string_view name, source;
    if (entry["name"].get(name) != simdjson::SUCCESS || entry["template"].get(source) != simdjson::SUCCESS) {
      return fields.error(
          "chat_template",
          "expected objects with the strings \"name\" and \"template\", found " + describe(entry));
    }
    sources.emplace(name, source);
  }
  if (!sources.contains(kDefault)) {
    return fields.error("chat_template", "expected a template named \"default\" in the list, found none");
  }
  return sources;
}

// Every field "x_token" that is a string or an object with "content", as bos_token and eos_token are written.
std::map<std::string, std::string> read_token_strings(const JsonFields& fields) {
  std::map<std::string, std::string> tokens;
  for (const dom::key_value_pair field : fields.raw()) {
    std::string_view text;
    if (!field.key.ends_with("_token")) continue;
    if (field.value.get(text) == simdjson::SUCCESS || field.value["content"].get(text) == simdjson::SUCCESS) {
      tokens.emplace(field.key, text);
    }
  }
  return tokens;
}

Error no_template(const std::string& folder) {
  return Error{fmt::format(
      "{}: no chat template: expected chat_template.jinja, chat_template.json, or the field chat_template in "
      "tokenizer_config.json. Give a raw prompt instead of a chat, or add the template's file.",
      folder)};
}

}  // namespace

Result<ChatTemplate> ChatTemplate::load(const std::string& folder) {
  const std::string config_path = folder + "/tokenizer_config.json";
  ChatTemplate result;
  Sources sources;
  std::string from = config_path;
  if (!is_absent(config_path)) {
    TD_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::load(config_path));
    TD_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of_root(document, config_path));
    result.token_strings_ = read_token_strings(fields);
    TD_ASSIGN_OR_RETURN(sources, read_templates(fields));
  }
  if (const std::string path = folder + "/chat_template.jinja"; !is_absent(path)) {
    TD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    sources = {
        {kDefault, std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size())}};
    from = path;
  } else if (const std::string json = folder + "/chat_template.json"; !is_absent(json)) {
    TD_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::load(json));
    TD_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of_root(document, json));
    TD_ASSIGN_OR_RETURN(sources, read_templates(fields));
    from = json;
  }
  if (sources.empty()) return no_template(folder);
  for (const auto& [name, source] : sources) {
    const std::string label = sources.size() == 1 ? from : fmt::format("{} ({})", from, name);
    TD_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::parse(label, source));
    result.templates_.emplace(name, std::move(parsed));
  }
  return result;
}

Result<ChatTemplate> ChatTemplate::parse(const std::string& name, std::string_view source) {
  TD_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::parse(name, source));
  ChatTemplate result;
  result.templates_.emplace(kDefault, std::move(parsed));
  return result;
}

Result<jinja::Text> ChatTemplate::render_text(const ChatInput& input) const {
  const bool has_tools = input.tools.is_array() && !input.tools.empty();
  const auto tool_use = templates_.find(kToolUse);
  const jinja::Template& chosen =
      has_tools && tool_use != templates_.end() ? tool_use->second : templates_.at(kDefault);
  const auto wrong = [&](const char* what) { return Error{fmt::format("{}: {}", chosen.name(), what)}; };
  if (!input.messages.is_array()) return wrong("expected an array of messages");
  if (!input.tools.is_array() && !input.tools.is_null()) return wrong("expected an array of tools, or null");
  if (!input.extra.is_object() && !input.extra.is_null()) {
    return wrong("expected an object of template variables, or null");
  }
  jinja::Dict variables;
  const auto set = [&](const std::string& name, jinja::Value value) {
    variables.set(jinja::Value(jinja::Text(name, jinja::Origin::templated)), std::move(value));
  };
  try {
    set("documents", jinja::Value());
    for (const auto& [name, token] : token_strings_) {
      set(name, jinja::Value(jinja::Text(token, jinja::Origin::templated)));
    }
    for (const auto& [name, value] : input.extra.items()) {
      if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
        return wrong("extra template variables must not be named messages, tools or add_generation_prompt");
      }
      set(name, jinja::from_json(value));
    }
    set("messages", jinja::from_json(input.messages));
    set("tools", has_tools ? jinja::from_json(input.tools) : jinja::Value());
    set("add_generation_prompt", jinja::Value(input.add_generation_prompt));
  } catch (const jinja::Failure& failure) {
    return Error{fmt::format("{}: messages, tools or extra variables: {}", chosen.name(), failure.message)};
  }
  return chosen.render(variables, {}, input.now);
}

Result<std::string> ChatTemplate::render(const ChatInput& input) const {
  TD_ASSIGN_OR_RETURN(const jinja::Text text, render_text(input));
  return text.bytes();
}

Result<std::vector<PromptPiece>> ChatTemplate::render_pieces(const ChatInput& input) const {
  TD_ASSIGN_OR_RETURN(const jinja::Text text, render_text(input));
  std::vector<PromptPiece> pieces;
  std::size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    pieces.push_back({text.bytes().substr(begin, run.end - begin), run.origin == jinja::Origin::templated});
    begin = run.end;
  }
  return pieces;
}

std::vector<TextPart> text_parts(const std::vector<PromptPiece>& pieces) {
  std::vector<TextPart> parts;
  for (const PromptPiece& piece : pieces) {
    parts.push_back({piece.text, piece.from_template ? SpecialTokens::recognise : SpecialTokens::plain});
  }
  return parts;
}

}  // namespace tandem
