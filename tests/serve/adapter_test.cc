// The Messages and Responses APIs: bodies as chat tasks, answers whole and streamed from the same tokens.
// Golden texts lie in tests/golden/api/.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <sstream>

#include "serve/answer_support.h"
#include "serve/api/anthropic_answer.h"
#include "serve/api/anthropic_request.h"
#include "serve/api/json_body.h"
#include "serve/api/responses_answer.h"
#include "serve/api/responses_request.h"
#include "serve/tag_tokenizer.h"

namespace tandem::serve {
namespace {

// Gives every step to `take`, and the end to `over`.
template <class Take, class Over>
void run(const std::vector<TokenId>& ids, bool thinking, const std::vector<std::string>& stops, Take take,
         Over over, EndReason end = EndReason::stop) {
  const auto text = pipeline(thinking, stops);
  StopReason reason;
  for (const TokenId id : ids) {
    const TextStep& step = text->feed(id);
    take(step);
    if (step.stop) reason = stops[*step.stop];
    if (step.ended) break;
  }
  take(text->finish(end));
  over(text->finish_reason(), reason);
}

struct Both {
  std::string body, stream;
};

const std::string kThinkingCall =
    "why\n</think>\n\nFirst \u00e9 "
    "\"q\".\n<tool_call>\n<function=write>\n<parameter=text>\na\n\"b\"\n</parameter>\n"
    "</function>\n</tool_call>";

const std::vector<std::string> kParts = {"<tool_call>\n<function=write>\n<parameter=text>\n",
                                         "\n</parameter>\n</function>\n</tool_call>",
                                         "</think>",
                                         "\n",
                                         "a",
                                         "\xC3\xA9",
                                         "STOP",
                                         "S",
                                         "\"",
                                         "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
                                         "<tool_call>"};

std::vector<TokenId> any_tokens() {
  std::vector<TokenId> ids;
  for (const size_t k :
       *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, kParts.size()))) {
    for (const TokenId id : tag_tokens(kParts[k])) ids.push_back(id);
  }
  return ids;
}

// The payloads of a stream whose events have two lines each, the first with the payload's type.
std::vector<Json> events(const std::string& stream) {
  std::vector<Json> out;
  size_t at = 0;
  while (at < stream.size()) {
    const size_t end = stream.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string text = stream.substr(at, end - at);
    const size_t line = text.find('\n');
    EXPECT_EQ(text.rfind("event: ", 0), 0u) << text;
    EXPECT_EQ(text.substr(line, 7), "\ndata: ") << text;
    EXPECT_EQ(text.find_first_of("\r\n", line + 1), std::string::npos) << text;
    out.push_back(Json::parse(text.substr(line + 7)));
    EXPECT_EQ(out.back()["type"], text.substr(7, line - 7));
    at = end + 2;
  }
  return out;
}

// Objects by content: the order of keys may differ.
nlohmann::json plain(const Json& json) { return nlohmann::json::parse(json.dump()); }

std::string joined(const Json& a, const Json& b) { return a.get<std::string>() + b.get<std::string>(); }

ApiContext context() {
  ApiContext c;
  c.models = {"demo"};
  c.n_vocab = 1000;
  return c;
}

