// tandem bench prefill: prompt tokens per second; on a CPU against a vendor library's matrix product of the
// same shapes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <tuple>

#include "base/check.h"
#include "cli/bench/bench.h"
#include "cli/bench/gemm.h"

namespace tandem::bench {
namespace {

constexpr const char* kCommand = "bench prefill";

constexpr const char* kExamples =
    "tandem bench prefill --model synth:qwen3.5-0.8b@8 --threads 2\n"
    "tandem bench prefill --model DIR --tokens 512,2048 --json\n"
    "tandem bench prefill --model synth:qwen3.5-27b@8 --backend cuda --tokens 512,4096";

// The rival's threads spin for a moment after their work: nothing else may be timed meanwhile.
constexpr auto kSettle = std::chrono::milliseconds(20);

struct Flags {
  BenchFlags common;
  std::vector<int> tokens{512};
  int chunk = 512;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(
      kCommand,
      "Times the prompt. gflop_per_s: multiply-adds of the model's matrices per second (all but the "
      "head). share_of_gemm, on a CPU: that over what oneDNN's bf16 product of the same shapes reaches "
      "in turns with it; its int8 product stands beside.",
      kExamples);
  flags.common.add_model(options);
  options.add("--tokens", &flags.tokens, "N,M", "Length of the prompt [512]", {.min = 1});
  options.add("--prefill-chunk", &flags.chunk, "N", "Prompt tokens per step, a multiple of 64 [512]",
              {.min = kChunkTokens, .max = 65536});
  flags.common.add_to(options, 7);
  if (const auto code = options.parse(args)) return code;
  if (flags.chunk % kChunkTokens != 0) {
    return misuse(kCommand, fmt::format("--prefill-chunk: expected a multiple of {}, found {}", kChunkTokens,
                                        flags.chunk));
  }
  return std::nullopt;
}

class PrefillTest {
 public:
  static Result<std::unique_ptr<PrefillTest>> create(LoadedModel& model, int tokens) {
    TD_RETURN_IF_ERROR(check_context(model, tokens));
    TD_ASSIGN_OR_RETURN(StatePool pool,
                        StatePool::create(*model.backend, model.decoder->state_shape(),
                                          {.max_sequences = 1, .max_positions = tokens, .tape_rows = 1}));
    return std::unique_ptr<PrefillTest>(new PrefillTest(model, tokens, std::move(pool)));
  }

  // Seconds from the first token to the logits of the last.
  Result<double> measure() {
    TD_ASSIGN_OR_RETURN(SequenceState sequence, SequenceState::create(pool_));
    Decoder& decoder = *model_.decoder;
    return time_of([&] {
      const int total = int(ids_.size()), chunk = decoder.limits().max_rows;
      int rows = 0;
      for (int first = 0; first < total; first += rows) {
        rows = std::min(chunk, total - first);
        const Status status = sequence.begin_prefill(rows);
        TD_CHECK(status.ok(), "%s", status.error().message.c_str());
        const SeqStep seq = sequence.rows(0);
        decoder.forward({.path = Path::prefill, .n_rows = rows, .seqs = std::span(&seq, 1)},
                        std::span(ids_).subspan(size_t(first), size_t(rows)), pool_);
        sequence.end_prefill();
      }
      decoder.logits(rows - 1, 1);
    });
  }

 private:
  PrefillTest(LoadedModel& model, int tokens, StatePool pool) : model_(model), pool_(std::move(pool)) {
    for (unsigned i = 0; i < unsigned(tokens); ++i) {
      ids_.push_back(TokenId(i * 7919u % unsigned(model.config.vocab_size)));
    }
  }

