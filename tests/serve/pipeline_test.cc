#include "serve/text/pipeline.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/tag_tokenizer.h"

namespace tandem::serve {
namespace {

using Json = nlohmann::ordered_json;

// All that came out, joined.
struct Collected {
  std::string content, reasoning, finish;
  std::vector<std::pair<std::string, std::string>> calls;
  std::vector<TokenId> entries;
  std::optional<size_t> stop;
  int n_tokens = 0, n_reasoning = 0;
  bool operator==(const Collected&) const = default;

  void add(const TextStep& step) {
    for (const Piece& piece : step.pieces) {
      EXPECT_FALSE(piece.text.empty());
      EXPECT_FALSE(first_invalid_utf8(piece.text));
      switch (piece.kind) {
        case PieceKind::content:
          content += piece.text;
          break;
        case PieceKind::reasoning:
          reasoning += piece.text;
          break;
        case PieceKind::tool_call:
          EXPECT_EQ(piece.call, int(calls.size()));
          calls.emplace_back(piece.text, "");
          break;
        case PieceKind::tool_arguments:
          calls.at(size_t(piece.call)).second += piece.text;
          break;
      }
    }
    for (const TokenEntry& entry : step.entries) entries.push_back(entry.id);
    if (step.stop) stop = step.stop;
  }
};

std::unique_ptr<TextPipeline> make(PipelineOptions options) {
  options.tokenizer = &tag_tokenizer();
  if (options.markers.think_open.text.empty()) options.markers = Markers::of(tag_tokenizer());
  auto pipeline = TextPipeline::create(std::move(options));
  EXPECT_TRUE(pipeline.ok()) << pipeline.error().message;
  return *std::move(pipeline);
}

Collected run(PipelineOptions options, const std::vector<TokenId>& ids, EndReason reason = EndReason::stop) {
  const auto pipeline = make(std::move(options));
  Collected out;
  const Logprobs logprobs{.chosen = -1, .top = {}};
  for (const TokenId id : ids) {
    const TextStep& step = pipeline->feed(id, &logprobs);
    out.add(step);
    if (step.ended) break;
  }
  out.add(pipeline->finish(reason));
  out.finish = pipeline->finish_reason();
  out.n_tokens = pipeline->n_tokens();
  out.n_reasoning = pipeline->n_reasoning_tokens();
  return out;
}

Collected run(PipelineOptions options, std::string_view text, EndReason reason = EndReason::stop) {
  return run(std::move(options), tag_tokens(text), reason);
}

std::shared_ptr<const ToolSet> some_tools() {
  return std::make_shared<const ToolSet>(Json::parse(R"([
    {"type":"function","function":{"name":"write","parameters":{"type":"object","properties":{
      "path":{"type":"string"},"text":{"type":"string"},"mode":{"type":"integer"},"ratio":{"type":"number"},
      "force":{"type":"boolean"},"tags":{"type":"array"},"maybe":{"anyOf":[{"type":"string"},{"type":"integer"}]},
      "options":{"$ref":"#/$defs/o"}},"$defs":{"o":{"type":"object"}}}}},
    {"type":"function","function":{"name":"now"}}])"));
}

PipelineOptions with_tools() {
  PipelineOptions options;
  options.tools = some_tools();
  return options;
}

std::string call_text(std::string_view name,
                      const std::vector<std::pair<std::string, std::string>>& arguments) {
  std::string text = "<tool_call>\n<function=" + std::string(name) + ">\n";
  for (const auto& [key, value] : arguments) text += "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  return text + "</function>\n</tool_call>";
}

TEST(Pipeline, PlainTextComesTokenByToken) {
  const auto pipeline = make({});
  EXPECT_EQ(pipeline->feed('h').pieces.at(0).text, "h");
  EXPECT_EQ(pipeline->feed('i').pieces.at(0).text, "i");
  EXPECT_TRUE(pipeline->feed_end(kEndId).pieces.empty());
  EXPECT_TRUE(pipeline->finish(EndReason::stop).pieces.empty());
  EXPECT_EQ(pipeline->finish_reason(), "stop");
  EXPECT_EQ(pipeline->n_tokens(), 3);
}

TEST(Pipeline, W5CharactersSplitOverTokensComeWhole) {
  const std::string text = "a\U0001F600b";
  const auto pipeline = make({});
  std::vector<std::string> pieces;
  for (const char byte : text) {
    for (const Piece& piece : pipeline->feed(uint8_t(byte)).pieces) pieces.emplace_back(piece.text);
  }
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "\U0001F600", "b"}));
}