namespace messages {

Both answer(const std::vector<TokenId>& ids, bool thinking, const std::vector<std::string>& stops = {},
            EndReason end = EndReason::stop) {
  const AnswerHead head{
      .id = "msg_0123456789ABCDEFGHIJKLMNOP", .created = 1, .model = "demo", .fingerprint = {}};
  AnthropicMessage whole(head);
  AnthropicStream stream(head);
  Both both;
  stream.begin({.prompt_tokens = kUsage.prompt_tokens}, both.stream);
  run(
      ids, thinking, stops,
      [&](const TextStep& step) {
        whole.add(step);
        stream.add(step, both.stream);
      },
      [&](std::string_view finish_reason, const StopReason& reason) {
        whole.finish(finish_reason, reason);
        stream.finish(finish_reason, reason, both.stream);
        stream.end(kUsage, both.stream);
      },
      end);
  both.body = whole.body(kUsage, nullptr);
  return both;
}

// What a reader of the stream ends with; checks the order of the events.
Json read(const std::string& stream) {
  Json message;
  std::string partial;
  bool open = false, stopped = false;
  for (const Json& event : events(stream)) {
    const std::string type = event["type"];
    EXPECT_FALSE(stopped);
    EXPECT_EQ(message.is_null(), type == "message_start");
    Json* block = open ? &message["content"].back() : nullptr;
    if (type.rfind("content_block_", 0) == 0) {
      EXPECT_EQ(event["index"], message["content"].size() - (open ? 1 : 0));
      EXPECT_EQ(open, type != "content_block_start");
    }
    if (type == "message_start") {
      message = event["message"];
    } else if (type == "content_block_start") {
      message["content"].push_back(event["content_block"]);
      open = true;
      partial.clear();
    } else if (type == "content_block_delta") {
      const Json& delta = event["delta"];
      if (delta["type"] == "text_delta") (*block)["text"] = joined((*block)["text"], delta["text"]);
      if (delta["type"] == "thinking_delta") {
        (*block)["thinking"] = joined((*block)["thinking"], delta["thinking"]);
      }
      if (delta["type"] == "signature_delta") (*block)["signature"] = delta["signature"];
      if (delta["type"] == "input_json_delta") partial += delta["partial_json"].get<std::string>();
    } else if (type == "content_block_stop") {
      if (!partial.empty()) (*block)["input"] = Json::parse(partial);
      open = false;
    } else if (type == "message_delta") {
      EXPECT_FALSE(open);
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    } else {
      EXPECT_EQ(type, "message_stop");
      stopped = true;
    }
  }
  EXPECT_TRUE(stopped);
  return message;
}

TEST(AnthropicAnswer, W4GoldenThinkingTextAndCall) {
  const Both both = answer(tag_tokens(kThinkingCall), true);
  EXPECT_EQ(plain(read(both.stream)), plain(Json::parse(both.body)));
  expect_golden("message_tool_use.json", both.body + "\n");
  expect_golden("message_tool_use.sse", both.stream);
}

TEST(AnthropicAnswer, StopReasonsAreItsOwn) {
  const auto ends = [](const std::string& text, EndReason end) {
    const Json body = Json::parse(answer(tag_tokens(text), false, {"END"}, end).body);
    return body["stop_reason"].get<std::string>() + " " + body["stop_sequence"].dump();
  };
  EXPECT_EQ(ends("hi", EndReason::stop), "end_turn null");
  EXPECT_EQ(ends("hi", EndReason::length), "max_tokens null");
  EXPECT_EQ(ends("hi END", EndReason::stop), "stop_sequence \"END\"");
  EXPECT_EQ(ends(kThinkingCall.substr(kThinkingCall.find("<tool")), EndReason::stop), "tool_use null");
}

TEST(AnthropicAnswer, CachedTokensAreNotInputTokens) {
  const Json usage = Json::parse(answer(tag_tokens("hi"), false).body)["usage"];
  EXPECT_EQ(usage["input_tokens"], 8);
  EXPECT_EQ(usage["cache_read_input_tokens"], 4);
  EXPECT_EQ(usage["output_tokens"], 30);
}

RC_GTEST_PROP(AnthropicAnswer, StreamAndWholeSayTheSame, ()) {
  const Both both = answer(any_tokens(), *rc::gen::arbitrary<bool>(), {"STOP"});
  RC_ASSERT(plain(read(both.stream)) == plain(Json::parse(both.body)));
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(AnthropicAnswer, ErrorsHaveItsShape) {
  const WrittenError full = write_error(queue_full(3), ErrorForm::anthropic);
  EXPECT_EQ(full.status, 529);
  EXPECT_EQ(
      full.body,
      R"({"type":"error","error":{"type":"overloaded_error","message":"3 requests are waiting already; )"
      R"(try again later"}})");
  EXPECT_EQ(write_error(invalid_field("a", "b", "c"), ErrorForm::anthropic).body,
            R"({"type":"error","error":{"type":"invalid_request_error","message":"c"}})");
  std::string out;
  AnthropicStream({}).failed(engine_failed("no\nluck", "r1"), out);
  EXPECT_EQ(events(out).at(0)["error"]["type"], "api_error");
}

ApiResult<ChatTask> request(const std::string& fields) {
  const auto body = parse_body("{\"max_tokens\":8," + fields + "}");
  EXPECT_TRUE(body.ok()) << fields;
  return read_anthropic_request(*body, context(), false);
}

const std::string kHi = R"("messages":[{"role":"user","content":"hi"}])";

