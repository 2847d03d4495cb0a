#include <fmt/format.h>

#include <set>

#include "serve/api/task_fields.h"

namespace tandem::serve {
namespace {

constexpr size_t kLongestToolName = 64;
constexpr int kMostAlternatives = 20;

bool is_tool_name(std::string_view name) {
  if (name.empty() || name.size() > kLongestToolName) return false;
  for (const char c : name) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.' || c == '-';
    if (!good) return false;
  }
  return true;
}

void read_tools(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  const Json* tools = fields.array("tools");
  if (tools == nullptr || tools->empty()) return;
  if (tools->size() > kMostTools) {
    return fields.fail("tools", "out_of_range",
                       fmt::format("expected at most {} tools, found {}", kMostTools, tools->size()));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string key = fmt::format("tools[{}]", i);
    if (!tool.is_object()) return fields.wrong(key, "invalid_type", "an object", tool);
    Fields outer(tool, key + ".", error);
    const auto type = outer.string("type");
    if (type && *type != "function") {
      return outer.wrong("type", "unsupported_value", "\"function\"", Json(*type));
    }
    const Json* function = outer.object("function");
    if (function == nullptr) return outer.fail("function", "missing_field", "expected an object {name, ...}");
    Fields inner(*function, key + ".function.", error);
    if (!read_tool_name(inner, names)) return;
    (void)inner.string("description");
    (void)inner.object("parameters");
    (void)inner.boolean("strict");
    if (!fields.ok()) return;
  }
  set_tools(*tools, task);
}

void read_tool_choice(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  const Json* choice = fields.any("tool_choice");
  if (choice == nullptr) return;
  constexpr std::string_view kWant =
      "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\"}}";
  if (choice->is_string()) {
    const std::string& word = choice->get_ref<const std::string&>();
    if (word == "none") {
      task.tool_choice = ToolChoice::none;
      task.tool_set = nullptr;
    } else if (word == "auto") {
      return;
    } else if (word == "required") {
      if (task.tools.is_null()) {
        return fields.fail("tool_choice", "invalid_value", "\"required\" needs tools to choose from");
      }
      task.tool_choice = ToolChoice::required;
    } else {
      fields.wrong("tool_choice", "invalid_value", kWant, *choice);
    }
    return;
  }
  if (!choice->is_object()) return fields.wrong("tool_choice", "invalid_type", kWant, *choice);
  Fields outer(*choice, "tool_choice.", error);
  const Json* function = outer.object("function");
  if (function == nullptr) return outer.fail("function", "missing_field", "expected an object {name}");
  Fields inner(*function, "tool_choice.function.", error);
  const auto name = inner.string("name");
  if (!name) return inner.fail("name", "missing_field", "expected the name of one of the tools");
  if (!task.tool_set || !task.tool_set->has_tool(*name)) {
    return inner.wrong("name", "invalid_value", "the name of one of the tools", Json(*name));
  }
  task.tool_choice = ToolChoice::named;
  task.tool_name = *name;
}

void read_format(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  const Json* format = fields.object("response_format");
  if (format == nullptr) return;
  Fields outer(*format, "response_format.", error);
  const auto type = outer.string("type");
  if (!type)
    return outer.fail("type", "missing_field", "expected \"text\", \"json_object\" or \"json_schema\"");
  if (*type == "text") return;
  if (*type == "json_object") {
    task.format.kind = FormatKind::json_object;
    return;
  }
  if (*type != "json_schema") {
    return outer.wrong("type", "unsupported_value", "\"text\", \"json_object\" or \"json_schema\"",
                       Json(*type));
  }
  const Json* named = outer.object("json_schema");
  if (named == nullptr)
    return outer.fail("json_schema", "missing_field", "expected an object {name, schema}");
  Fields inner(*named, "response_format.json_schema.", error);
  const Json* schema = inner.object("schema");
  if (schema == nullptr) return inner.fail("schema", "missing_field", "expected a JSON schema, an object");
  task.format = {FormatKind::json_schema, inner.string("name").value_or(""), *schema,
                 inner.boolean("strict").value_or(false)};
}

// reasoning_effort, enable_thinking and chat_template_kwargs become variables of the template.
void read_template_variables(Fields& fields, ChatTask& task) {
  Json extra = Json::object();
  if (const Json* variables = fields.object("chat_template_kwargs")) {
    for (const char* taken : {"messages", "tools", "add_generation_prompt"}) {
      if (variables->contains(taken)) {
        return fields.fail(fmt::format("chat_template_kwargs.{}", taken), "invalid_value",
                           "may not be overridden");
      }
    }
    extra = *variables;
  }
  std::optional<bool> thinking = fields.boolean("enable_thinking");
  if (const auto it = extra.find("enable_thinking"); it != extra.end() && it->is_boolean()) {
    if (thinking && *thinking != it->get<bool>()) {
      return fields.fail("enable_thinking", "invalid_value",
                         "contradicts chat_template_kwargs.enable_thinking");
    }
    thinking = it->get<bool>();
  }
  auto effort = fields.string("reasoning_effort");
  if (effort) {
    bool known = false;
    for (const char* level : {"none", "minimal", "low", "medium", "high", "xhigh"}) known |= *effort == level;
    if (!known) {
      return fields.wrong("reasoning_effort", "invalid_value",
                          "\"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"", Json(*effort));
    }
    if (thinking && *thinking == (*effort == "none")) {
      return fields.fail("reasoning_effort", "invalid_value",
                         fmt::format("{} contradicts enable_thinking {}", shown(Json(*effort)), *thinking));
    }
    thinking = *effort != "none";
  } else if (thinking) {
    effort = *thinking ? "medium" : "none";
  }
  if (thinking) {
    extra["enable_thinking"] = *thinking;
    if (!extra.contains("reasoning_effort")) extra["reasoning_effort"] = *effort;
  }
  if (!extra.empty()) task.template_extra = std::move(extra);
}

void read_limits(Fields& fields, ChatTask& task) {
  const auto longer = fields.integer("max_tokens", 1, INT32_MAX);
  const auto limit = fields.integer("max_completion_tokens", 1, INT32_MAX);
  if (limit || longer) task.max_tokens = int(limit ? *limit : *longer);
  if (task.max_tokens && task.sampling.min_tokens > *task.max_tokens) {
    fields.fail("min_tokens", "out_of_range",
                fmt::format("expected at most max_tokens ({}), found {}", *task.max_tokens,
                            task.sampling.min_tokens));
  }
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMostAlternatives);
  if (top && !logprobs) {
    fields.fail("top_logprobs", "invalid_value", "only goes with \"logprobs\": true");
  }
  if (logprobs) task.logprobs = int(top.value_or(0));
  if (const auto budget = fields.integer("reasoning_budget", 0, INT32_MAX))
    task.reasoning_budget = int(*budget);
}

}  // namespace

