// Chats, completions and tokens: bodies become plans for the engine's thread.
#include <fmt/format.h>

#include <ctime>
#include <random>

#include "serve/api/fields.h"
#include "serve/api/json_body.h"
#include "serve/service/completion.h"
#include "serve/service/service.h"

namespace tandem::serve {
namespace {

uint64_t random_word() {
  thread_local std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

// What speculation does not change, and the engine cannot do for one request alone.
std::optional<ApiError> unsupported_speculation(const GenerationTask& task) {
  if (!task.speculation ||
      (task.speculation->on && !task.speculation->max_draft && task.speculation->drafter.empty()))
    return std::nullopt;
  return invalid_field("speculation", "unsupported_value",
                       "speculation of one request cannot be changed yet: expected true, or leave it out");
}

}  // namespace

ApiResult<Json> Service::body_of(const Exchange& exchange) const {
  const std::string_view type = exchange.request.header("content-type");
  const std::string_view media = type.substr(0, type.find_first_of("; "));
  if (!media.empty() && media != "application/json" && media != "text/plain") {
    return request_error(415, "unsupported_media_type",
                         fmt::format("Content-Type is {}, expected application/json", media.substr(0, 100)));
  }
  return parse_body(exchange.request.body);
}

// Of one choice: what the task says and the model's own stop tokens.
Request Service::request_for(const GenerationTask& task, const std::vector<TokenId>& prompt,
                             uint64_t seed) const {
  Request request{.prompt = prompt,
                  .sampling = task.sampling,
                  .max_tokens = options_.context,
                  .top_logprobs = task.logprobs};
  request.sampling.seed = seed;
  request.prefix_cache = task.prefix_cache;
  request.cache_salt = task.cache_salt;
  if (task.max_tokens) request.max_tokens = std::min(request.max_tokens, *task.max_tokens);
  if (!task.ignore_eos) {
    std::vector<TokenId>& stops = request.sampling.stop_ids;
    stops.insert(stops.end(), model_.stop_ids.begin(), model_.stop_ids.end());
  }
  return request;
}

CompletionPlan Service::plan_for(const GenerationTask& task) const {
  CompletionPlan plan;
  plan.stream = task.stream;
  plan.timings = task.timings;
  plan.ignored = ignored_header(task.ignored);
  plan.choices_per_prompt = task.n;
  plan.text.tokenizer = &*model_.tokenizer;
  plan.text.markers = markers_;
  plan.text.stops = task.stops;
  plan.text.include_stop = task.include_stop;
  plan.text.stop_in_thinking = task.stop_in_thinking;
  plan.text.min_tokens = task.sampling.min_tokens;
  return plan;
}

WriterOptions Service::writer_for(const GenerationTask& task, std::string_view prefix, int n_choices) const {
  return {.head = {.id = make_id(prefix, 26, random_word(), random_word()),
                   .created = int64_t(std::time(nullptr)),
                   .model = task.model.empty() ? options_.names.front() : task.model,
                   .fingerprint = options_.fingerprint},
          .tokenizer = &*model_.tokenizer,
          .n_choices = n_choices,
          .include_usage = task.include_usage,
          .logprobs = task.logprobs};
}

void Service::generate(Exchange& exchange, const std::string& id, CompletionPlan plan,
                       bool nothing_to_generate) {
  const uint64_t number = next_id();
  {
    const std::lock_guard lock(live_mutex_);
    live_[id] = number;
  }
  plan.when_over = [this, id] {
    const std::lock_guard lock(live_mutex_);
    live_.erase(id);
  };
  ApiResult<std::shared_ptr<Completion>> completion = Completion::create(exchange, std::move(plan));
  if (!completion.ok()) return answer(exchange, completion.error());
  if (nothing_to_generate) return (*completion)->answer_empty();
  if (!loop_.submit(number, *completion)) {
    return answer(exchange, draining_ ? unavailable("draining", "the server is shutting down")
                                      : queue_full(size_t(options_.limits.max_queue)));
  }
  exchange.reply->on_gone([this, number] {
    ++n_cancelled_;
    loop_.cancel(number);
  });
}

ApiResult<ChatPrompt> Service::prompt_of(const ChatTask& task, std::string_view format_field) const {
  if (auto error = unsupported(task, format_field)) return *std::move(error);
  if (auto error = unsupported_speculation(task)) return *std::move(error);
  if (!model_.chat_template) {
    return invalid_field("messages", "template_error", model_.chat_template_error.message);
  }
  ApiResult<ChatPrompt> prompt =
      make_chat_prompt(task, *model_.chat_template, *model_.tokenizer, local_time());
  if (prompt.ok() && prompt->ids.size() >= size_t(options_.context)) {
    return context_length_exceeded(prompt->ids.size(), size_t(options_.context));
  }
  return prompt;
}

void Service::answer_chat(Exchange& exchange, const ChatTask& task, std::string_view id_prefix,
                          const MakeWriter& make_writer, std::string_view format_field) {
  const ApiResult<ChatPrompt> prompt = prompt_of(task, format_field);
  if (!prompt.ok()) return answer(exchange, prompt.error());
  CompletionPlan plan = plan_for(task);
  plan.prompt_tokens = int64_t(prompt->ids.size());
  plan.text.starts_thinking = starts_thinking(markers_, prompt->ids, prompt->pieces);
  plan.text.tools = task.tool_set;
  plan.text.one_call = !task.parallel_tool_calls;
  const uint64_t seed = task.seed.value_or(random_word());
  for (int k = 0; k < task.n; ++k)
    plan.requests.push_back(request_for(task, prompt->ids, seed + uint64_t(k)));
  const WriterOptions writer = writer_for(task, id_prefix, task.n);
  plan.writer = make_writer(writer);
  generate(exchange, writer.head.id, std::move(plan), false);
}

void Service::chat_completions(Exchange& exchange) {
  ApiResult<Json> body = body_of(exchange);
  if (!body.ok()) return answer(exchange, body.error());
  ApiResult<ChatTask> read = read_chat_request(*body, context_);
  if (!read.ok()) return answer(exchange, read.error());
  answer_chat(exchange, *read, "chatcmpl-",
              [&](const WriterOptions& options) { return chat_writer(options, read->stream); });
}

void Service::completions(Exchange& exchange) {
  ApiResult<Json> body = body_of(exchange);
  if (!body.ok()) return answer(exchange, body.error());
  ApiResult<CompletionTask> read = read_completion_request(*body, context_);
  if (!read.ok()) return answer(exchange, read.error());
  const CompletionTask& task = *read;
  if (const auto error = unsupported_speculation(task)) return answer(exchange, *error);
  if (task.echo && task.logprobs) {
    return answer(
        exchange,
        invalid_field("echo", "unsupported_value",
                      "log-probabilities of an echoed prompt are not supported: leave out echo or logprobs"));
  }
  CompletionPlan plan = plan_for(task);
  plan.text.split_thinking = false;
  const uint64_t seed = task.seed.value_or(random_word());
  for (const CompletionPrompt& given : task.prompts) {
    std::vector<TokenId> ids;
    if (const auto* text = std::get_if<std::string>(&given)) {
      Result<std::vector<TokenId>> encoded = model_.tokenizer->encode(*text, SpecialTokens::recognise);
      if (!encoded.ok())
        return answer(exchange, invalid_field("prompt", "invalid_value", encoded.error().message));
      ids = *std::move(encoded);
    } else {
      ids = std::get<std::vector<TokenId>>(given);
    }
    if (ids.empty()) return answer(exchange, empty_prompt());
    if (ids.size() >= size_t(options_.context)) {
      return answer(exchange, context_length_exceeded(ids.size(), size_t(options_.context)));
    }
    plan.prompt_tokens += int64_t(ids.size());
    for (int k = 0; k < task.n; ++k) {
      plan.requests.push_back(request_for(task, ids, seed + plan.requests.size()));
      if (task.echo) plan.echoes.push_back({model_.tokenizer->decode(ids, SpecialText::keep), ids, {}});
    }
  }
  const WriterOptions writer = writer_for(task, "cmpl-", int(plan.requests.size()));
  plan.writer = completion_writer(writer, task.stream);
  generate(exchange, writer.head.id, std::move(plan), task.max_tokens == 0);
}

void Service::cancel(Exchange& exchange) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(live_mutex_);
    const auto it = live_.find(std::string(exchange.rest));
    if (it != live_.end()) number = it->second;
  }
  if (number == 0) {
    return answer(exchange,
                  request_error(404, "unknown_request",
                                fmt::format("no request {} is running", exchange.rest.substr(0, 100))));
  }
  ++n_cancelled_;
  loop_.cancel(number);
  answer(exchange, 200, {{"id", std::string(exchange.rest)}, {"cancelled", true}});
}

