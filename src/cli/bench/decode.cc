// tandem bench decode: time of a decode step against the bandwidth that its bytes need.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "cli/bench/bandwidth_test.h"
#include "cli/bench/bench.h"
#include "cli/bench/busy.h"

namespace tandem::bench {
namespace {

constexpr const char* kCommand = "bench decode";

constexpr const char* kExamples =
    "tandem bench decode --model synth:qwen3.5-0.8b@8 --threads 1,2\n"
    "tandem bench decode --model DIR --batch 1,8 --context 128,4096 --json\n"
    "tandem bench decode --model synth:qwen3.5-0.8b@8 --busy 1 --ledger bench/ledger/decode.jsonl";

constexpr double kRoundSeconds = 0.15;
constexpr int kMaxStepsPerRound = 64;

struct Flags {
  BenchFlags common;
  std::vector<int> batch{1}, context{128};
  int busy = 0;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(kCommand,
                  "Times decode steps. share_of_read: bytes of a step (weights, recurrent state read and "
                  "written, keys and values) per second, over the read bandwidth measured in turns with the "
                  "steps, with as many threads.",
                  kExamples);
  flags.common.add_model(options);
  options.add("--batch", &flags.batch, "1,8", "Sequences per step [1]", {.min = 1, .max = 512});
  options.add("--context", &flags.context, "N,M", "Positions behind each sequence [128]", {.min = 0});
  options.add("--busy", &flags.busy, "N", "Time a second time beside N foreign spinning processes [0]",
              {.min = 0, .max = 1024});
  flags.common.add_to(options, 12);
  return options.parse(args);
}

// Steps of `batch` sequences that stand at `context`.
class DecodeTest {
 public:
  static Result<std::unique_ptr<DecodeTest>> create(LoadedModel& model, int batch, int context) {
    const int positions = context + kMaxStepsPerRound + 1;
    TD_RETURN_IF_ERROR(check_context(model, positions));
    TD_ASSIGN_OR_RETURN(
        StatePool pool,
        StatePool::create(*model.backend, model.decoder->state_shape(),
                          {.max_sequences = batch, .max_positions = positions * batch, .tape_rows = 1}));
    std::unique_ptr<DecodeTest> test(new DecodeTest(model, batch, context, std::move(pool)));
    TD_RETURN_IF_ERROR(test->rewind());
    const double first = test->step(), second = test->step();
    test->steps_per_round_ =
        std::clamp(int(std::ceil(kRoundSeconds / std::min(first, second))), 2, kMaxStepsPerRound);
    return test;
  }

  // Seconds of each step of a round.
  Result<std::vector<double>> round() {
    TD_RETURN_IF_ERROR(rewind());
    step();  // the first step after a rewind has no tape to fold
    std::vector<double> seconds;
    for (int i = 0; i < steps_per_round_; ++i) seconds.push_back(step());
    return seconds;
  }

  double bytes_per_step() const {
    const double position = context_ + 1 + steps_per_round_ / 2.0;
    return double(model_.decoder->weight_bytes(batch_)) +
           batch_ * (double(pool_.recurrent_bytes()) + position * double(pool_.kv_bytes_per_position()));
  }

 private:
  DecodeTest(LoadedModel& model, int batch, int context, StatePool pool)
      : model_(model), batch_(batch), context_(context), pool_(std::move(pool)) {
    ids_.resize(size_t(batch));
  }

  Status rewind() {
    sequences_.clear();
    for (int i = 0; i < batch_; ++i) {
      TD_ASSIGN_OR_RETURN(SequenceState sequence, sequence_at(pool_, *model_.backend, context_));
      sequences_.push_back(std::move(sequence));
    }
    return {};
  }

  double step() {
    Decoder& decoder = *model_.decoder;
    return time_of([&] {
      steps_.clear();
      for (int i = 0; i < batch_; ++i) {
        const Status status = sequences_[size_t(i)].begin_verify(1);
        TD_CHECK(status.ok(), "%s", status.error().message.c_str());
        steps_.push_back(sequences_[size_t(i)].rows(i));
        ids_[size_t(i)] = TokenId((++token_ * 7919u + unsigned(i)) % unsigned(model_.config.vocab_size));
      }
      // As a greedy round of the engine does.
      const int most = decoder.limits().max_logit_rows;
      const RowChoice choice{Choose::greedy, decoder.shape().n_vocab};
      decoder.forward_with_head({.path = Path::decode, .n_rows = batch_, .seqs = steps_}, ids_, pool_,
                                choice);
      for (int first = 0; first < batch_; first += most) {
        if (first > 0) decoder.head(first, std::min(most, batch_ - first), choice);
        decoder.choice(first);
      }
      for (SequenceState& sequence : sequences_) sequence.commit(1);
    });
  }

