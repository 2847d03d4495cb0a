#include <fmt/format.h>

#include "serve/api/task_fields.h"

namespace tandem::serve {
namespace {

constexpr int kDefaultMaxTokens = 16;  // OpenAI's contract
constexpr int kMostAlternatives = 20;

bool read_ids(const Json& ids, const std::string& key, Fields& fields, const ApiContext& context,
              std::vector<TokenId>& out) {
  out.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = as_integer(ids[i]);
    if (!id || *id < 0 || *id >= context.n_vocab) {
      fields.wrong(fmt::format("{}[{}]", key, i), id ? "out_of_range" : "invalid_type",
                   fmt::format("a token id in [0, {}]", context.n_vocab - 1), ids[i]);
      return false;
    }
    out.push_back(TokenId(*id));
  }
  return true;
}

void read_prompts(Fields& fields, const ApiContext& context, CompletionTask& task) {
  const Json* prompt = fields.any("prompt");
  constexpr std::string_view kWant = "a string, an array of token ids, or an array of those";
  if (prompt == nullptr) return fields.fail("prompt", "missing_field", fmt::format("expected {}", kWant));
  if (prompt->is_string()) {
    task.prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array()) return fields.wrong("prompt", "invalid_type", kWant, *prompt);
  if (prompt->empty()) return fields.fail("prompt", "empty_prompt", fmt::format("expected {}", kWant));
  if ((*prompt)[0].is_number()) {
    std::vector<TokenId> ids;
    if (read_ids(*prompt, "prompt", fields, context, ids)) task.prompts.emplace_back(std::move(ids));
    return;
  }
  if (prompt->size() > size_t(context.max_choices)) {
    return fields.fail(
        "prompt", "out_of_range",
        fmt::format("expected at most {} prompts, found {}", context.max_choices, prompt->size()));
  }
  for (size_t i = 0; i < prompt->size() && fields.ok(); ++i) {
    const Json& one = (*prompt)[i];
    const std::string key = fmt::format("prompt[{}]", i);
    if (one.is_string()) {
      task.prompts.emplace_back(one.get<std::string>());
    } else if (one.is_array()) {
      std::vector<TokenId> ids;
      if (read_ids(one, key, fields, context, ids)) task.prompts.emplace_back(std::move(ids));
    } else {
      fields.wrong(key, "invalid_type", "a string or an array of token ids", one);
    }
  }
}

}  // namespace

ApiResult<CompletionTask> read_completion_request(const Json& body, const ApiContext& context) {
  CompletionTask task;
  std::optional<ApiError> error;
  Fields fields(body, "", error);
  read_generation(fields, context, task);
  read_prompts(fields, context, task);
  task.echo = fields.boolean("echo").value_or(false);
  task.max_tokens =
      int(fields.integer("max_tokens", task.echo ? 0 : 1, INT32_MAX).value_or(kDefaultMaxTokens));
  if (task.sampling.min_tokens > *task.max_tokens) {
    fields.fail("min_tokens", "out_of_range",
                fmt::format("expected at most max_tokens ({}), found {}", *task.max_tokens,
                            task.sampling.min_tokens));
  }
  if (const auto k = fields.integer("logprobs", 0, kMostAlternatives)) task.logprobs = int(*k);
  if (const auto best = fields.integer("best_of", 1, INT32_MAX); best && *best != 1) {
    fields.wrong("best_of", "unsupported_value", "1: all choices are returned, n says how many", Json(*best));
  }
  if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty()) {
    fields.fail("suffix", "unsupported_value", "filling in is not supported; send the prompt alone");
  }
  if (fields.ok() && int64_t(task.prompts.size()) * task.n > context.max_choices) {
    fields.fail("n", "out_of_range",
                fmt::format("expected at most {} choices, found {} prompts times {}", context.max_choices,
                            task.prompts.size(), task.n));
  }
  if (!error) read_unknown(fields, context, task);
  if (error) return *std::move(error);
  return task;
}

}  // namespace tandem::serve
