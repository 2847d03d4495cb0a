#include "serve/api/responses_request.h"

#include <fmt/format.h>

#include <set>

#include "serve/api/task_fields.h"

namespace tandem::serve {
namespace {

// Items become messages; thinking, text and calls that a model wrote in a row are one message.
class ItemReader {
 public:
  ItemReader(Fields& fields, std::optional<ApiError>& error, Json& out)
      : fields_(fields), error_(error), out_(out) {}

  void read(const Json& items) {
    for (size_t i = 0; i < items.size() && fields_.ok(); ++i) {
      const std::string key = fmt::format("input[{}]", i);
      if (!items[i].is_object()) return fields_.wrong(key, "invalid_type", "an item, an object", items[i]);
      prefix_ = key + ".";
      Fields item(items[i], prefix_, error_);
      const std::string type = item.string("type").value_or("message");
      if (type == "message") {
        read_message(item);
      } else if (type == "function_call") {
        read_call(item);
      } else if (type == "function_call_output") {
        read_output(item);
      } else if (type == "reasoning") {
        read_reasoning(item);
      } else {
        fields_.fail(key, "unsupported_content",
                     fmt::format("items of type {} are not supported", shown(Json(type))));
      }
    }
    end_turn();
  }

 private:
  void read_message(Fields& item) {
    const std::string role = item.string("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
      return item.wrong("role", "invalid_value", "\"user\", \"assistant\", \"system\" or \"developer\"",
                        Json(role));
    }
    auto text = read_text(item, prefix_, "content", error_);
    if (!text) item.fail("content", "missing_field", "expected a string or an array of parts");
    if (!fields_.ok()) return;
    if (role == "assistant") {
      if (!text_.empty() || !calls_.empty()) end_turn();
      text_ = *std::move(text);
    } else {
      end_turn();
      out_.push_back({{"role", role}, {"content", *std::move(text)}});
    }
  }

  static std::string required_string(Fields& fields, const char* key) {
    auto text = fields.string(key);
    if (!text) fields.fail(key, "missing_field", "expected a string");
    return text.value_or("");
  }

  void read_call(Fields& item) {
    std::string id = required_string(item, "call_id"), name = required_string(item, "name");
    const Json arguments = required_string(item, "arguments");
    if (!fields_.ok()) return;
    call_ids_.insert(id);
    calls_.push_back({{"id", std::move(id)},
                      {"type", "function"},
                      {"function", {{"name", std::move(name)}, {"arguments", call_arguments(arguments)}}}});
  }

  void read_output(Fields& item) {
    const std::string id = required_string(item, "call_id");
    if (fields_.ok() && !call_ids_.contains(id)) {
      return item.wrong("call_id", "invalid_value", "the call_id of an earlier function_call", Json(id));
    }
    const auto text = read_text(item, prefix_, "output", error_);
    if (!text) item.fail("output", "missing_field", "expected a string or an array of parts");
    if (!fields_.ok()) return;
    end_turn();
    out_.push_back({{"role", "tool"}, {"content", *text}, {"tool_call_id", id}});
  }

  // Summaries are about thinking, and not what the model thought.
  void read_reasoning(Fields& item) {
    if (!text_.empty() || !calls_.empty()) end_turn();
    const Json* parts = item.array("content");
    if (parts == nullptr) return;
    for (size_t i = 0; i < parts->size() && fields_.ok(); ++i) {
      const std::string key = fmt::format("content[{}]", i);
      if (!(*parts)[i].is_object()) return item.wrong(key, "invalid_type", "a part, an object", (*parts)[i]);
      Fields part((*parts)[i], prefix_ + key + ".", error_);
      reasoning_ += required_string(part, "text");
    }
  }

  void end_turn() {
    if (text_.empty() && reasoning_.empty() && calls_.empty()) return;
    Json message{{"role", "assistant"}, {"content", std::exchange(text_, {})}};
    if (!reasoning_.empty()) message["reasoning_content"] = std::exchange(reasoning_, {});
    if (!calls_.empty()) message["tool_calls"] = std::exchange(calls_, Json::array());
    out_.push_back(std::move(message));
  }

