// tandem score: log-probabilities of given tokens under the model, and the perplexity of a text.
#include "engine/score.h"

#include <fmt/format.h>

#include <cmath>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/model_flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"

namespace tandem {
namespace {

constexpr const char* kCommand = "score";

constexpr const char* kExamples =
    "tandem score --model models/tandem-demo --file setup.py\n"
    "tandem score --model DIR --prompt 'The cat sat on the mat.'\n"
    "tandem score --model DIR --prompt-tokens 1,2,3 --top 5 --json";

struct Flags {
  ModelFlags model;
  std::optional<std::string> prompt, file;
  std::optional<std::vector<int>> prompt_tokens;
  std::optional<int> window;
  int top = 0;
  bool json = false;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(kCommand, "Prints how probable the model finds each token of a text given those before it.",
                  kExamples);
  flags.model.add_model(options);
  options.section("Text (one of)");
  options.add("-p,--prompt", &flags.prompt, "TEXT", "Raw text; special tokens in it are recognised");
  options.add("-f,--file", &flags.file, "FILE", "The text of a file; - is standard input");
  options.add("--prompt-tokens", &flags.prompt_tokens, "1,2,3", "Token ids; no tokenizer is needed",
              {.min = 0});
  options.section("Scores");
  options.add("--top", &flags.top, "K", "Log-probabilities of the K best tokens at each place too [0]",
              {.min = 0});
  options.add("--window", &flags.window, "N",
              "Score in parts of N tokens, each from an empty context [a text: the model's context]",
              {.min = 2});
  options.flag("--json", flags.json, "Print one JSON object");
  flags.model.add_backend(options);
  flags.model.add_limits(options);
  if (const auto code = options.parse(args)) return code;
  if (int(flags.prompt.has_value()) + int(flags.file.has_value()) + int(flags.prompt_tokens.has_value()) !=
      1) {
    return misuse(kCommand, "expected one of --prompt, --file and --prompt-tokens");
  }
  if (const Status status = flags.model.check(); !status.ok()) {
    return misuse(kCommand, status.error().message);
  }
  return std::nullopt;
}

Result<std::vector<TokenId>> ids_to_score(const Flags& flags, const LoadedModel& model) {
  if (flags.prompt_tokens) return *flags.prompt_tokens;
  std::string text = flags.prompt.value_or("");
  if (flags.file) {
    TD_ASSIGN_OR_RETURN(text, read_text(*flags.file));
  }
  if (!model.tokenizer) {
    return Error{fmt::format("{}: no tokenizer.json: give the text as --prompt-tokens", model.name)};
  }
  return model.tokenizer->encode(text, SpecialTokens::recognise);
}

struct Scores {
  std::vector<std::optional<Logprobs>> of_token;  // none: nothing stands before the token
  double sum = 0;
  int n = 0;
};

Result<Scores> score(const Flags& flags, const LoadedModel& model, std::span<const TokenId> ids) {
  TD_ASSIGN_OR_RETURN(const int context, flags.model.context_of(model));
  if (ids.empty()) return Error{"nothing to score: the text has no tokens"};
  // Ids given one by one are one sequence; a text may be longer than the context.
  const bool parts = flags.window || !flags.prompt_tokens;
  const size_t window = std::min(size_t(flags.window.value_or(context)), size_t(context));
  if (!parts && ids.size() > size_t(context)) {
    return Error{fmt::format("{} tokens to score, the context holds {}: score them in parts with --window",
                             ids.size(), context)};
  }
  Scores scores;
  scores.of_token.resize(ids.size());
  Progress progress("scoring");
  for (size_t first = 0; first < ids.size(); first += window) {
    const auto sink = [&](int index, const Logprobs& l) {
      const size_t at = first + size_t(index);
      scores.of_token[at] = l;
      scores.sum += double(l.chosen);
      ++scores.n;
      progress.update(at, ids.size(), "tokens");
    };
    TD_RETURN_IF_ERROR(score_tokens(*model.decoder, ids.subspan(first, std::min(window, ids.size() - first)),
                                    flags.top, sink, interrupted));
  }
  return scores;
}

Json to_json(std::span<const TokenId> ids, const Scores& scores) {
  Json logprobs = Json::array(), top = Json::array();
  for (const std::optional<Logprobs>& l : scores.of_token) {
    logprobs.push_back(l ? json_number(l->chosen) : Json(nullptr));
    if (!l) {
      top.push_back(nullptr);
      continue;
    }
    Json best = Json::array();
    for (const TokenLogprob& t : l->top) best.push_back({{"id", t.id}, {"logprob", json_number(t.logprob)}});
    top.push_back(std::move(best));
  }
  return {{"tokens", std::vector<TokenId>(ids.begin(), ids.end())}, {"logprobs", logprobs}, {"top", top}};
}

std::string summary(const LoadedModel& model, std::span<const TokenId> ids, const Scores& scores) {
  if (scores.n == 0)
    return fmt::format("{} token: nothing stands before it, so it has no score\n", ids.size());
  const double mean = -scores.sum / scores.n;
  std::string out = fmt::format(
      "{} tokens, {} scored\nlog-probability      {:.4f} in all, {:.4f} per token\nperplexity per token "
      "{:.4f}\n",
      ids.size(), scores.n, scores.sum, -mean, std::exp(mean));
  if (model.tokenizer) {
    size_t bytes = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (scores.of_token[i]) bytes += model.tokenizer->token_bytes(ids[i]).size();
    }
    if (bytes > 0) {
      out += fmt::format("bits per byte        {:.4f}\n", -scores.sum / std::log(2.0) / double(bytes));
    }
  }
  return out;
}

}  // namespace

int run_score(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  if (!flags.prompt_tokens) {
    if (const Status status = flags.model.check_reads_text(); !status.ok())
      return fail(kCommand, status.error().message);
  }
  const Result<LoadedModel> model = flags.model.load(kCommand, 32);
  if (!model.ok()) return fail(kCommand, model.error().message);
  const Result<std::vector<TokenId>> ids = ids_to_score(flags, *model);
  if (!ids.ok()) return fail(kCommand, ids.error().message);
  watch_interrupt();
  const Result<Scores> scores = score(flags, *model, *ids);
  if (!scores.ok()) {
    fail(kCommand, scores.error().message);
    return interrupted() ? kInterrupted : kFailed;
  }
  Output out;
  out.write(flags.json ? json_line(to_json(*ids, *scores)) : summary(*model, *ids, *scores));
  return out.finish(kCommand, kDone);
}

}  // namespace tandem