TEST(Pipeline, W5HalfACharacterAtTheEndIsReplaced) {
  EXPECT_EQ(run({}, std::vector<TokenId>{'a', 0xF0, 0x9F}).content, "a\uFFFD");
  EXPECT_EQ(run({}, std::vector<TokenId>{0xFF, 'a'}).content, "\uFFFDa");
}

TEST(Pipeline, E7StopStringOverTokensNeverLeaks) {
  const auto out = run({.stops = {"STOP"}}, "abc STOP def");
  EXPECT_EQ(out.content, "abc ");
  EXPECT_EQ(out.stop, 0u);
  EXPECT_EQ(out.n_tokens, 7);  // "ab" is one token; nothing behind the P counts
  EXPECT_EQ(out.entries.size(), 3u) << "tokens of the stop string have no entry";
}

TEST(Pipeline, E7OverlappingStops) {
  EXPECT_EQ(run({.stops = {"aab"}}, "aaab").content, "a");
  EXPECT_EQ(run({.stops = {"xy", "xyz"}}, "1xyz").stop, 0u) << "earliest completion";
  EXPECT_EQ(run({.stops = {"###"}}, "a##").content, "a##") << "flushed at the end";
}

TEST(Pipeline, E7StopInThinkingAndItsScope) {
  PipelineOptions options{.starts_thinking = true, .stops = {"no"}};
  EXPECT_EQ(run(options, "a no b</think>c").reasoning, "a ");
  options.stop_in_thinking = false;
  const auto out = run(options, "a no b</think>c no d");
  EXPECT_EQ(out.reasoning, "a no b");
  EXPECT_EQ(out.content, "c ");
}

TEST(Pipeline, StopStringsAreTextBeforeMinTokens) {
  const auto out = run({.stops = {"x"}, .min_tokens = 3}, "1x2x3");
  EXPECT_EQ(out.content, "1x2");
  EXPECT_EQ(out.n_tokens, 4);
}

TEST(Pipeline, IncludedStopStringAndStopsThatAreTokens) {
  EXPECT_EQ(run({.stops = {"END"}, .include_stop = true}, "a END b").content, "a END");
  const auto out = run({.starts_thinking = true, .stops = {"</think>"}}, "hm</think>yes");
  EXPECT_EQ(out.reasoning, "hm");
  EXPECT_EQ(out.content, "");
  EXPECT_EQ(out.stop, 0u);
}

TEST(Pipeline, SectionsByTokenId) {
  const auto out = run({.starts_thinking = true}, "why</think>\n\nbecause");
  EXPECT_EQ(out.reasoning, "why");
  EXPECT_EQ(out.content, "\n\nbecause");
  EXPECT_EQ(out.n_reasoning, 4);
  EXPECT_EQ(run({}, "<think>a</think>b").reasoning, "a");
  // The same characters written as text are text.
  EXPECT_EQ(run({}, std::vector<TokenId>{'<', 't', 'h', 'i', 'n', 'k', '>'}).content, "<think>");
  EXPECT_EQ(run({.split_thinking = false}, "<think>a</think>b").content, "<think>a</think>b");
}

TEST(Pipeline, ThinkingThatNeverEnds) {
  const auto out = run({.starts_thinking = true}, "on and on", EndReason::length);
  EXPECT_EQ(out.reasoning, "on and on");
  EXPECT_EQ(out.content, "");
  EXPECT_EQ(out.finish, "length");
}

TEST(Pipeline, SectionsByText) {
  PipelineOptions options{.markers = {{"[T]", {}}, {"[/T]", {}}, {"[C]", {}}, {"[/C]", {}}},
                          .stops = {"[/x"}};
  const auto out = run(options, "a[T]b[/c[/T]d[/");
  EXPECT_EQ(out.content, "ad[/");
  EXPECT_EQ(out.reasoning, "b[/c");
}

TEST(Pipeline, StartOfTheAnswerFromThePrompt) {
  const Markers markers = Markers::of(tag_tokenizer());
  EXPECT_TRUE(starts_thinking(markers, tag_tokens("x<think>\n"), {}));
  EXPECT_FALSE(starts_thinking(markers, tag_tokens("<think>\n\n</think>\n\n"), {}));
  EXPECT_FALSE(starts_thinking(markers, tag_tokens("hi"), {}));
  Markers text = markers;
  text.think_open.id = text.think_close.id = std::nullopt;
  const std::vector<PromptPiece> pieces{{"a<think>", true}, {"</think>", false}, {"\n", true}};
  EXPECT_TRUE(starts_thinking(text, {}, pieces)) << "a user's tag does not count";
}