  LoadedModel& model_;
  const int batch_, context_;
  StatePool pool_;
  std::vector<SequenceState> sequences_;
  std::vector<SeqStep> steps_;
  std::vector<TokenId> ids_;
  unsigned token_ = 0;
  int steps_per_round_ = 2;
};

struct Timing {
  std::vector<double> rounds;  // median step of each round
  std::vector<double> steps;
  Status add(DecodeTest& test) {
    TD_ASSIGN_OR_RETURN(const std::vector<double> seconds, test.round());
    rounds.push_back(median(seconds));
    steps.insert(steps.end(), seconds.begin(), seconds.end());
    return {};
  }
};

Json row(const LoadedModel& model, const DecodeTest& test, const Timing& timing, int batch, int context,
         double read) {
  Json out = row_of("decode", model.name, *model.backend);
  const double seconds = median(timing.rounds), bytes = test.bytes_per_step();
  out["batch"] = batch;
  out["context"] = context;
  out["ms_per_step"] = seconds * 1e3;
  out["tokens_per_s"] = batch / seconds;
  out["bytes_per_step"] = uint64_t(bytes);
  out["gb_per_s"] = bytes / seconds / 1e9;
  out["read_gb_per_s"] = read;
  out["share_of_read"] = bytes / seconds / 1e9 / read;
  out["ms_p10"] = percentile(timing.steps, 0.1) * 1e3;
  out["ms_p90"] = percentile(timing.steps, 0.9) * 1e3;
  return out;
}

Status bench_shape(const Flags& flags, LoadedModel& model, BandwidthTest* host, int batch, int context,
                   std::vector<Json>& rows) {
  TD_ASSIGN_OR_RETURN(const std::unique_ptr<DecodeTest> test, DecodeTest::create(model, batch, context));
  Timing quiet, busy;
  std::vector<double> read;
  for (int round = 0; round < flags.common.rounds; ++round) {
    read.push_back(host != nullptr ? host->read_gb_per_s(2) : model.backend->read_gb_per_s());
    TD_RETURN_IF_ERROR(quiet.add(*test));
    if (flags.busy > 0) {
      TD_ASSIGN_OR_RETURN(const BusyProcesses processes, BusyProcesses::start(flags.busy));
      TD_RETURN_IF_ERROR(busy.add(*test));
    }
  }
  const double read_gb_per_s = median(read);
  rows.push_back(row(model, *test, quiet, batch, context, read_gb_per_s));
  if (flags.busy > 0) {
    rows.back()["busy"] = 0;
    rows.back()["slowdown"] = 1.0;
    rows.push_back(row(model, *test, busy, batch, context, read_gb_per_s));
    rows.back()["busy"] = flags.busy;
    rows.back()["slowdown"] = median(busy.rounds) / median(quiet.rounds);
  }
  return {};
}

Result<std::vector<Json>> bench(const Flags& flags) {
  std::vector<Json> rows;
  const int most = *std::max_element(flags.batch.begin(), flags.batch.end());
  for (const std::string& name : flags.common.models) {
    for (const int threads : flags.common.thread_counts()) {
      TD_ASSIGN_OR_RETURN(LoadedModel model, load(flags.common, kCommand, name, threads,
                                                  {.max_rows = std::max(most, kChunkTokens),
                                                   .max_logit_rows = std::min(most, 32)}));
      std::unique_ptr<BandwidthTest> host;  // where weights lie in host memory
      if (model.backend->memory_is_host()) {
        TD_ASSIGN_OR_RETURN(host, BandwidthTest::create(model.backend->threads()));
      }
      for (const int batch : flags.batch) {
        for (const int context : flags.context) {
          TD_RETURN_IF_ERROR(bench_shape(flags, model, host.get(), batch, context, rows));
        }
      }
    }
  }
  return rows;
}

}  // namespace

int run_decode(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  return report(flags.common, kCommand, bench(flags));
}

}  // namespace tandem::bench
