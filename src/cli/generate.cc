// tandem generate: one prompt, one answer, streamed as it is made.
#include <fmt/format.h>

#include "cli/answer.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/model_flags.h"
#include "cli/options.h"
#include "cli/output.h"

namespace tandem {
namespace {

constexpr const char* kCommand = "generate";

constexpr const char* kExamples =
    "tandem generate --model models/tandem-demo --prompt 'def fibonacci(n):'\n"
    "tandem generate --model DIR --chat --prompt 'Why is the sky blue?' --temperature 0.7 --seed 1\n"
    "tandem generate --model DIR --prompt-file essay.txt --max-tokens 64 --json\n"
    "echo 'import os' | tandem generate --model models/tandem-demo -\n"
    "tandem generate --model synth:qwen3.5-0.8b@8 --prompt-tokens 1,2,3 --json";

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  SpeculationFlags speculation;
  std::optional<std::string> prompt, prompt_file, dash, system;
  std::optional<std::vector<int>> prompt_tokens;
  std::optional<int> logprobs;
  std::optional<bool> thinking;
  bool chat = false, echo = false, json = false;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(kCommand, "Continues a prompt, or answers it with --chat, and streams the text.",
                  kExamples);
  flags.model.add_model(options);
  options.section("Prompt (one of)");
  options.add("-p,--prompt", &flags.prompt, "TEXT", "Raw text; special tokens in it are recognised");
  options.add("-f,--prompt-file", &flags.prompt_file, "FILE", "The text of a file; - is standard input");
  options.add("--prompt-tokens", &flags.prompt_tokens, "1,2,3", "Token ids; no tokenizer is needed",
              {.min = 0});
  options.add("stdin", &flags.dash, "-", "Standard input", {.choices = {"-"}});
  options.section("Chat");
  options.flag("--chat", flags.chat,
               "Put the prompt into the checkpoint's chat template as a user's message");
  options.add("--system", &flags.system, "TEXT", "The system message (with --chat)");
  options.toggle("--think", flags.thinking, "Ask the template for thinking, or for none (with --chat)");
  flags.sampling.add_to(options);
  flags.speculation.add_to(options);
  options.section("Output");
  options.flag("--echo", flags.echo, "Print the prompt before its continuation");
  options.flag("--json", flags.json, "Print one JSON object at the end instead of text");
  options.add("--logprobs", &flags.logprobs, "K",
              "With --json: log-probability of every token, and those of the K best", {.min = 0});
  flags.model.add_backend(options);
  flags.model.add_limits(options);
  if (const auto code = options.parse(args)) return code;
  const int sources = int(flags.prompt.has_value()) + int(flags.prompt_file.has_value()) +
                      int(flags.prompt_tokens.has_value()) + int(flags.dash.has_value());
  if (sources != 1) {
    return misuse(kCommand,
                  fmt::format("expected one of --prompt, --prompt-file, --prompt-tokens and -, found {}",
                              sources == 0 ? "none" : std::to_string(sources)));
  }
  if (flags.chat && flags.prompt_tokens) {
    return misuse(kCommand, "--chat takes text, not --prompt-tokens");
  }
  if (!flags.chat && (flags.system || flags.thinking)) {
    return misuse(kCommand, "--system, --think and --no-think need --chat");
  }
  if (flags.echo && (flags.chat || flags.json || flags.prompt_tokens)) {
    return misuse(kCommand,
                  "--echo is for text that is continued: not with --chat, --json or --prompt-tokens");
  }
  if (flags.logprobs && !flags.json) return misuse(kCommand, "--logprobs needs --json");
  for (const Status& status : {flags.model.check(), flags.sampling.check(), flags.speculation.check()}) {
    if (!status.ok()) return misuse(kCommand, status.error().message);
  }
  return std::nullopt;
}

Result<std::string> prompt_text(const Flags& flags) {
  if (flags.prompt) return *flags.prompt;
  return read_text(flags.prompt_file.value_or("-"));
}

Result<std::vector<TokenId>> prompt_ids(const Flags& flags, const std::string& text,
                                        const LoadedModel& model) {
  if (flags.prompt_tokens) return *flags.prompt_tokens;
  if (flags.chat) {
    Conversation conversation(flags.system, flags.thinking);
    conversation.add_user(text);
    return conversation.prompt(model);
  }
  if (!model.tokenizer) {
    return Error{fmt::format("{}: no tokenizer.json: give the prompt as --prompt-tokens", model.name)};
  }
  return model.tokenizer->encode(text, SpecialTokens::recognise);
}

Json to_json(const Logprobs& l, TokenId id) {
  Json top = Json::array();
  for (const TokenLogprob& t : l.top) top.push_back({{"id", t.id}, {"logprob", json_number(t.logprob)}});
  return {{"id", id}, {"logprob", json_number(l.chosen)}, {"top", top}};
}

Json to_json(const SpeculationStats& s) {
  Json by_position = Json::array();
  for (size_t i = 0; i < s.judged_at.size() && s.judged_at[i] > 0; ++i) {
    by_position.push_back(double(s.accepted_at[i]) / s.judged_at[i]);
  }
  Json out{{"drafter", s.drafter},
           {"rounds", s.rounds},
           {"drafted", s.drafted},
           {"accepted", s.accepted},
           {"tokens_per_round", s.tokens_per_round()},
           {"acceptance_by_position", by_position},
           {"speed_up", s.speed_up()},
           {"draft_s", s.draft_s},
           {"verify_s", s.verify_s},
           {"other_s", s.other_s}};
  if (s.simulated) out["simulated"] = true;
  return out;
}

Json to_json(const Answer& answer, const LoadedModel& model) {
  const RequestStats& s = answer.stats;
  Json out{{"tokens", answer.tokens},
           {"text", answer.text ? Json(*answer.text) : Json(nullptr)},
           {"finish_reason", answer.finish == FinishReason::stop ? "stop" : "length"},
           {"stats",
            {{"prompt_tokens", s.prompt_tokens},
             {"generated_tokens", s.generated_tokens},
             {"prefill_s", s.prefill_s},
             {"decode_s", s.decode_s},
             {"decode_tokens_per_s", s.decode_tokens_per_s()},
             {"prefill_tokens_per_s", s.prefill_s > 0 ? s.prompt_tokens / s.prefill_s : 0},
             {"load_s", model.load_s},
             {"backend", model.backend->description()}}}};
  if (!s.speculation.drafter.empty()) out["stats"]["speculation"] = to_json(s.speculation);
  if (!answer.logprobs.empty()) {
    Json rows = Json::array();
    for (size_t i = 0; i < answer.logprobs.size(); ++i) {
      rows.push_back(to_json(answer.logprobs[i], answer.tokens[i]));
    }
    out["logprobs"] = rows;
  }
  return out;
}

Result<Answer> generate(const Flags& flags, LoadedModel& model, std::vector<TokenId> prompt, Output& out) {
  TD_ASSIGN_OR_RETURN(const int context, flags.model.context_of(model));
  // State for this prompt and answer, not for the whole context.
  const int64_t wanted = int64_t(prompt.size()) + flags.sampling.max_tokens;
  EngineOptions options{.max_sequences = 1,
                        .max_positions = int(std::min<int64_t>(context, wanted)),
                        .prefill_chunk = flags.model.prefill_chunk,
                        .n_text_tokens = model.n_text_tokens()};
  TD_ASSIGN_OR_RETURN(const SpeculationFlags::Drafters drafters,
                      flags.speculation.load(model, {.max_positions = options.max_positions}, true));
  flags.speculation.apply(drafters, options);
  TD_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(*model.decoder, options));
  Request request{.prompt = std::move(prompt),
                  .sampling = flags.sampling.params(model),
                  .max_tokens = flags.sampling.max_tokens,
                  .top_logprobs = flags.logprobs};
  return run_answer(*engine, model.tokenizer ? &*model.tokenizer : nullptr, std::move(request),
                    flags.sampling.stop, [&](std::string_view piece) {
                      if (flags.json) return true;
                      out.write(piece);
                      return out.flush().ok();
                    });
}

}  // namespace

