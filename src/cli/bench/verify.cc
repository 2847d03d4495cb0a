// tandem bench verify: what a step of several rows of one sequence costs, in steps of one row. This curve
// decides how far a drafter may run ahead.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/check.h"
#include "cli/bench/bench.h"

namespace tandem::bench {
namespace {

constexpr const char* kCommand = "bench verify";

constexpr const char* kExamples =
    "tandem bench verify --model synth:qwen3.5-0.8b@8 --threads 1,2\n"
    "tandem bench verify --model DIR --rows 1,4,8,16 --context 1024 --json";

struct Flags {
  BenchFlags common;
  std::vector<int> rows{1, 2, 4, 8, 16, 32};
  int context = 128;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(
      kCommand,
      "Times steps of 1 to 32 rows of one sequence with the logits of all rows, each after a step as "
      "long that was kept whole. Row counts take turns, so that drift of the machine cancels.",
      kExamples);
  flags.common.add_model(options);
  options.add("--rows", &flags.rows, "1,2,4", "Rows per step [1,2,4,8,16,32]",
              {.min = 1, .max = kMaxDecodeRows});
  options.add("--context", &flags.context, "N", "Positions behind the sequence [128]", {.min = 0});
  flags.common.add_to(options, 15);
  return options.parse(args);
}

class VerifyTest {
 public:
  static Result<std::unique_ptr<VerifyTest>> create(LoadedModel& model, int context) {
    const int positions = context + 2 * kMaxDecodeRows;
    TD_RETURN_IF_ERROR(check_context(model, positions));
    TD_ASSIGN_OR_RETURN(
        StatePool pool,
        StatePool::create(*model.backend, model.decoder->state_shape(),
                          {.max_sequences = 1, .max_positions = positions, .tape_rows = kMaxDecodeRows}));
    return std::unique_ptr<VerifyTest>(new VerifyTest(model, context, std::move(pool)));
  }

  // Seconds of a step of n rows that also folds the n rows of the step before.
  Result<double> measure(int n) {
    TD_ASSIGN_OR_RETURN(SequenceState sequence, sequence_at(pool_, *model_.backend, context_));
    step(sequence, n);
    return time_of([&] { step(sequence, n); });
  }

 private:
  VerifyTest(LoadedModel& model, int context, StatePool pool)
      : model_(model), context_(context), pool_(std::move(pool)) {
    for (unsigned i = 0; i < unsigned(kMaxDecodeRows); ++i) {
      ids_.push_back(TokenId(i * 7919u % unsigned(model.config.vocab_size)));
    }
  }

  void step(SequenceState& sequence, int n) {
    const Status status = sequence.begin_verify(n);
    TD_CHECK(status.ok(), "%s", status.error().message.c_str());
    const SeqStep seq = sequence.rows(0);
    model_.decoder->forward_with_head({.path = Path::decode, .n_rows = n, .seqs = std::span(&seq, 1)},
                                      std::span(ids_).first(size_t(n)), pool_,
                                      {Choose::greedy, model_.config.vocab_size});
    model_.decoder->choice(0);  // waits for the step
    sequence.commit(n);
  }

  LoadedModel& model_;
  const int context_;
  StatePool pool_;
  std::vector<TokenId> ids_;
};

Result<std::vector<Json>> bench(const Flags& flags) {
  std::vector<Json> rows;
  for (const std::string& name : flags.common.models) {
    for (const int threads : flags.common.thread_counts()) {
      TD_ASSIGN_OR_RETURN(LoadedModel model,
                          load(flags.common, kCommand, name, threads,
                               {.max_rows = kChunkTokens, .max_logit_rows = kMaxDecodeRows}));
      TD_ASSIGN_OR_RETURN(const std::unique_ptr<VerifyTest> test, VerifyTest::create(model, flags.context));
      std::map<int, std::vector<double>> seconds;
      seconds[1] = {};  // the unit, asked for or not
      for (const int n : flags.rows) seconds[n] = {};
      for (int round = -1; round < flags.common.rounds; ++round) {
        for (auto& [n, of_n] : seconds) {
          TD_ASSIGN_OR_RETURN(const double s, test->measure(n));
          if (round >= 0) of_n.push_back(s);  // the first turn warms up
        }
      }
      for (const int n : flags.rows) {
        Json row = row_of("verify", model.name, *model.backend);
        row["context"] = flags.context;
        row["rows"] = n;
        row["ms"] = median(seconds[n]) * 1e3;
        row["ratio_to_1"] = median(seconds[n]) / median(seconds[1]);
        row["ms_p10"] = percentile(seconds[n], 0.1) * 1e3;
        row["ms_p90"] = percentile(seconds[n], 0.9) * 1e3;
        rows.push_back(std::move(row));
      }
    }
  }
  return rows;
}

}  // namespace

int run_verify(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  return report(flags.common, kCommand, bench(flags));
}

}  // namespace tandem::bench
