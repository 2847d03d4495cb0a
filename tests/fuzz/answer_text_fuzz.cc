// Any text as an answer, in pieces of any size: what comes out is UTF-8, arguments are JSON, the stream's
// frames hold, and the borders of the tokens do not matter.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "serve/api/chat_answer.h"
#include "serve/text/pipeline.h"
#include "serve/text/tool_parser.h"
#include "text/bpe.h"

namespace {

using namespace tandem;
using namespace tandem::serve;

// The 256 single bytes, by their values.
const Tokenizer& bytes() {
  static const Tokenizer tokenizer = [] {
    std::string vocab;
    for (int b = 0; b < 256; ++b) {
      const char byte = char(b);
      std::string key = to_printable({&byte, 1});
      if (key == "\"" || key == "\\") key.insert(0, "\\");
      vocab += (b ? ",\"" : "\"") + key + "\":" + std::to_string(b);
    }
    auto parsed = Tokenizer::parse(
        R"({"version":"1.0","normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,)"
        R"("trim_offsets":true,"use_regex":true},"decoder":{"type":"ByteLevel"},"added_tokens":[],"model":)"
        R"({"type":"BPE","vocab":{)" +
        vocab + R"(},"merges":[]}})");
    TD_CHECK(parsed.ok(), "%s\n", parsed.error().message.c_str());
    return *std::move(parsed);
  }();
  return tokenizer;
}

// Joins a parser's calls.
struct Calls : ToolSink {
  std::vector<std::string> names, arguments;
  std::string text;
  void tool_name(std::string_view name) override {
    names.emplace_back(name);
    arguments.emplace_back();
  }
  void tool_arguments(std::string_view json) override { arguments.back() += json; }
  void tool_done() override {}
  void not_a_call(std::string_view more) override { text += more; }
};

// The text as the inside of a call, cut into pieces of n bytes.
Calls parse(const ToolSet& tools, std::string_view text, size_t n) {
  ToolParser parser(tools, "<tool_call>", "</tool_call>");
  Calls calls;
  parser.open();
  while (!text.empty() && parser.active()) {
    std::string leftover;
    parser.feed(text.substr(0, n), calls, leftover);
    text.remove_prefix(std::min(n, text.size()));
    calls.text += leftover;
  }
  calls.text += text;
  parser.finish(calls);
  return calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tools = std::make_shared<const ToolSet>(nlohmann::ordered_json::parse(
      R"([{"type":"function","function":{"name":"f","parameters":{"properties":{"s":{"type":"string"},
          "i":{"type":"integer"},"o":{"type":["object","null","string"]}}}}}])"));
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);

  const Calls whole = parse(*tools, text, text.size() + 1), pieces = parse(*tools, text, 1 + data[0] % 7);
  TD_CHECK(whole.names == pieces.names && whole.arguments == pieces.arguments && whole.text == pieces.text,
           "the borders of pieces matter\n");

  PipelineOptions options;
  options.tokenizer = &bytes();
  options.markers = Markers::of(bytes());
  options.tools = tools;
  options.starts_thinking = (data[0] & 8) != 0;
  if (data[0] & 16) options.stops = {"STOP", "aab", "<to"};
  auto pipeline = TextPipeline::create(std::move(options));
  TD_CHECK(pipeline.ok(), "no pipeline\n");
  ChatStream stream({"id", 0, "m", "f"}, bytes(), 1, {});
  std::string sent;
  std::vector<std::string> arguments;
  const auto take = [&](const TextStep& step) {
    for (const Piece& piece : step.pieces) {
      TD_CHECK(!first_invalid_utf8(piece.text), "a piece is not UTF-8\n");
      if (piece.kind == PieceKind::tool_call) arguments.emplace_back();
      if (piece.kind == PieceKind::tool_arguments) arguments.at(size_t(piece.call)) += piece.text;
    }
    stream.add(0, step, sent);
    return step.ended;
  };
  for (const char byte : text) {
    if (take((*pipeline)->feed(uint8_t(byte)))) break;
  }
  take((*pipeline)->finish(EndReason::stop));
  stream.finish(0, (*pipeline)->finish_reason(), {}, sent);
  for (const std::string& json : arguments)
    TD_CHECK(nlohmann::json::accept(json), "arguments: %s\n", json.c_str());
  for (size_t at = 0; at < sent.size();) {
    const size_t end = sent.find("\n\n", at);
    TD_CHECK(end != std::string::npos && sent.compare(at, 6, "data: ") == 0, "a broken frame\n");
    TD_CHECK(nlohmann::json::accept(sent.substr(at + 6, end - at - 6)), "an event is no JSON\n");
    at = end + 2;
  }
  return 0;
}
