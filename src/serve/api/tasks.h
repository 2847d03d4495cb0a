// What a request asks for, checked, with the defaults filled in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "format/generation_config.h"
#include "sample/params.h"
#include "serve/api/api_error.h"
#include "serve/text/tool_set.h"

namespace tandem::serve {

// What requests are checked against.
struct ApiContext {
  std::vector<std::string> models;  // served names; the first is the loaded model's
  int n_vocab = 0;
  SamplingParams defaults;     // api_defaults()
  int max_choices = 128;       // n, and prompts times n
  bool strict_params = false;  // unknown keys are errors
};

// generation_config.json decides; without an opinion: temperature 1, no filters.
SamplingParams api_defaults(const GenerationConfig& generation);

struct SpeculationChoice {
  bool on = true;
  std::optional<int> max_draft;
  std::string drafter;  // empty: the server's
};

// What chats and completions share.
struct GenerationTask {
  std::string model;              // as asked for; the first served name when absent
  SamplingParams sampling;        // seed: see below; stop_ids: of the request alone
  std::optional<uint64_t> seed;   // absent: drawn by the server
  std::optional<int> max_tokens;  // absent: what the context leaves
  std::vector<std::string> stops;
  bool ignore_eos = false;
  bool include_stop = false;
  bool stop_in_thinking = true;
  int n = 1;                    // choices; with a fixed seed choice k draws with seed + k
  std::optional<int> logprobs;  // absent: none; else how many alternatives per token
  bool stream = false;
  bool include_usage = false, continuous_usage = false;
  bool timings = false;
  bool prefix_cache = true;
  std::string cache_salt;
  std::optional<SpeculationChoice> speculation;
  std::vector<std::string> ignored;  // keys nobody knows: the header x-tandem-ignored
};

enum class ToolChoice : uint8_t { none, automatic, required, named };
enum class FormatKind : uint8_t { text, json_object, json_schema };

struct ResponseFormat {
  FormatKind kind = FormatKind::text;
  std::string name;
  Json schema;  // json_schema: an object
  bool strict = false;
};

struct ChatTask : GenerationTask {
  Json messages = Json::array();            // as ChatInput has them
  Json tools;                               // array, or null
  std::shared_ptr<const ToolSet> tool_set;  // null: tool markup is content (no tools, or tool_choice none)
  ToolChoice tool_choice = ToolChoice::none;
  std::string tool_name;  // of tool_choice named
  bool parallel_tool_calls = true;
  ResponseFormat format;
  Json template_extra;  // more variables for the template: an object, or null
  bool continue_final_message = false;
  std::optional<int> reasoning_budget;
};

using CompletionPrompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionTask : GenerationTask {
  std::vector<CompletionPrompt> prompts;  // choice index = prompt * n + k
  bool echo = false;
};

// Errors: as sections and tables of docs say; what the server cannot do yet (formats, forced tool calls) is
// in the task, and unsupported() refuses it by name.
ApiResult<ChatTask> read_chat_request(const Json& body, const ApiContext& context);
ApiResult<CompletionTask> read_completion_request(const Json& body, const ApiContext& context);

// What needs constrained decoding: a format other than text (the field's name is the API's), tool_choice
// required or named, and reasoning_budget.
std::optional<ApiError> unsupported(const ChatTask& task, std::string_view format_field = "response_format");

// The value of the header x-tandem-ignored, at most 512 bytes of printable ASCII; empty when nothing was
// ignored.
std::string ignored_header(const std::vector<std::string>& ignored);

}  // namespace tandem::serve