TEST(AnthropicRequest, BlocksBecomeMessages) {
  const auto task = request(R"(
    "system":[{"type":"text","text":"be ","cache_control":{"type":"ephemeral"}},{"type":"text","text":"brief"}],
    "messages":[{"role":"user","content":"go"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"ok"},
        {"type":"tool_use","id":"toolu_1","name":"f","input":{"a":[1]}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"7"}]},
        {"type":"text","text":"and?"}]}])");
  ASSERT_TRUE(task.ok()) << task.error().message;
  EXPECT_EQ(plain(task->messages), plain(Json::parse(R"([{"role":"system","content":"be brief"},
    {"role":"user","content":"go"},
    {"role":"assistant","content":"ok","reasoning_content":"hm",
     "tool_calls":[{"id":"toolu_1","type":"function","function":{"name":"f","arguments":{"a":[1]}}}]},
    {"role":"tool","content":"7","tool_call_id":"toolu_1"},
    {"role":"user","content":"and?"}])")));
  EXPECT_FALSE(task->continue_final_message);
  EXPECT_EQ(task->max_tokens, 8);
}

TEST(AnthropicRequest, ToolsStopsAndThinking) {
  const auto task =
      request(kHi + R"(,"stop_sequences":["X"],"thinking":{"type":"enabled","budget_tokens":1024},
    "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],
    "tool_choice":{"type":"auto","disable_parallel_tool_use":true})");
  ASSERT_TRUE(task.ok()) << task.error().message;
  EXPECT_EQ(
      task->tools.dump(),
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}])");
  EXPECT_FALSE(task->parallel_tool_calls);
  EXPECT_EQ(task->stops, std::vector<std::string>{"X"});
  EXPECT_EQ(task->template_extra["enable_thinking"], true);
  EXPECT_EQ(task->ignored, std::vector<std::string>{"thinking.budget_tokens"});
  EXPECT_EQ(request(kHi)->template_extra["enable_thinking"], false);
  EXPECT_TRUE(request(R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}])")
                  ->continue_final_message);
}

TEST(AnthropicRequest, W7WhatIsWrongIsNamed) {
  const auto param = [](const std::string& fields) {
    const auto task = request(fields);
    return task.ok() ? "" : task.error().param;
  };
  const auto user = [&](const std::string& content) {
    return param(R"("messages":[{"role":"user","content":)" + content + "}]");
  };
  EXPECT_EQ(param(R"("model":"demo")"), "messages");
  EXPECT_EQ(param(R"("messages":[])"), "messages");
  EXPECT_EQ(param(R"("messages":[{"role":"system","content":"a"}])"), "messages[0].role");
  EXPECT_EQ(user(R"([{"type":"image","source":{}}])"), "messages[0].content[0]");
  EXPECT_EQ(user(R"([{"type":"tool_result","tool_use_id":"x"}])"), "messages[0].content[0].tool_use_id");
  EXPECT_EQ(user(R"([{"text":"a"}])"), "messages[0].content[0].type");
  EXPECT_EQ(param(kHi + R"(,"max_tokens":0)"), "max_tokens");
  EXPECT_EQ(param(kHi + R"(,"stop_sequences":[""])"), "stop_sequences[0]");
  EXPECT_EQ(param(kHi + R"(,"system":[{"type":"image"}])"), "system[0]");
  EXPECT_EQ(param(kHi + R"(,"tools":[{"type":"web_search_20250305","name":"web_search"}])"), "tools[0].type");
  EXPECT_EQ(param(kHi + R"(,"tools":[{"name":"f"}])"), "tools[0].input_schema");
  EXPECT_EQ(param(kHi + R"(,"tool_choice":{"type":"any"})"), "tool_choice.type");
  EXPECT_EQ(param(kHi + R"(,"output_config":{"format":{"type":"json_schema"}})"), "output_config.format");
  EXPECT_EQ(param(kHi + R"(,"thinking":{"type":"on"})"), "thinking.type");
  EXPECT_EQ(param(kHi + R"(,"mcp_servers":[{}])"), "mcp_servers");
  const auto forced =
      request(kHi + R"(,"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"any"})");
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(unsupported(*forced)->param, "tool_choice");
  EXPECT_EQ(read_anthropic_request(*parse_body("{" + kHi + "}"), context(), false).error().param,
            "max_tokens");
  EXPECT_TRUE(read_anthropic_request(*parse_body("{" + kHi + "}"), context(), true).ok());
}

}  // namespace messages