TEST(Pipeline, ToolCallWithTypedValues) {
  const auto out = run(with_tools(), call_text("write", {{"path", "a \"b\"\nc"},
                                                         {"mode", "7"},
                                                         {"ratio", "1.5"},
                                                         {"force", "True"},
                                                         {"tags", R"(["x", 1])"},
                                                         {"maybe", "12"},
                                                         {"options", R"({"a": null})"},
                                                         {"extra", "true"},
                                                         {"more", "[1]"}}));
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].first, "write");
  EXPECT_EQ(Json::parse(out.calls[0].second),
            Json::parse(R"({"path":"a \"b\"\nc","mode":7,"ratio":1.5,"force":true,
    "tags":["x",1],"maybe":12,"options":{"a":null},"extra":"true","more":[1]})"));
  EXPECT_EQ(out.content, "");
  EXPECT_EQ(out.finish, "tool_calls");
}

TEST(Pipeline, ValuesThatDoNotFitTheirTypeStayStrings) {
  const auto out = run(with_tools(), call_text("write", {{"mode", "seven"}, {"tags", "[1"}, {"maybe", "x"}}));
  EXPECT_EQ(Json::parse(out.calls.at(0).second), Json::parse(R"({"mode":"seven","tags":"[1","maybe":"x"})"));
}

TEST(Pipeline, ClosingTagsInsideAValueAreText) {
  const std::string value = "see </parameter> and </function>\n</parameter>\nx </tool_call> <tool_call>";
  const auto out = run(with_tools(), call_text("write", {{"text", value}, {"path", "\n\n p \n"}}));
  EXPECT_EQ(Json::parse(out.calls.at(0).second), (Json{{"text", value}, {"path", "\n\n p \n"}}));
  EXPECT_EQ(out.finish, "tool_calls");
}

TEST(Pipeline, StringValuesStreamAsTheyAreWritten) {
  const auto pipeline = make(with_tools());
  const std::string begin = "<tool_call>\n<function=write>\n<parameter=text>\n";
  Collected out;
  for (const TokenId id : tag_tokens(begin)) out.add(pipeline->feed(id));
  EXPECT_EQ(out.calls.at(0).second, R"({"text":")");
  const TextStep& step = pipeline->feed('x');
  ASSERT_EQ(step.pieces.size(), 1u);
  EXPECT_EQ(step.pieces[0].kind, PieceKind::tool_arguments);
  EXPECT_EQ(step.pieces[0].text, "x");
  EXPECT_TRUE(pipeline->feed('\n').pieces.empty()) << "may be the one before the closing tag";
  EXPECT_EQ(pipeline->feed('y').pieces.at(0).text, "\\ny");
}

TEST(Pipeline, SeveralCallsAndTheTextAroundThem) {
  const std::string call = call_text("now", {});
  const auto out = run(with_tools(), "first " + call + "\n" + call + "\n after");
  EXPECT_EQ(out.content, "first \n after");
  ASSERT_EQ(out.calls.size(), 2u);
  EXPECT_EQ(out.calls[1].second, "{}");
  PipelineOptions one = with_tools();
  one.one_call = true;
  EXPECT_EQ(run(one, call + call).calls.size(), 1u);
}

TEST(Pipeline, WhiteSpaceBeforeACallIsDroppedButNotBeforeText) {
  PipelineOptions options = with_tools();
  options.starts_thinking = true;
  EXPECT_EQ(run(options, "t</think>\n\n" + call_text("now", {}) + "\n").content, "");
  EXPECT_EQ(run(options, "t</think>\n\nyes").content, "\n\nyes");
  EXPECT_EQ(run(options, "t</think>\n\n").content, "\n\n");
}

TEST(Pipeline, HermesCallsStreamTheirArguments) {
  const auto out = run(with_tools(),
                       "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"text\": \"a </tool_call> }\", "
                       "\"n\": [1, {\"b\": 2}]}}\n</tool_call>done");
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].first, "write");
  EXPECT_EQ(Json::parse(out.calls[0].second), Json::parse(R"({"text":"a </tool_call> }","n":[1,{"b":2}]})"));
  EXPECT_EQ(out.content, "done");
  for (const char* call :
       {R"({"arguments": {"a": 1}, "name": "f"})", R"({"name": "f", "arguments": "{\"a\": 1}"})"}) {
    const auto other = run(with_tools(), "<tool_call>" + std::string(call) + "</tool_call>");
    ASSERT_EQ(other.calls.size(), 1u) << call;
    EXPECT_EQ(Json::parse(other.calls[0].second), (Json{{"a", 1}}));
  }
}

