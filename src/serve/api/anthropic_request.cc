#include "serve/api/anthropic_request.h"

#include <fmt/format.h>

#include <set>

#include "serve/api/task_fields.h"

namespace tandem::serve {
namespace {

// One message of blocks as the messages that templates know: results of tools are messages of their own.
class BlockReader {
 public:
  BlockReader(const Json& message, size_t index, std::optional<ApiError>& error,
              std::set<std::string>& call_ids, Json& out)
      : prefix_(fmt::format("messages[{}].", index)),
        error_(error),
        call_ids_(call_ids),
        fields_(message, prefix_, error),
        out_(out) {}

  void read() {
    const auto role = fields_.string("role");
    if (!role) return fields_.fail("role", "missing_field", "expected \"user\" or \"assistant\"");
    if (*role != "user" && *role != "assistant") {
      return fields_.wrong("role", "invalid_value", "\"user\" or \"assistant\"", Json(*role));
    }
    from_model_ = *role == "assistant";
    const Json* content = fields_.any("content");
    if (content == nullptr) {
      return fields_.fail("content", "missing_field", "expected a string or an array of blocks");
    }
    if (content->is_string()) {
      text_ = content->get<std::string>();
      return end_message();
    }
    if (!content->is_array()) {
      return fields_.wrong("content", "invalid_type", "a string or an array of blocks", *content);
    }
    for (size_t i = 0; i < content->size() && fields_.ok(); ++i) {
      read_block((*content)[i], fmt::format("content[{}]", i));
    }
    if (fields_.ok()) end_message();
  }

 private:
  void read_block(const Json& block, const std::string& key) {
    if (!block.is_object()) return fields_.wrong(key, "invalid_type", "a block, an object", block);
    Fields inner(block, prefix_ + key + ".", error_);
    const std::string type = inner.string("type").value_or("");
    if (type == "text") {
      text_ += required_string(inner, "text");
    } else if (type == "thinking" && from_model_) {
      reasoning_ += required_string(inner, "thinking");
    } else if (type == "redacted_thinking" && from_model_) {
      return;  // nobody here can read it
    } else if (type == "tool_use" && from_model_) {
      read_call(inner);
    } else if (type == "tool_result" && !from_model_) {
      read_result(inner, prefix_ + key + ".");
    } else if (type.empty()) {
      inner.fail("type", "missing_field", "expected the block's type");
    } else {
      fields_.fail(key, "unsupported_content",
                   fmt::format("blocks of type {} are not supported in {} messages", shown(Json(type)),
                               from_model_ ? "assistant" : "user"));
    }
  }

  static std::string required_string(Fields& fields, const char* key) {
    auto text = fields.string(key);
    if (!text) fields.fail(key, "missing_field", "expected a string");
    return text.value_or("");
  }

  void read_call(Fields& block) {
    std::string id = required_string(block, "id"), name = required_string(block, "name");
    const Json* input = block.object("input");
    if (!fields_.ok()) return;
    call_ids_.insert(id);
    calls_.push_back(
        {{"id", std::move(id)},
         {"type", "function"},
         {"function",
          {{"name", std::move(name)}, {"arguments", input == nullptr ? Json::object() : *input}}}});
  }

  void read_result(Fields& block, const std::string& prefix) {
    const std::string id = required_string(block, "tool_use_id");
    if (fields_.ok() && !call_ids_.contains(id)) {
      return block.wrong("tool_use_id", "invalid_value", "the id of an earlier tool_use block", Json(id));
    }
    (void)block.boolean("is_error");  // the text says it
    const auto content = read_text(block, prefix, "content", error_);
    if (!fields_.ok()) return;
    end_message();
    out_.push_back({{"role", "tool"}, {"content", content.value_or("")}, {"tool_call_id", id}});
  }

  // What has come so far, if anything, as a message.
  void end_message() {
    if (text_.empty() && reasoning_.empty() && calls_.empty()) return;
    Json message{{"role", from_model_ ? "assistant" : "user"}, {"content", std::exchange(text_, {})}};
    if (!reasoning_.empty()) message["reasoning_content"] = std::exchange(reasoning_, {});
    if (!calls_.empty()) message["tool_calls"] = std::exchange(calls_, Json::array());
    out_.push_back(std::move(message));
  }

