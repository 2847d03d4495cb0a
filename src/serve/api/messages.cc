#include <fmt/format.h>

#include <set>

#include "serve/api/json_body.h"
#include "serve/api/task_fields.h"

namespace tandem::serve {
namespace {

void add_part(Fields& fields, const Json& part, const std::string& prefix, const std::string& key,
              std::optional<ApiError>& error, std::string& text) {
  if (part.is_string()) {
    text += part.get_ref<const std::string&>();
    return;
  }
  if (!part.is_object()) return fields.wrong(key, "invalid_type", "a text part", part);
  Fields inner(part, prefix + key + ".", error);
  const std::string type = inner.string("type").value_or("text");
  if (type != "text" && type != "input_text" && type != "output_text" && type != "refusal") {
    return fields.fail(key, "unsupported_content",
                       fmt::format("the model takes text only, found a part of type {}", shown(Json(type))));
  }
  const char* field = type == "refusal" ? "refusal" : "text";
  if (const auto one = inner.string(field)) {
    text += *one;
  } else {
    inner.fail(field, "missing_field", "expected a string");
  }
}

class MessageReader {
 public:
  MessageReader(const Json& message, size_t index, std::optional<ApiError>& error)
      : message_(message),
        prefix_(fmt::format("messages[{}].", index)),
        error_(error),
        fields_(message, prefix_, error) {}

  // The message for the template, or null for one that carries nothing.
  Json read(std::set<std::string>& call_ids) {
    std::string role = read_role();
    if (role.empty()) return nullptr;
    Json out{{"role", role}};
    const auto content = read_text(fields_, prefix_, "content", error_);
    const Json* calls = role == "assistant" ? fields_.array("tool_calls") : nullptr;
    std::string reasoning;
    if (role == "assistant") {
      reasoning = fields_.string("reasoning_content").value_or("");
      if (reasoning.empty()) reasoning = fields_.string("reasoning").value_or("");
    }
    const bool has_calls = calls != nullptr && !calls->empty();
    if (!content && role != "assistant" && fields_.ok()) {
      fields_.fail("content", "missing_field", "expected a string or an array of parts");
    }
    out["content"] = content.value_or("");
    if (!reasoning.empty()) out["reasoning_content"] = reasoning;
    if (has_calls) out["tool_calls"] = read_calls(*calls, call_ids);
    if (const auto name = fields_.string("name")) out["name"] = *name;
    if (role == "tool") read_tool_id(call_ids, out);
    if (!fields_.ok()) return nullptr;
    if (role == "assistant" && content.value_or("").empty() && reasoning.empty() && !has_calls)
      return nullptr;
    return out;
  }

 private:
  std::string read_role() {
    const Json* role = fields_.any("role");
    constexpr std::string_view kWant = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
    if (role == nullptr) {
      fields_.fail("role", "missing_field", fmt::format("expected {}", kWant));
      return {};
    }
    if (!role->is_string()) {
      fields_.wrong("role", "invalid_type", kWant, *role);
      return {};
    }
    const std::string& name = role->get_ref<const std::string&>();
    for (const char* known : {"system", "developer", "user", "assistant", "tool"}) {
      if (name == known) return name;
    }
    if (name == "function") return "tool";
    fields_.wrong("role", "invalid_value", kWant, *role);
    return {};
  }

  Json read_calls(const Json& calls, std::set<std::string>& call_ids) {
    Json out = Json::array();
    for (size_t i = 0; i < calls.size() && fields_.ok(); ++i) {
      const std::string key = fmt::format("tool_calls[{}]", i);
      if (!calls[i].is_object()) {
        fields_.wrong(key, "invalid_type", "an object", calls[i]);
        break;
      }
      Fields call(calls[i], prefix_ + key + ".", error_);
      const Json* function = call.object("function");
      if (function == nullptr) {
        call.fail("function", "missing_field", "expected an object {name, arguments}");
        break;
      }
      Fields inner(*function, prefix_ + key + ".function.", error_);
      const auto name = inner.string("name");
      if (!name) inner.fail("name", "missing_field", "expected a string");
      Json arguments = Json::object();
      if (const Json* written = inner.any("arguments")) arguments = call_arguments(*written);
      const auto id = call.string("id");
      if (id) call_ids.insert(*id);
      out.push_back({{"id", id.value_or("")},
                     {"type", "function"},
                     {"function", {{"name", name.value_or("")}, {"arguments", std::move(arguments)}}}});
    }
    return out;
  }

  void read_tool_id(const std::set<std::string>& call_ids, Json& out) {
    const auto id = fields_.string("tool_call_id");
    if (!id) {
      if (fields_.ok())
        fields_.fail("tool_call_id", "missing_field", "expected the id of an earlier tool call");
    } else if (!call_ids.contains(*id)) {
      fields_.wrong("tool_call_id", "invalid_value", "the id of an earlier tool call", Json(*id));
    } else {
      out["tool_call_id"] = *id;
    }
  }

  const Json& message_;
  std::string prefix_;
  std::optional<ApiError>& error_;
  Fields fields_;
};

}  // namespace

std::optional<std::string> read_text(Fields& fields, const std::string& prefix, std::string_view key,
                                     std::optional<ApiError>& error) {
  const Json* content = fields.any(key);
  if (content == nullptr) return std::nullopt;
  std::string text;
  if (content->is_array()) {
    for (size_t i = 0; i < content->size() && fields.ok(); ++i) {
      add_part(fields, (*content)[i], prefix, fmt::format("{}[{}]", key, i), error, text);
    }
  } else if (content->is_string() || content->is_object()) {
    add_part(fields, *content, prefix, std::string(key), error, text);
  } else {
    fields.wrong(key, "unsupported_content", "a string, null or an array of text parts", *content);
  }
  return text;
}

// What does not parse goes through as it is.
Json call_arguments(const Json& written) {
  if (!written.is_string()) return written;
  auto parsed = parse_json(written.get_ref<const std::string&>(), {.max_depth = 64});
  return parsed.ok() && parsed->is_object() ? *std::move(parsed) : written;
}

void read_messages(const Json& messages, std::optional<ApiError>& error, Json& out) {
  std::set<std::string> call_ids;
  for (size_t i = 0; i < messages.size() && !error; ++i) {
    if (!messages[i].is_object()) {
      error = invalid_field(
          fmt::format("messages[{}]", i), "invalid_type",
          fmt::format("messages[{}]: expected an object {{role, content}}, found {}", i, shown(messages[i])));
      return;
    }
    Json message = MessageReader(messages[i], i, error).read(call_ids);
    if (!message.is_null()) out.push_back(std::move(message));
  }
}

}  // namespace tandem::serve