TEST(Pipeline, MarkupThatIsNoCallIsContentAsWritten) {
  for (const char* text :
       {"<tool_call>hello</tool_call> x", "<tool_call>\n<function=a b\nc", "<tool_call>{\"a\": 1}",
        "<tool_call>{]</tool_call>", "<tool_call>", "a </tool_call>", "<tool_call>{\"name\": \"f\""}) {
    const auto out = run(with_tools(), text);
    EXPECT_EQ(out.content, text);
    EXPECT_TRUE(out.calls.empty());
    EXPECT_EQ(out.finish, "stop");
  }
  EXPECT_EQ(run({}, call_text("now", {})).content, call_text("now", {})) << "no tools: the parser is off";
}

TEST(Pipeline, CallsCutAtAnyByteCloseTheirJson) {
  const std::string xml = call_text("write", {{"text", "a\n</b> \"q\""}, {"mode", "12"}, {"tags", "[1, 2]"}});
  const std::string hermes =
      "<tool_call>{\"name\": \"write\", \"arguments\": {\"t\\u00e9\": \"a\\ud83d\\ude00\", \"n\": [1.5e3, "
      "true, {}]}}</tool_call>";
  for (const std::string& text : {xml, hermes}) {
    const auto ids = tag_tokens(text);
    for (size_t n = 0; n <= ids.size(); ++n) {
      const auto out = run(with_tools(), {ids.begin(), ids.begin() + ptrdiff_t(n)}, EndReason::length);
      EXPECT_EQ(out.finish, "length");
      for (const auto& [name, arguments] : out.calls) {
        EXPECT_TRUE(Json::accept(arguments)) << n << ": " << arguments;
        EXPECT_EQ(name, "write");
      }
      EXPECT_EQ(out.content.empty(), !out.calls.empty() || n == 0);
      EXPECT_EQ(out.entries.size(), n);
    }
  }
}

TEST(Pipeline, BrokenArgumentsAreClosed) {
  const auto out =
      run(with_tools(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, oops}}</tool_call>b");
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].second, R"({"a": 1})");
  EXPECT_EQ(out.content, "b");
}

// Any tokens: nothing is thrown or lost, JSON parses, and stop strings do not show.
RC_GTEST_PROP(Pipeline, AnyTokensGiveValidPieces, ()) {
  static const std::vector<std::string> parts = {"<tool_call>",
                                                 "</tool_call>",
                                                 "<think>",
                                                 "</think>",
                                                 "\n",
                                                 "<function=write>",
                                                 "<parameter=text>",
                                                 "<parameter=mode>",
                                                 "</parameter>",
                                                 "</function>",
                                                 "{\"name\": \"f\", \"arguments\": {",
                                                 "\"a\": ",
                                                 "1",
                                                 "}",
                                                 "}",
                                                 "ab",
                                                 "STOP",
                                                 "ST",
                                                 "\"",
                                                 ",",
                                                 "\\",
                                                 "[",
                                                 "\xC3",
                                                 "\xA9",
                                                 "<"};
  std::string text;
  std::vector<TokenId> ids;
  for (const size_t k : *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, parts.size()))) {
    if (parts[k].size() == 1) {
      ids.push_back(uint8_t(parts[k][0]));
      continue;
    }
    for (const TokenId id : tag_tokens(parts[k])) ids.push_back(id);
  }
  PipelineOptions options = with_tools();
  options.stops = {"STOP", "b1"};
  options.starts_thinking = *rc::gen::arbitrary<bool>();
  const auto reason = *rc::gen::element(EndReason::stop, EndReason::length);
  const auto out = run(options, ids, reason);
  for (const auto& [name, arguments] : out.calls) RC_ASSERT(Json::accept(arguments));
  if (!out.stop) RC_ASSERT(out.entries == ids);
  RC_ASSERT(out == run(options, ids, reason));
  RC_ASSERT(out.reasoning.find("STOP") == std::string::npos);
}

// W4: the same text in any tokens gives the same answer.
RC_GTEST_PROP(Pipeline, TokenBordersDoNotMatter, ()) {
  static const std::vector<std::string> parts = {"a", "b",   "ab", "\xC3\xA9", "\U0001F600",
                                                 "x", "STO", "P",  "\n"};
  std::string text;
  for (const size_t k : *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, parts.size()))) {
    text += parts[k];
  }
  std::vector<TokenId> bytes, merged = tag_tokens(text);
  for (const char byte : text) bytes.push_back(uint8_t(byte));
  PipelineOptions options{.stops = {"STOP", "bx", "ba"}};
  const auto a = run(options, bytes), b = run(options, merged);
  RC_ASSERT(a.content == b.content);
  RC_ASSERT(a.stop == b.stop);
}

}  // namespace
}  // namespace tandem::serve