namespace responses {

Both answer(const std::vector<TokenId>& ids, bool thinking, const std::vector<std::string>& stops = {},
            EndReason end = EndReason::stop) {
  const AnswerHead head{
      .id = "resp_0123456789ABCDEFGHIJKLMNOP", .created = 1, .model = "demo", .fingerprint = {}};
  const Json echo{{"store", false}};
  ResponseAnswer whole(head, echo);
  ResponseStream stream(head, echo);
  Both both;
  stream.begin(both.stream);
  run(
      ids, thinking, stops,
      [&](const TextStep& step) {
        whole.add(step);
        stream.add(step, both.stream);
      },
      [&](std::string_view finish_reason, const StopReason&) {
        whole.finish(finish_reason);
        stream.finish(finish_reason, both.stream);
        stream.end(kUsage, both.stream);
      },
      end);
  both.body = whole.body(kUsage, nullptr);
  return both;
}

// The response a stream ends with, whose items must be what the deltas gave; checks the order of the events.
Json read(const std::string& stream) {
  Json items = Json::array(), last;
  std::string text;
  bool item_open = false, part_open = false;
  int64_t n = 0;
  for (const Json& event : events(stream)) {
    EXPECT_EQ(event["sequence_number"], n++);
    EXPECT_TRUE(last.is_null());
    const std::string type = event["type"];
    const auto ends = [&](std::string_view with) { return type.ends_with(with); };
    if (event.contains("output_index")) {
      EXPECT_EQ(event["output_index"], items.size() - (item_open ? 1 : 0));
    }
    if (event.contains("item_id")) {
      EXPECT_EQ(event["item_id"], items.back()["id"]);
    }
    if (n <= 2) {
      EXPECT_EQ(type, n == 1 ? "response.created" : "response.in_progress");
      EXPECT_EQ(event["response"]["status"], "in_progress");
    } else if (ends("output_item.added")) {
      EXPECT_FALSE(item_open);
      item_open = true;
      items.push_back(event["item"]);
      text.clear();
    } else if (ends("content_part.added")) {
      EXPECT_TRUE(item_open && !part_open);
      part_open = true;
      EXPECT_EQ(event["part"]["text"], "");
    } else if (ends(".delta")) {
      EXPECT_EQ(part_open, items.back()["type"] != "function_call");
      text += event["delta"].get<std::string>();
    } else if (ends("_arguments.done")) {
      EXPECT_EQ(event["arguments"], text);
      EXPECT_EQ(event["name"], items.back()["name"]);
    } else if (ends("_text.done")) {
      EXPECT_EQ(event["text"], text);
    } else if (ends("content_part.done")) {
      EXPECT_EQ(event["part"]["text"], text);
      part_open = false;
    } else if (ends("output_item.done")) {
      EXPECT_FALSE(part_open);
      EXPECT_EQ(event["item"]["id"], items.back()["id"]);
      item_open = false;
      items.back() = event["item"];
    } else {
      last = event["response"];
      EXPECT_EQ("response." + last["status"].get<std::string>(), type);
    }
  }
  EXPECT_FALSE(item_open);
  EXPECT_EQ(plain(items), plain(last["output"]));
  return last;
}

TEST(ResponsesAnswer, W4GoldenThinkingTextAndCall) {
  const Both both = answer(tag_tokens(kThinkingCall), true);
  EXPECT_EQ(plain(read(both.stream)), plain(Json::parse(both.body)));
  expect_golden("response_function_call.json", both.body + "\n");
  expect_golden("response_function_call.sse", both.stream);
}

TEST(ResponsesAnswer, ALimitThatWasReachedIsIncomplete) {
  const Json body = Json::parse(answer(tag_tokens("hi"), false, {}, EndReason::length).body);
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(body["output"][0]["status"], "incomplete");
  EXPECT_EQ(body["usage"]["input_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(body["usage"]["total_tokens"], 42);
}

TEST(ResponsesAnswer, AFailureIsTheLastEvent) {
  ResponseStream stream({}, Json::object());
  std::string out;
  stream.begin(out);
  stream.failed(engine_failed("no luck", "r1"), out);
  const Json last = events(out).back();
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["error"]["message"], "no luck (request r1)");
}

RC_GTEST_PROP(ResponsesAnswer, StreamAndWholeSayTheSame, ()) {
  const Both both = answer(any_tokens(), *rc::gen::arbitrary<bool>(), {"STOP"});
  RC_ASSERT(plain(read(both.stream)) == plain(Json::parse(both.body)));
  RC_ASSERT(!::testing::Test::HasFailure());
}

ApiResult<ResponsesTask> request(const std::string& fields) {
  const auto body = parse_body("{" + fields + "}");
  EXPECT_TRUE(body.ok()) << fields;
  return read_responses_request(*body, context());
}

TEST(ResponsesRequest, ItemsBecomeMessages) {
  const auto task = request(R"("instructions":"be brief","max_output_tokens":8,"store":true,"input":[
    {"role":"user","content":[{"type":"input_text","text":"go"}]},
    {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
    {"type":"message","role":"assistant","id":"msg_1","status":"completed",
     "content":[{"type":"output_text","text":"ok","annotations":[]}]},
    {"type":"function_call","id":"fc_1","call_id":"call_1","name":"f","arguments":"{\"a\":[1]}"},
    {"type":"function_call_output","call_id":"call_1","output":"7"},
    {"role":"user","content":"and?"}])");
  ASSERT_TRUE(task.ok()) << task.error().message;
  EXPECT_EQ(plain(task->messages), plain(Json::parse(R"([{"role":"system","content":"be brief"},
    {"role":"user","content":"go"},
    {"role":"assistant","content":"ok","reasoning_content":"hm",
     "tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":{"a":[1]}}}]},
    {"role":"tool","content":"7","tool_call_id":"call_1"},
    {"role":"user","content":"and?"}])")));
  EXPECT_EQ(task->max_tokens, 8);
  EXPECT_EQ(task->echo["instructions"], "be brief");
  EXPECT_EQ(task->echo["store"], false);
  EXPECT_TRUE(task->ignored.empty());
  EXPECT_EQ(request(R"("input":"hi")")->messages.dump(), R"([{"role":"user","content":"hi"}])");
}