  LoadedModel& model_;
  StatePool pool_;
  std::vector<TokenId> ids_;
};

// The library's time for one step of `rows` rows through all matrices but the head: each distinct shape is
// timed, and counted as often as the model has it.
class Rival {
 public:
  static Result<std::unique_ptr<Rival>> create(GemmType type, const LoadedModel& model, int rows) {
    auto rival = std::make_unique<Rival>();
    std::vector<const Weight*> matrices = model.decoder->matrices();
    matrices.pop_back();  // the head
    std::map<std::tuple<int, int, int>, double> uses;
    for (const Weight* w : matrices) {
      // Rows spread evenly over the experts that they choose.
      const int m =
          w->n_experts() == 1 ? rows : std::max(1, rows * model.decoder->shape().moe_top_k / w->n_experts());
      uses[{m, w->n(), w->k()}] += w->n_experts();
    }
    for (const auto& [shape, n] : uses) {
      const auto [m, out, in] = shape;
      TD_ASSIGN_OR_RETURN(std::unique_ptr<Gemm> gemm, Gemm::create(type, m, out, in));
      rival->products_.push_back({std::move(gemm), n});
      rival->flop_ += 2.0 * m * out * in * n;
    }
    return rival;
  }

  // GFLOP/s of one pass, each product the better of two.
  double gflop_per_s(int threads) {
    double seconds = 0;
    for (const Product& p : products_) {
      p.gemm->run(threads);
      const double first = time_of([&] { p.gemm->run(threads); });
      const double second = time_of([&] { p.gemm->run(threads); });
      seconds += std::min(first, second) * p.uses;
    }
    std::this_thread::sleep_for(kSettle);
    return flop_ / seconds / 1e9;
  }

 private:
  struct Product {
    std::unique_ptr<Gemm> gemm;
    double uses;
  };
  std::vector<Product> products_;
  double flop_ = 0;
};

Result<Json> bench_length(const Flags& flags, LoadedModel& model, int tokens) {
  struct Contest {
    GemmType type;
    const char* speed;
    const char* share;
    std::unique_ptr<Rival> rival = nullptr;
    std::vector<double> gflop_per_s = {};
  };
  std::vector<Contest> contests;
  if (model.backend->memory_is_host()) {
    contests.push_back({GemmType::bf16, "gemm_gflop_per_s", "share_of_gemm"});
    contests.push_back({GemmType::int8, "gemm_int8_gflop_per_s", "share_of_int8"});
  }
  const int rows = std::min(tokens, flags.chunk), threads = model.backend->threads();
  TD_ASSIGN_OR_RETURN(const std::unique_ptr<PrefillTest> test, PrefillTest::create(model, tokens));
  for (Contest& c : contests) {
    TD_ASSIGN_OR_RETURN(c.rival, Rival::create(c.type, model, rows));
  }
  std::vector<double> seconds;
  TD_RETURN_IF_ERROR(test->measure());  // warms up
  for (int round = 0; round < flags.common.rounds; ++round) {
    TD_ASSIGN_OR_RETURN(const double s, test->measure());
    seconds.push_back(s);
    for (Contest& c : contests) c.gflop_per_s.push_back(c.rival->gflop_per_s(threads));
  }
  Json row = row_of("prefill", model.name, *model.backend);
  const double s = median(seconds), gflop = 2 * model.decoder->macs_per_row() * tokens / s / 1e9;
  row["tokens"] = tokens;
  row["tokens_per_s"] = tokens / s;
  row["gflop_per_s"] = gflop;
  for (const Contest& c : contests) {
    row[c.speed] = median(c.gflop_per_s);
    row[c.share] = gflop / median(c.gflop_per_s);
  }
  return row;
}

Result<std::vector<Json>> bench(const Flags& flags) {
  std::vector<Json> rows;
  for (const std::string& name : flags.common.models) {
    for (const int threads : flags.common.thread_counts()) {
      TD_ASSIGN_OR_RETURN(LoadedModel model, load(flags.common, kCommand, name, threads,
                                                  {.max_rows = flags.chunk, .max_logit_rows = 1}));
      for (const int tokens : flags.tokens) {
        TD_ASSIGN_OR_RETURN(Json row, bench_length(flags, model, tokens));
        rows.push_back(std::move(row));
      }
    }
  }
  return rows;
}

}  // namespace

int run_prefill(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  return report(flags.common, kCommand, bench(flags));
}

}  // namespace tandem::bench
