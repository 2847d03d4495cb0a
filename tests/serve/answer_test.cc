// Answers, whole and streamed, from the same tokens. Golden texts lie in tests/golden/api/.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "serve/answer_support.h"
#include "serve/api/chat_answer.h"
#include "serve/api/completion_answer.h"
#include "serve/api/sse.h"
#include "serve/tag_tokenizer.h"

namespace tandem::serve {
namespace {

const AnswerHead kHead{.id = "chatcmpl-0123456789ABCDEFGHIJKLMNOP",
                       .created = 1700000000,
                       .model = "demo",
                       .fingerprint = "tandem-0.1.0-01234567-cpu"};
Logprobs logprobs_of(TokenId id) {
  return {.chosen = -0.25f, .top = {{id, -0.25f}, {'z', -std::numeric_limits<float>::infinity()}}};
}

struct Both {
  std::string body, stream;
};

Both answer(const std::vector<TokenId>& ids, bool logprobs, bool thinking = true,
            std::vector<std::string> stops = {}) {
  const auto text = pipeline(thinking, stops);
  std::vector<ChatChoice> choices{ChatChoice(tag_tokenizer(), logprobs)};
  ChatStream stream(kHead, tag_tokenizer(), 1, {.include_usage = true, .logprobs = logprobs});
  Both both;
  StopReason reason;
  const auto take = [&](const TextStep& step) {
    choices[0].add(step);
    stream.add(0, step, both.stream);
    if (step.stop) reason = stops[*step.stop];
    return step.ended;
  };
  for (const TokenId id : ids) {
    const Logprobs p = logprobs_of(id);
    if (take(text->feed(id, logprobs ? &p : nullptr))) break;
  }
  take(text->finish(EndReason::stop));
  choices[0].finish(text->finish_reason(), reason);
  stream.finish(0, text->finish_reason(), reason, both.stream);
  stream.usage(kUsage, both.stream);
  both.stream += kSseDone;
  both.body = chat_completion(kHead, choices, kUsage, nullptr, ReasoningField::reasoning_content);
  return both;
}

// The payloads of a stream, read as strictly as the standard allows.
std::vector<std::string> events(const std::string& stream) {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < stream.size()) {
    const size_t end = stream.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string line = stream.substr(at, end - at);
    EXPECT_EQ(line.find_first_of("\r\n"), std::string::npos);
    if (line.rfind(":", 0) != 0) {
      EXPECT_EQ(line.rfind("data: ", 0), 0u);
      out.push_back(line.substr(6));
    }
    at = end + 2;
  }
  return out;
}

// W4: joins a stream's deltas into the message and choice of the whole answer.
Json joined(const std::string& stream) {
  Json message{{"role", "assistant"}, {"content", ""}}, logprobs = Json::array(), choice, usage;
  std::vector<std::string> all = events(stream);
  EXPECT_EQ(all.back(), "[DONE]");
  all.pop_back();
  int n_roles = 0, n_finishes = 0;
  for (const std::string& event : all) {
    const Json chunk = Json::parse(event);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    if (chunk["choices"].empty()) {
      usage = chunk["usage"];
      continue;
    }
    EXPECT_TRUE(chunk["usage"].is_null());
    const Json& c = chunk["choices"][0];
    const Json& delta = c["delta"];
    n_roles += delta.contains("role");
    if (delta.contains("content")) {
      message["content"] = message["content"].get<std::string>() + delta["content"].get<std::string>();
    }
    if (delta.contains("reasoning_content")) {
      message["reasoning_content"] =
          message.value("reasoning_content", "") + delta["reasoning_content"].get<std::string>();
    }
    if (delta.contains("tool_calls")) {
      const Json& call = delta["tool_calls"][0];
      const size_t k = call["index"].get<size_t>();
      if (call.contains("id")) {
        EXPECT_EQ(message["tool_calls"].size(), k);
        Json begun = call;
        begun.erase("index");
        message["tool_calls"].push_back(begun);
      }
      Json& arguments = message["tool_calls"][k]["function"]["arguments"];
      if (!call.contains("id")) {
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    }
    if (c["logprobs"].is_object()) {
      for (const Json& entry : c["logprobs"]["content"]) logprobs.push_back(entry);
    }
    if (!c["finish_reason"].is_null()) {
      ++n_finishes;
      choice = {{"finish_reason", c["finish_reason"]}, {"stop_reason", c["stop_reason"]}};
    }
  }
  EXPECT_EQ(n_roles, 1);
  EXPECT_EQ(n_finishes, 1);
  if (message["content"] == "" && message.contains("tool_calls")) message["content"] = nullptr;
  return {{"message", message}, {"logprobs", logprobs}, {"choice", choice}, {"usage", usage}};
}

void expect_same(const Both& both, bool logprobs) {
  const Json body = Json::parse(both.body);
  const Json& choice = body["choices"][0];
  const Json stream = joined(both.stream);
  // Objects by content: the order of keys may differ.
  const auto plain = [](const Json& json) { return nlohmann::json::parse(json.dump()); };
  EXPECT_EQ(plain(stream["message"]), plain(choice["message"]));
  EXPECT_EQ(stream["choice"]["finish_reason"], choice["finish_reason"]);
  EXPECT_EQ(stream["choice"]["stop_reason"], choice["stop_reason"]);
  EXPECT_EQ(plain(stream["usage"]), plain(body["usage"]));
  if (logprobs) {
    EXPECT_EQ(plain(stream["logprobs"]), plain(choice["logprobs"]["content"]));
  } else {
    EXPECT_TRUE(choice["logprobs"].is_null());
  }
}

const std::string kThinkingCall =
    "why\n</think>\n\nFirst \u00e9 "
    "\"q\".\n<tool_call>\n<function=write>\n<parameter=text>\na\n\"b\"\n</parameter>\n"
    "</function>\n</tool_call>";

TEST(ChatAnswer, W4GoldenToolCall) {
  const Both both = answer(tag_tokens(kThinkingCall), false);
  expect_same(both, false);
  expect_golden("chat_tool_call.json", both.body + "\n");
  expect_golden("chat_tool_call.sse", both.stream);
}

TEST(ChatAnswer, W4GoldenLogprobsAndStop) {
  const Both both = answer(tag_tokens("hi \U0001F600 END x"), true, false, {"END"});
  expect_same(both, true);
  expect_golden("chat_logprobs.json", both.body + "\n");
  expect_golden("chat_logprobs.sse", both.stream);
}

TEST(ChatAnswer, W3OptionalKeysAreAbsent) {
  const Json message = Json::parse(answer(tag_tokens("hi"), false, false).body)["choices"][0]["message"];
  EXPECT_EQ(message.dump(), R"({"role":"assistant","content":"hi"})");
  const Json call =
      Json::parse(answer(tag_tokens(kThinkingCall.substr(kThinkingCall.find("<tool"))), false, false).body);
  EXPECT_TRUE(call["choices"][0]["message"]["content"].is_null());
  EXPECT_EQ(call["choices"][0]["finish_reason"], "tool_calls");
}

TEST(ChatAnswer, LineSeparatorsAreEscaped) {
  const Both both = answer(tag_tokens("a\u2028b\u2029\x01"), false, false);
  EXPECT_NE(both.body.find("a\\u2028b\\u2029\\u0001"), std::string::npos);
}

TEST(ChatAnswer, EntriesShowRawBytesAndNoNumberThatIsNone) {
  std::string out;
  const float inf = std::numeric_limits<float>::infinity();
  append_logprob_entry({0xF0, 0, {.chosen = -inf, .top = {{'a', -1.5f}, {'b', NAN}}}}, tag_tokenizer(), out);
  EXPECT_EQ(out,
            "{\"token\":\"\uFFFD\",\"logprob\":-9999.0,\"bytes\":[240],\"top_logprobs\":[{\"token\":\"a\","
            "\"logprob\":-1.5,\"bytes\":[97]}]}");
}

// W2, W3, W4 for whatever a model writes.
RC_GTEST_PROP(ChatAnswer, StreamAndWholeSayTheSame, ()) {
  static const std::vector<std::string> parts = {"<tool_call>\n<function=write>\n<parameter=text>\n",
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
  std::vector<TokenId> ids;
  for (const size_t k : *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, parts.size()))) {
    for (const TokenId id : tag_tokens(parts[k])) ids.push_back(id);
  }
  const bool logprobs = *rc::gen::arbitrary<bool>(), thinking = *rc::gen::arbitrary<bool>();
  expect_same(answer(ids, logprobs, thinking, {"STOP"}), logprobs);
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(Completion, GoldenEchoAndLogprobs) {
  PipelineOptions options;
  options.tokenizer = &tag_tokenizer();
  options.split_thinking = false;
  const auto text = *TextPipeline::create(std::move(options));
  const AnswerHead head{"cmpl-0123456789ABCDEFGHIJKLMNOP", 1700000000, "demo", "tandem-0.1.0-01234567-cpu"};
  const PromptEcho prompt{
      "\u00e9ab", tag_tokens("\u00e9ab"), {{0xA9, 0, logprobs_of(0xA9)}, {261, 1, logprobs_of(261)}}};
  std::vector<CompletionChoice> choices{CompletionChoice(tag_tokenizer(), 2)};
  CompletionStream stream(head, tag_tokenizer(), 1, 2, true);
  std::string events_text;
  choices[0].echo(prompt);
  stream.echo(0, prompt, events_text);
  for (const TokenId id : tag_tokens("c\U0001F600")) {
    const Logprobs p = logprobs_of(id);
    const TextStep& step = text->feed(id, &p);
    choices[0].add(step);
    stream.add(0, step, events_text);
  }
  const TextStep& last = text->finish(EndReason::length);
  choices[0].add(last);
  stream.add(0, last, events_text);
  choices[0].finish(text->finish_reason(), {});
  stream.finish(0, text->finish_reason(), {}, events_text);
  stream.usage(kUsage, events_text);
  events_text += kSseDone;
  const std::string body = completion_body(head, choices, kUsage, nullptr);
  const Json choice = Json::parse(body)["choices"][0];
  EXPECT_EQ(choice["text"], "\u00e9abc\U0001F600");
  EXPECT_EQ(choice["logprobs"]["text_offset"].dump(), "[0,0,1,3,4,4,4,4]");
  std::string joined_text;
  size_t n_tokens = 0;
  for (const std::string& event : events(events_text)) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    if (chunk["choices"].empty()) continue;
    joined_text += chunk["choices"][0]["text"].get<std::string>();
    if (!chunk["choices"][0]["logprobs"].is_null())
      n_tokens += chunk["choices"][0]["logprobs"]["tokens"].size();
  }
  EXPECT_EQ(joined_text, choice["text"]);
  EXPECT_EQ(n_tokens, 8u);
  expect_golden("completion_echo.json", body + "\n");
  expect_golden("completion_echo.sse", events_text);
}

TEST(Sse, CommentsAndErrors) {
  std::string out;
  append_comment("prefill_progress", prefill_progress(1, 2, 0, 3.5), out);
  EXPECT_EQ(out,
            ": prefill_progress "
            "{\"processed_tokens\":1,\"total_tokens\":2,\"cached_tokens\":0,\"elapsed_ms\":3.5}\n\n");
  out.clear();
  append_stream_error(engine_failed("no\nluck \u2028", "r1"), out);
  EXPECT_EQ(out,
            "data: {\"error\":{\"message\":\"no\\nluck \\u2028 (request "
            "r1)\",\"type\":\"server_error\",\"param\":null,"
            "\"code\":\"engine_failed\"}}\n\ndata: [DONE]\n\n");
}

TEST(Ids, AreLongAndDiffer) {
  EXPECT_EQ(make_id("chatcmpl-", 26, 1, 2).size(), 35u);
  EXPECT_NE(make_id("x", 26, 1, 2), make_id("x", 26, 1, 3));
  EXPECT_EQ(tool_call_id("a", 0, 1), tool_call_id("a", 0, 1));
  EXPECT_NE(tool_call_id("a", 0, 1), tool_call_id("a", 1, 0));
  EXPECT_EQ(tool_call_id("a", 0, 1).size(), 29u);
}

}  // namespace
}  // namespace tandem::serve