  Fields& fields_;
  std::optional<ApiError>& error_;
  Json& out_;
  std::string prefix_, text_, reasoning_;
  Json calls_ = Json::array();
  std::set<std::string> call_ids_;
};

void read_input(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  if (const auto words = fields.string("instructions"); words && !words->empty()) {
    task.messages.push_back({{"role", "system"}, {"content", *words}});
  }
  const size_t n_system = task.messages.size();
  const Json* input = fields.any("input");
  if (input == nullptr) {
    fields.fail("input", "missing_field", "expected a string or an array of items");
  } else if (input->is_string()) {
    task.messages.push_back({{"role", "user"}, {"content", *input}});
  } else if (input->is_array()) {
    ItemReader(fields, error, task.messages).read(*input);
    if (task.messages.size() == n_system) fields.fail("input", "invalid_value", "no item carries anything");
  } else {
    fields.wrong("input", "invalid_type", "a string or an array of items", *input);
  }
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
    const std::string type = tool.string("type").value_or("");
    if (type != "function") {
      return tool.wrong("type", "unsupported_value", "\"function\": the server runs no tools itself",
                        Json(type));
    }
    const auto name = read_tool_name(tool, names);
    const auto description = tool.string("description");
    const Json* parameters = tool.object("parameters");
    (void)tool.boolean("strict");
    if (!fields.ok()) return;
    Json function{{"name", *name}};
    if (description) function["description"] = *description;
    if (parameters != nullptr) function["parameters"] = *parameters;
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  set_tools(std::move(functions), task);
}

void read_tool_choice(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  const Json* choice = fields.any("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    task.tool_choice = ToolChoice::none;
    task.tool_set = nullptr;
  } else if (*choice == "required" && task.tool_set) {
    task.tool_choice = ToolChoice::required;
  } else if (choice->is_object()) {
    Fields inner(*choice, "tool_choice.", error);
    if (const std::string type = inner.string("type").value_or(""); type != "function") {
      return inner.wrong("type", "unsupported_value", "\"function\"", Json(type));
    }
    task.tool_choice = ToolChoice::named;
    task.tool_name = inner.string("name").value_or("");
    if (!task.tool_set || !task.tool_set->has_tool(task.tool_name)) {
      inner.wrong("name", "invalid_value", "the name of one of the tools", Json(task.tool_name));
    }
  } else {
    fields.wrong("tool_choice", "invalid_value",
                 "\"none\", \"auto\", \"required\" (with tools) or {\"type\": \"function\", \"name\"}",
                 *choice);
  }
}

void read_format(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  const Json* text = fields.object("text");
  if (text == nullptr) return;
  Fields outer(*text, "text.", error);
  (void)outer.string("verbosity");
  const Json* format = outer.object("format");
  if (format == nullptr) return;
  Fields inner(*format, "text.format.", error);
  const std::string type = inner.string("type").value_or("");
  if (type == "text") return;
  if (type == "json_object") {
    task.format.kind = FormatKind::json_object;
  } else if (type == "json_schema") {
    const Json* schema = inner.object("schema");
    if (schema == nullptr) return inner.fail("schema", "missing_field", "expected a JSON schema, an object");
    task.format = {FormatKind::json_schema, inner.string("name").value_or(""), *schema,
                   inner.boolean("strict").value_or(false)};
  } else {
    inner.wrong("type", "unsupported_value", "\"text\", \"json_object\" or \"json_schema\"", Json(type));
  }
}

void read_reasoning(Fields& fields, std::optional<ApiError>& error, ChatTask& task) {
  const Json* reasoning = fields.object("reasoning");
  if (reasoning == nullptr) return;
  Fields inner(*reasoning, "reasoning.", error);
  for (const char* key : {"summary", "generate_summary"}) {
    if (inner.any(key) != nullptr) task.ignored.push_back(fmt::format("reasoning.{}", key));
  }
  const auto effort = inner.string("effort");
  if (!effort) return;
  bool known = false;
  for (const char* level : {"none", "minimal", "low", "medium", "high", "xhigh"}) known |= *effort == level;
  if (!known) {
    return inner.wrong("effort", "invalid_value",
                       "\"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"", Json(*effort));
  }
  task.template_extra = {{"enable_thinking", *effort != "none"}, {"reasoning_effort", *effort}};
}

// What an answer says about its request.
Json echo_of(const Json& body, const ChatTask& task) {
  const auto given = [&](const char* key, Json otherwise) {
    const auto it = body.find(key);
    return it == body.end() || it->is_null() ? std::move(otherwise) : *it;
  };
  return {{"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"metadata", given("metadata", Json::object())},
          {"parallel_tool_calls", task.parallel_tool_calls},
          {"previous_response_id", nullptr},
          {"reasoning", given("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"store", false},
          {"temperature", task.sampling.temperature},
          {"text", given("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_p", task.sampling.top_p},
          {"truncation", "disabled"}};
}

}  // namespace

ApiResult<ResponsesTask> read_responses_request(const Json& body, const ApiContext& context) {
  ResponsesTask task;
  std::optional<ApiError> error;
  Fields fields(body, "", error);
  for (const char* key : {"previous_response_id", "conversation", "prompt"}) {
    if (fields.any(key) != nullptr) {
      fields.fail(key, "unsupported_value", "nothing is stored here: send the whole conversation as input");
    }
  }
  if (fields.boolean("background").value_or(false)) {
    fields.fail("background", "unsupported_value", "answers are not kept: expected false");
  }
  if (fields.string("truncation").value_or("disabled") != "disabled") {
    fields.fail("truncation", "unsupported_value", "prompts are not shortened: expected \"disabled\"");
  }
  if (fields.integer("top_logprobs", 0, 20).value_or(0) != 0) {
    fields.fail("top_logprobs", "unsupported_value", "not supported; use /v1/chat/completions");
  }
  read_generation(fields, context, task);
  if (task.n != 1) fields.fail("n", "unsupported_value", "a response is one answer");
  if (const auto n = fields.integer("max_output_tokens", 1, INT32_MAX)) task.max_tokens = int(*n);
  task.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  if (!error) read_tools(fields, error, task);
  if (!error) read_tool_choice(fields, error, task);
  if (!error) read_format(fields, error, task);
  if (!error) read_reasoning(fields, error, task);
  if (!error) read_input(fields, error, task);
  if (!error) read_unknown(fields, context, task);
  if (error) return *std::move(error);
  task.echo = echo_of(body, task);
  return task;
}

}  // namespace tandem::serve