void Service::tokenize(Exchange& exchange) {
  const ApiResult<Json> body = body_of(exchange);
  if (!body.ok()) return answer(exchange, body.error());
  std::optional<ApiError> error;
  Fields fields(*body, "", error);
  const std::optional<std::string> content = fields.string("content");
  const std::optional<std::string> prompt = fields.string("prompt");
  const bool special = fields.boolean("add_special").value_or(true);
  if (!error && !content && !prompt) {
    error = invalid_field("content", "missing_field", "content is missing: expected the text to tokenise");
  }
  if (error) return answer(exchange, *error);
  const Result<std::vector<TokenId>> ids = model_.tokenizer->encode(
      content ? *content : *prompt, special ? SpecialTokens::recognise : SpecialTokens::plain);
  if (!ids.ok()) return answer(exchange, invalid_field("content", "invalid_value", ids.error().message));
  answer(exchange, 200, {{"tokens", *ids}, {"count", ids->size()}, {"max_model_len", options_.context}});
}

void Service::detokenize(Exchange& exchange) {
  const ApiResult<Json> body = body_of(exchange);
  if (!body.ok()) return answer(exchange, body.error());
  std::optional<ApiError> error;
  Fields fields(*body, "", error);
  const Json* tokens = fields.array("tokens");
  if (!error && tokens == nullptr) {
    error = invalid_field("tokens", "missing_field", "tokens is missing: expected an array of token ids");
  }
  std::vector<TokenId> ids;
  for (size_t i = 0; !error && i < tokens->size(); ++i) {
    const std::optional<int64_t> id = as_integer((*tokens)[i]);
    if (!id || *id < 0 || *id >= model_.config.vocab_size) {
      error = invalid_field(fmt::format("tokens[{}]", i), "out_of_range",
                            fmt::format("tokens[{}] is {}, expected an id below {}", i, shown((*tokens)[i]),
                                        model_.config.vocab_size));
    } else {
      ids.push_back(TokenId(*id));
    }
  }
  if (error) return answer(exchange, *error);
  const std::string text = model_.tokenizer->decode(ids, SpecialText::keep);
  answer(exchange, 200, {{"content", text}, {"prompt", text}});
}

}  // namespace tandem::serve
