// tandem bench speculate: plain and speculative decoding of the same prompts, in turns in one process.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/bench/bench.h"
#include "cli/model_flags.h"
#include "cli/prompts.h"
#include "engine/engine.h"
#include "engine/load_drafter.h"

namespace tandem::bench {
namespace {

constexpr const char* kCommand = "bench speculate";

constexpr const char* kExamples =
    "tandem bench speculate --model models/tandem-demo --prompts bench/prompts/code.jsonl\n"
    "tandem bench speculate --model models/tandem-demo --drafter dflash --drafter mtp --json\n"
    "tandem bench speculate --model synth:qwen3.5-0.8b@8 --drafter simulated:0.8 --draft-length fixed:7";

struct Flags {
  BenchFlags common;
  SpeculationFlags speculation;
  std::vector<std::string> drafters{"auto"};
  std::vector<std::string> prompts;
  int max_tokens = 128;
  std::optional<double> temperature;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(
      kCommand,
      "Decodes prompts plainly and with a drafter, in turns, and compares speed and tokens: any difference "
      "is an error, but with --delta closed or a rule that changes tokens. efficiency = speed-up / tokens "
      "per round.",
      kExamples);
  flags.common.add_model(options);
  options.add("--prompts", &flags.prompts, "FILE",
              "Prompts as JSON lines, {\"prompt\": text} or {\"prompt_tokens\": [ids]}; the file's name is "
              "their class; may "
              "be repeated [8 prompts of random tokens]");
  options.add("--max-tokens", &flags.max_tokens, "N",
              fmt::format("Tokens of each answer [{}]", flags.max_tokens), {.min = 2});
  options.add("--temperature", &flags.temperature, "T", "0: greedy [0]", {.min = 0, .max = 100});
  flags.speculation.add_to(options, &flags.drafters);
  flags.common.models = {"models/tandem-demo"};
  flags.common.add_to(options, 5);
  if (const auto code = options.parse(args)) return code;
  for (const std::string& name : flags.drafters) {
    flags.speculation.drafter = name;
    if (const Status status = flags.speculation.check(); !status.ok())
      return misuse(kCommand, status.error().message);
  }
  return std::nullopt;
}

struct PromptClass {
  std::string name;
  std::vector<std::vector<TokenId>> prompts;
};

Result<PromptClass> read_class(const std::string& path, const LoadedModel& model) {
  TD_ASSIGN_OR_RETURN(std::vector<std::vector<TokenId>> prompts, read_prompts(path, model));
  return PromptClass{.name = std::filesystem::path(path).stem().string(), .prompts = std::move(prompts)};
}

PromptClass random_class(const LoadedModel& model) {
  PromptClass c{.name = "random", .prompts = {}};
  for (unsigned i = 0; i < 8; ++i) {
    std::vector<TokenId> ids;
    for (unsigned j = 0; j < 48; ++j) {
      ids.push_back(TokenId((i * 7919u + j * 104729u) % unsigned(model.config.vocab_size)));
    }
    c.prompts.push_back(std::move(ids));
  }
  return c;
}

// One answer: its tokens, and the time after the first of them.
struct Run {
  std::vector<TokenId> tokens;
  RequestStats stats;
};

Result<Run> run_one(Engine& engine, const std::vector<TokenId>& prompt, const Flags& flags) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = flags.max_tokens;
  request.sampling.temperature = float(flags.temperature.value_or(0));
  TD_ASSIGN_OR_RETURN(const int number, engine.submit(std::move(request)));
  Run run;
  std::string error;
  engine.run([&](const Event& event) {
    if (event.token) run.tokens.push_back(*event.token);
    if (event.error != nullptr) error = *event.error;
  });
  if (!error.empty()) return Error{error};
  run.stats = engine.stats(number);
  return run;
}

// Prompts of a class on two engines that take turns.
Result<Json> compare(Engine& plain, Engine& drafting, const PromptClass& c, const Flags& flags, Json row) {
  double plain_s = 0, drafting_s = 0;
  int64_t n_tokens = 0;
  SpeculationStats all;
  bool identical = true, simulated = false;
  for (const std::vector<TokenId>& prompt : c.prompts) {
    std::vector<double> of_plain, of_drafting;
    for (int round = -1; round < flags.common.rounds; ++round) {
      Run runs[2];
      for (int turn = 0; turn < 2; ++turn) {
        const int which = (turn + round) & 1;
        TD_ASSIGN_OR_RETURN(runs[which], run_one(which == 0 ? plain : drafting, prompt, flags));
      }
      identical = identical && runs[0].tokens == runs[1].tokens;
      if (round < 0) continue;  // warms up, and teaches the length control
      of_plain.push_back(runs[0].stats.decode_s);
      of_drafting.push_back(runs[1].stats.decode_s);
      const SpeculationStats& s = runs[1].stats.speculation;
      simulated = s.simulated;
      all.add(s);
      if (round == 0) n_tokens += int64_t(runs[1].tokens.size()) - 1;
    }
    plain_s += median(of_plain);
    drafting_s += median(of_drafting);
  }
  const double total_s = all.draft_s + all.verify_s + all.other_s;
  row["prompt_class"] = c.name;
  row["tokens_per_s"] = drafting_s > 0 ? double(n_tokens) / drafting_s : 0;
  row["plain_tokens_per_s"] = plain_s > 0 ? double(n_tokens) / plain_s : 0;
  row["speed_up"] = drafting_s > 0 ? plain_s / drafting_s : 0;
  row["tokens_per_round"] = all.tokens_per_round();
  row["efficiency"] = all.tokens > 0 && drafting_s > 0 ? plain_s / drafting_s / all.tokens_per_round() : 0;
  row["accepted_share"] = all.drafted > 0 ? double(all.accepted) / all.drafted : 0;
  row["draft_share"] = total_s > 0 ? all.draft_s / total_s : 0;
  row["other_share"] = total_s > 0 ? all.other_s / total_s : 0;
  row["identical"] = simulated ? Json("simulated") : Json(identical);
  return row;
}

Result<std::vector<Json>> bench(const Flags& flags) {
  std::vector<Json> rows;
  for (const std::string& name : flags.common.models) {
    for (const int threads : flags.common.thread_counts()) {
      TD_ASSIGN_OR_RETURN(LoadedModel model,
                          load(flags.common, kCommand, name, threads, {.max_logit_rows = kMaxDecodeRows}));
      std::vector<PromptClass> classes;
      for (const std::string& path : flags.prompts) {
        TD_ASSIGN_OR_RETURN(PromptClass c, read_class(path, model));
        classes.push_back(std::move(c));
      }
      if (classes.empty()) classes.push_back(random_class(model));
      EngineOptions options{.max_sequences = 1, .n_text_tokens = model.n_text_tokens()};
      for (const PromptClass& c : classes) {
        for (const auto& prompt : c.prompts) {
          options.max_positions = std::max(options.max_positions, int(prompt.size()) + flags.max_tokens);
        }
      }
      TD_RETURN_IF_ERROR(check_context(model, options.max_positions));
      TD_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> plain, Engine::create(*model.decoder, options));
      for (const std::string& drafter_name : flags.drafters) {
        SpeculationFlags speculation = flags.speculation;
        speculation.drafter = drafter_name;
        TD_ASSIGN_OR_RETURN(const SpeculationFlags::Drafters drafters,
                            speculation.load(model, {.max_positions = options.max_positions}));
        EngineOptions with = options;
        speculation.apply(drafters, with);
        TD_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> drafting, Engine::create(*model.decoder, with));
        for (const PromptClass& c : classes) {
          Json row = row_of("speculate", model.name, *model.backend);
          row["drafter"] = drafter_name;
          row["draft_length"] = speculation.length;
          TD_ASSIGN_OR_RETURN(row, compare(*plain, *drafting, c, flags, std::move(row)));
          rows.push_back(std::move(row));
        }
      }
    }
  }
  return rows;
}

}  // namespace

int run_speculate(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  const Result<std::vector<Json>> rows = bench(flags);
  const int code = report(flags.common, kCommand, rows);
  if (!rows.ok()) return code;
  const bool lossy = (flags.speculation.accept != "coupled" && flags.temperature.value_or(0) > 0) ||
                     flags.common.backend.delta != "exact";
  for (const Json& row : *rows) {
    if (row["identical"] == false && !lossy) {
      return fail(kCommand,
                  fmt::format("drafter {}, class {}: the tokens differ from those of plain decoding",
                              row["drafter"].get<std::string>(), row["prompt_class"].get<std::string>()));
    }
  }
  return code;
}

}  // namespace tandem::bench
