#include "cli/inspect_mtp.h"

#include <fmt/format.h>

#include <filesystem>

#include "cli/interrupt.h"
#include "cli/prompts.h"
#include "engine/mtp_probe.h"

namespace tandem {
namespace {

constexpr int kTokens = 64;  // of each answer

// Code, prose, lists, data: what people ask for.
constexpr const char* kPrompts[] = {
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "import os\nimport sys\n\ndef main():\n    ",
    "for (int i = 0; i < n; i++) {\n    sum += ",
    "SELECT name, COUNT(*) FROM orders WHERE ",
    "def test_sort():\n    assert sort([3, 1, 2]) == [1, 2, 3]\n    assert ",
    "public static void main(String[] args) {\n    System.out.println(",
    "#include <stdio.h>\n\nint main(void) {\n    ",
    "{\"name\": \"Anna\", \"age\": 31, \"city\": \"Paris\"}\n{\"name\": ",
    "<ul>\n  <li>Apples</li>\n  <li>",
    "The capital of France is Paris. The capital of Italy is",
    "Once upon a time there was a little girl who lived in a village near the forest.",
    "Water boils at 100 degrees Celsius because",
    "To make a cup of tea, first",
    "Question: What is 12 times 7?\nAnswer:",
    "The three most important things to know about machine learning are:\n1.",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, the first people landed on the Moon.",
    "Summary: The report describes how",
    "# Getting started\n\nInstall the package with",
};

const char* side(bool after_norm) { return after_norm ? "post_norm" : "pre_norm"; }

Json to_json(const MtpOptions& options) {
  return {{"input", side(options.input_after_norm)}, {"chain", side(options.chain_after_norm)}};
}

Result<std::vector<std::vector<TokenId>>> own_prompts(const LoadedModel& model) {
  if (!model.tokenizer) {
    return Error{model.name +
                 ": no tokenizer.json to read our prompts with: give --prompts FILE with prompt_tokens"};
  }
  std::vector<std::vector<TokenId>> prompts;
  for (const char* text : kPrompts) {
    TD_ASSIGN_OR_RETURN(std::vector<TokenId> ids, model.tokenizer->encode(text, SpecialTokens::recognise));
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

}  // namespace

Result<MtpProbeReport> report_mtp_probe(const ModelFlags& flags, const std::string& prompts) {
  TD_ASSIGN_OR_RETURN(LoadedModel model, flags.load("inspect", kMaxDecodeRows));
  TD_ASSIGN_OR_RETURN(const std::vector<std::vector<TokenId>> ids,
                      prompts.empty() ? own_prompts(model) : read_prompts(prompts, model));
  watch_interrupt();
  TD_ASSIGN_OR_RETURN(const MtpProbe probe, probe_mtp(model, ids, kTokens, interrupted));
  MtpProbeReport report;
  report.json["prompts"] = ids.size();
  report.text =
      fmt::format("MTP probe      {} prompts, drafts of {}; accepted, of those judged at a place:\n",
                  ids.size(), MtpTrial::kDraft);
  report.text += "                   input      chain      1st    2nd    3rd   per draft\n";
  for (const MtpTrial& trial : probe.trials) {
    Json row = to_json(trial.options);
    row["rounds"] = trial.rounds;
    std::string shares;
    for (int i = 0; i < MtpTrial::kDraft; ++i) {
      row["acceptance"].push_back(trial.acceptance(i));
      shares += fmt::format("{:5.1f}% ", 100 * trial.acceptance(i));
    }
    row["accepted_per_round"] = trial.accepted_per_round();
    report.json["trials"].push_back(std::move(row));
    report.text +=
        fmt::format("                   {:<10} {:<9} {} {:7.2f}\n", side(trial.options.input_after_norm),
                    side(trial.options.chain_after_norm), shares, trial.accepted_per_round());
  }
  const Json best = to_json(probe.trials[size_t(probe.best)].options);
  report.json["best"] = best;
  report.json["current"] = to_json(probe.trials[0].options);
  report.text +=
      probe.best == 0
          ? "               keep the first, which runs now: no other is better beyond chance\n"
          : fmt::format("               better than what runs now: put \"tandem_mtp\": {} into {}\n",
                        best.dump(), (std::filesystem::path(flags.model) / "config.json").string());
  return report;
}

}  // namespace tandem