std::optional<std::string> read_tool_name(Fields& fields, std::set<std::string>& names) {
  auto name = fields.string("name");
  if (!name) {
    fields.fail("name", "missing_field", "expected a string");
  } else if (!is_tool_name(*name)) {
    fields.wrong("name", "invalid_value", "1 to 64 characters of A-Z a-z 0-9 _ . -", Json(*name));
  } else if (!names.insert(*name).second) {
    fields.fail("name", "duplicate", fmt::format("{} appears twice", shown(Json(*name))));
  } else {
    return name;
  }
  return std::nullopt;
}

void set_tools(Json tools, ChatTask& task) {
  if (tools.empty()) return;
  task.tool_set = std::make_shared<const ToolSet>(tools);
  task.tools = std::move(tools);
  task.tool_choice = ToolChoice::automatic;
}

ApiResult<ChatTask> read_chat_request(const Json& body, const ApiContext& context) {
  ChatTask task;
  std::optional<ApiError> error;
  Fields fields(body, "", error);
  read_generation(fields, context, task);
  read_limits(fields, task);
  read_tools(fields, error, task);
  if (!error) read_tool_choice(fields, error, task);
  task.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  read_format(fields, error, task);
  read_template_variables(fields, task);
  const Json* messages = fields.array("messages");
  if (!error && messages == nullptr) {
    fields.fail("messages", "missing_field", "expected an array of messages");
  } else if (!error && messages->empty()) {
    fields.fail("messages", "invalid_value", "expected at least one message, found none");
  }
  if (!error) read_messages(*messages, error, task.messages);
  if (!error && task.messages.empty()) {
    fields.fail("messages", "invalid_value", "no message carries anything");
  }
  task.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  if (!error && task.continue_final_message && task.messages.back()["role"] != "assistant") {
    fields.fail("continue_final_message", "invalid_value", "needs an assistant message as the last one");
  }
  // What other servers call our switches.
  if (const auto add = fields.boolean("add_generation_prompt"); add && *add == task.continue_final_message) {
    fields.fail("add_generation_prompt", "invalid_value",
                "must be false with continue_final_message, else true");
  }
  if (!error) read_unknown(fields, context, task);
  if (error) return *std::move(error);
  return task;
}

std::optional<ApiError> unsupported(const ChatTask& task, std::string_view format_field) {
  const auto refuse = [](std::string param, std::string_view found, std::string_view instead) {
    return invalid_field(param, "unsupported_value",
                         fmt::format("{}: {} is not supported; {}", param, found, instead));
  };
  if (task.format.kind != FormatKind::text) {
    return refuse(std::string(format_field),
                  task.format.kind == FormatKind::json_object ? "\"json_object\"" : "\"json_schema\"",
                  "ask for the format in a message");
  }
  if (task.tool_choice == ToolChoice::required) {
    return refuse("tool_choice", "a forced call", "let the model choose, or offer no tools");
  }
  if (task.tool_choice == ToolChoice::named)
    return refuse("tool_choice", "a named tool", "offer only that tool");
  if (task.reasoning_budget) return refuse("reasoning_budget", "a budget", "limit max_completion_tokens");
  return std::nullopt;
}

}  // namespace tandem::serve