int run_generate(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  std::string text;
  if (!flags.prompt_tokens) {
    if (const Status status = flags.model.check_reads_text(); !status.ok())
      return fail(kCommand, status.error().message);
    Result<std::string> read = prompt_text(flags);
    if (!read.ok()) return fail(kCommand, read.error().message);
    text = *std::move(read);
  }
  Result<LoadedModel> model = flags.model.load(kCommand, kMaxDecodeRows);
  if (!model.ok()) return fail(kCommand, model.error().message);
  Result<std::vector<TokenId>> prompt = prompt_ids(flags, text, *model);
  if (!prompt.ok()) return fail(kCommand, "the prompt: " + prompt.error().message);
  watch_interrupt();
  Output out;
  if (flags.echo) out.write(text);
  const Result<Answer> answer = generate(flags, *model, *std::move(prompt), out);
  if (!answer.ok()) {
    (void)out.flush();  // what was said before the failure
    return fail(kCommand, answer.error().message);
  }
  const bool cut = answer->finish == FinishReason::none && !out.broken();
  if (flags.json) {
    // Half an answer has no finish_reason: a script gets none.
    if (!cut) out.write(json_line(to_json(*answer, *model)));
  } else {
    out.write("\n");
  }
  const int code = out.finish(kCommand, cut ? int{kInterrupted} : int{kDone});
  if (code == kInterrupted) {
    fail(kCommand, flags.json ? "interrupted: an answer that is not complete gives no JSON" : "interrupted");
  }
  const bool in_prompt = cut && answer->tokens.empty();  // then there is nothing to count yet
  if (!flags.json && code != kFailed && !in_prompt) {
    say(fmt::format("[{}; loaded in {:.2f} s; {}]\n", figures(*answer, flags.sampling.max_tokens),
                    model->load_s, model->backend->description()));
    if (const std::string line = figures(answer->stats.speculation); !line.empty()) say("[" + line + "]\n");
  }
  return code;
}

}  // namespace tandem
