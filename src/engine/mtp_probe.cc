#include "engine/mtp_probe.h"

#include <algorithm>
#include <cmath>

#include "engine/engine.h"
#include "engine/load_drafter.h"

namespace tandem {
namespace {

Status run_prompt(Engine& engine, const LoadedModel& model, const std::vector<TokenId>& prompt, int n_tokens,
                  const std::function<bool()>& stop, MtpTrial& trial) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = n_tokens;
  request.sampling.stop_ids = model.stop_ids;
  TD_ASSIGN_OR_RETURN(const int number, engine.submit(std::move(request)));
  std::string error;
  while (!engine.idle()) {
    if (stop && stop()) return Error{"interrupted"};
    engine.step([&](const Event& event) {
      if (event.error != nullptr) error = *event.error;
    });
  }
  if (!error.empty()) return Error{error};
  const SpeculationStats& stats = engine.stats(number).speculation;
  trial.rounds += stats.judged_at[0];
  for (size_t i = 0; i < MtpTrial::kDraft; ++i) {
    trial.judged[i] += stats.judged_at[i];
    trial.accepted[i] += stats.accepted_at[i];
  }
  return {};
}

}  // namespace

double MtpTrial::acceptance(int position) const {
  const auto i = size_t(position);
  return judged[i] > 0 ? double(accepted[i]) / judged[i] : 0;
}

double MtpTrial::accepted_per_round() const {
  int all = 0;
  for (const int n : accepted) all += n;
  return rounds > 0 ? double(all) / rounds : 0;
}

// accepted[i] counts the rounds in which more than i tokens n were accepted, so that the sum of
// (2 i + 1) accepted[i] is the sum of n^2.
double MtpTrial::variance() const {
  if (rounds < 2) return INFINITY;
  double squares = 0;
  for (size_t i = 0; i < kDraft; ++i) squares += double(2 * i + 1) * accepted[i];
  const double mean = accepted_per_round();
  return (squares / rounds - mean * mean) / (rounds - 1);
}

int best_trial(std::span<const MtpTrial> trials) {
  int best = 0;
  for (int i = 1; i < int(trials.size()); ++i) {
    const MtpTrial& trial = trials[size_t(i)];
    const double lead = trial.accepted_per_round() - trials[0].accepted_per_round();
    const bool certain = lead > 2 * std::sqrt(trial.variance() + trials[0].variance());
    if (certain && trial.accepted_per_round() > trials[size_t(best)].accepted_per_round()) best = i;
  }
  return best;
}

Result<MtpProbe> probe_mtp(LoadedModel& model, std::span<const std::vector<TokenId>> prompts, int n_tokens,
                           const std::function<bool()>& stop) {
  int longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, int(prompt.size()));
  const int positions = std::min(longest + n_tokens, model.config.context);
  MtpProbe probe;
  for (int i = 0; i < 4; ++i) {  // each side of each norm, the current ones first
    const MtpOptions& now = model.config.mtp;
    MtpTrial trial{.options = {.input_after_norm = now.input_after_norm != (i >= 2),
                               .chain_after_norm = now.chain_after_norm != (i % 2 == 1)}};
    TD_ASSIGN_OR_RETURN(const std::unique_ptr<Drafter> drafter,
                        load_drafter(model, {.name = "mtp",
                                             .folder = {},
                                             .bits = 0,
                                             .limits = {.max_positions = positions},
                                             .mtp = trial.options}));
    TD_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                        Engine::create(*model.decoder, {.max_positions = positions,
                                                        .n_text_tokens = model.n_text_tokens(),
                                                        .drafters = {drafter.get()},
                                                        .length = {.kind = LengthOptions::Kind::fixed,
                                                                   .fixed = MtpTrial::kDraft}}));
    for (const auto& prompt : prompts) {
      TD_RETURN_IF_ERROR(run_prompt(*engine, model, prompt, n_tokens, stop, trial));
    }
    probe.trials.push_back(trial);
  }
  probe.best = best_trial(probe.trials);
  return probe;
}

}  // namespace tandem
