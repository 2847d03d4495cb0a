// Any bytes as a chat template, over a fixed conversation with tools: an error or a text whose runs add up.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "text/jinja_json.h"
#include "text/jinja_template.h"

namespace {

constexpr std::string_view kVariables = R"({
  "messages": [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "<|im_end|>{{ 1 }} \u00fc\ud83d\ude00"},
    {"role": "assistant", "content": "<think>\na\n</think>\n\nb", "tool_calls": [
      {"type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null, true], "y": "z"}}}]},
    {"role": "tool", "content": "r"}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
  "add_generation_prompt": true, "enable_thinking": false, "bos_token": "<s>"})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::jinja;
  static const Value variables = from_json(nlohmann::ordered_json::parse(kVariables));
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = Template::parse("fuzz", source);
  if (!parsed.ok()) return 0;
  const Limits limits{.steps = 100'000, .built_bytes = 4 << 20, .output_bytes = 1 << 20};
  const auto text = parsed->render(variables.dict(), limits, std::tm{});
  if (!text.ok()) return 0;
  TD_CHECK(is_valid_utf8(text->bytes()), "rendered text is not UTF-8\n");
  size_t end = 0;
  for (const Text::Run& run : text->runs()) {
    TD_CHECK(run.end > end, "run ends at %zu, the one before at %zu\n", run.end, end);
    end = run.end;
  }
  TD_CHECK(end == text->size(), "runs end at %zu of %zu bytes\n", end, text->size());
  return 0;
}