TEST(ResponsesRequest, ToolsAndThinking) {
  const auto task = request(R"("input":"hi","reasoning":{"effort":"none"},"parallel_tool_calls":false,
    "tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":true}])");
  ASSERT_TRUE(task.ok()) << task.error().message;
  EXPECT_EQ(
      task->tools.dump(),
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}])");
  EXPECT_FALSE(task->parallel_tool_calls);
  EXPECT_EQ(task->template_extra["enable_thinking"], false);
}

TEST(ResponsesRequest, W7WhatIsWrongIsNamed) {
  const auto param = [](const std::string& fields) {
    const auto task = request(fields);
    if (!task.ok()) return task.error().param;
    const auto error = unsupported(*task, "text.format");
    return error ? error->param : "";
  };
  const auto with = [&](const std::string& fields) { return param(R"("input":"hi",)" + fields); };
  EXPECT_EQ(param(R"("model":"demo")"), "input");
  EXPECT_EQ(param(R"("input":[])"), "input");
  EXPECT_EQ(param(R"("input":[{"role":"user","content":[{"type":"input_image"}]}])"), "input[0].content[0]");
  EXPECT_EQ(param(R"("input":[{"type":"item_reference","id":"a"}])"), "input[0]");
  EXPECT_EQ(param(R"("input":[{"type":"function_call_output","call_id":"a","output":""}])"),
            "input[0].call_id");
  EXPECT_EQ(with(R"("previous_response_id":"resp_1")"), "previous_response_id");
  EXPECT_EQ(with(R"("conversation":"conv_1")"), "conversation");
  EXPECT_EQ(with(R"("background":true)"), "background");
  EXPECT_EQ(with(R"("max_output_tokens":0)"), "max_output_tokens");
  EXPECT_EQ(with(R"("tools":[{"type":"web_search"}])"), "tools[0].type");
  EXPECT_EQ(with(R"("tool_choice":"required")"), "tool_choice");
  EXPECT_EQ(with(R"("reasoning":{"effort":"huge"})"), "reasoning.effort");
  EXPECT_EQ(with(R"("text":{"format":{"type":"json_object"}})"), "text.format");
  EXPECT_EQ(with(R"("text":{"format":{"type":"json_schema","name":"a"}})"), "text.format.schema");
  EXPECT_EQ(with(R"("tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"f"})"),
            "tool_choice");
}

}  // namespace responses
}  // namespace
}  // namespace tandem::serve