  std::string prefix_;
  std::optional<ApiError>& error_;
  std::set<std::string>& call_ids_;
  Fields fields_;
  Json& out_;
  bool from_model_ = false;
  std::string text_, reasoning_;
  Json calls_ = Json::array();
};

void read_conversation(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  if (const auto system = read_text(fields, "", "system", error); system && !system->empty()) {
    task.messages.push_back({{"role", "system"}, {"content", *system}});
  }
  const size_t n_system = task.messages.size();
  const Json* messages = fields.array("messages");
  if (messages == nullptr) return fields.fail("messages", "missing_field", "expected an array of messages");
  std::set<std::string> call_ids;
  for (size_t i = 0; i < messages->size() && fields.ok(); ++i) {
    const Json& message = (*messages)[i];
    if (!message.is_object()) {
      return fields.wrong(fmt::format("messages[{}]", i), "invalid_type", "an object {role, content}",
                          message);
    }
    BlockReader(message, i, error, call_ids, task.messages).read();
  }
  if (!fields.ok()) return;
  if (task.messages.size() == n_system) {
    return fields.fail("messages", "invalid_value", "no message carries anything");
  }
  const Json& last = task.messages.back();
  if (last["role"] != "assistant") return;
  if (last.contains("tool_calls")) {
    return fields.fail("messages", "invalid_value", "the last message calls tools: expected their results");
  }
  task.continue_final_message = true;
}

void read_tools(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  const Json* tools = fields.array("tools");
  if (tools == nullptr) return;
  if (tools->size() > kMostTools) {
    return fields.fail("tools", "out_of_range",
                       fmt::format("expected at most {} tools, found {}", kMostTools, tools->size()));
  }
  std::set<std::string> names;
  Json functions = Json::array();
  for (size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    const std::string key = fmt::format("tools[{}]", i);
    if (!(*tools)[i].is_object()) return fields.wrong(key, "invalid_type", "an object", (*tools)[i]);
    Fields tool((*tools)[i], key + ".", error);
    if (const auto type = tool.string("type"); type && *type != "custom") {
      return tool.wrong("type", "unsupported_value", "\"custom\": the server runs no tools itself",
                        Json(*type));
    }
    const auto name = read_tool_name(tool, names);
    const auto description = tool.string("description");
    const Json* schema = tool.object("input_schema");
    if (schema == nullptr) tool.fail("input_schema", "missing_field", "expected a JSON schema, an object");
    if (!fields.ok()) return;
    Json function{{"name", *name}};
    if (description) function["description"] = *description;
    function["parameters"] = *schema;
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  set_tools(std::move(functions), task);
}

void read_tool_choice(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  const Json* choice = fields.object("tool_choice");
  if (choice == nullptr) return;
  Fields inner(*choice, "tool_choice.", error);
  const std::string type = inner.string("type").value_or("");
  task.parallel_tool_calls = !inner.boolean("disable_parallel_tool_use").value_or(false);
  if (type == "none") {
    task.tool_choice = ToolChoice::none;
    task.tool_set = nullptr;
  } else if (type == "any" || type == "tool") {
    if (task.tools.is_null()) return inner.fail("type", "invalid_value", "needs tools to choose from");
    task.tool_choice = type == "any" ? ToolChoice::required : ToolChoice::named;
    if (type == "any") return;
    task.tool_name = inner.string("name").value_or("");
    if (!task.tool_set->has_tool(task.tool_name)) {
      inner.wrong("name", "invalid_value", "the name of one of the tools", Json(task.tool_name));
    }
  } else if (type != "auto") {
    inner.wrong("type", "invalid_value", "\"auto\", \"none\", \"any\" or \"tool\"", Json(type));
  }
}

void read_thinking(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  bool on = false;
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking.", error);
    const std::string type = inner.string("type").value_or("");
    if (type != "enabled" && type != "disabled" && type != "adaptive") {
      inner.wrong("type", "invalid_value", "\"enabled\", \"disabled\" or \"adaptive\"", Json(type));
    }
    on = type != "disabled";
    // It bounds what is spent at most about; max_tokens bounds thinking and answer together.
    if (inner.integer("budget_tokens", 1, INT32_MAX)) task.ignored.emplace_back("thinking.budget_tokens");
    inner.ignore("display");
  }
  std::string effort = on ? "medium" : "none";
  if (const Json* config = fields.object("output_config")) {
    Fields inner(*config, "output_config.", error);
    if (inner.any("format") != nullptr) {
      return inner.fail("format", "unsupported_value", "not supported; ask for the format in a message");
    }
    if (const auto asked = inner.string("effort"); asked && on) effort = *asked == "max" ? "xhigh" : *asked;
  }
  task.template_extra = {{"enable_thinking", on}, {"reasoning_effort", effort}};
}

}  // namespace

ApiResult<ChatTask> read_anthropic_request(const Json& body, const ApiContext& context, bool count_only) {
  ChatTask task;
  std::optional<ApiError> error;
  Fields fields(body, "", error);
  read_generation(fields, context, task);
  if (task.n != 1) fields.fail("n", "unsupported_value", "a message is one answer");
  read_stop_strings(fields, "stop_sequences", task);
  if (const auto n = fields.integer("max_tokens", 1, INT32_MAX)) {
    task.max_tokens = int(*n);
  } else if (!count_only) {
    fields.fail("max_tokens", "missing_field", "expected an integer >= 1");
  }
  for (const char* key : {"mcp_servers", "container"}) {
    const Json* value = fields.any(key);
    if (value != nullptr && !value->empty()) fields.fail(key, "unsupported_value", "not supported");
  }
  fields.ignore("cache_control");
  if (!error) read_tools(fields, error, task);
  if (!error) read_tool_choice(fields, error, task);
  if (!error) read_thinking(fields, error, task);
  if (!error) read_conversation(fields, error, task);
  if (!error) read_unknown(fields, context, task);
  if (error) return *std::move(error);
  return task;
}

}  // namespace tandem::serve
