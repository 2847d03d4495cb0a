// tandem bench bandwidth: what reading and copying memory reaches on this machine, the limit of decoding.
#include <functional>
#include <memory>

#include "backend/registry.h"
#include "cli/bench/bandwidth_test.h"
#include "cli/bench/bench.h"
#include "cli/machine.h"

namespace tandem::bench {
namespace {

constexpr const char* kCommand = "bench bandwidth";

constexpr const char* kExamples =
    "tandem bench bandwidth --threads 1,2\n"
    "tandem bench bandwidth --backend auto --json";

// `row` with what `read` and `copy` reach in turns, in GB/s.
Json measured(Json row, int rounds, const std::function<double()>& read_gb_per_s,
              const std::function<double()>& copy_gb_per_s) {
  std::vector<double> read, copy;
  for (int round = 0; round < rounds; ++round) {
    read.push_back(read_gb_per_s());
    copy.push_back(copy_gb_per_s());
  }
  row["read_gb_per_s"] = median(read);
  row["copy_gb_per_s"] = median(copy);
  row["read_best_gb_per_s"] = percentile(read, 1);
  row["copy_best_gb_per_s"] = percentile(copy, 1);
  return row;
}

Result<std::vector<Json>> bench_host(const BenchFlags& flags) {
  std::vector<Json> rows;
  for (const int wanted : flags.thread_counts()) {
    const int threads = wanted > 0 ? wanted : usable_cores();
    TD_ASSIGN_OR_RETURN(const std::unique_ptr<BandwidthTest> test, BandwidthTest::create(threads));
    rows.push_back(measured(
        row_of("bandwidth", "none", "host", threads), flags.rounds, [&] { return test->read_gb_per_s(2); },
        [&] { return test->copy_gb_per_s(2); }));
  }
  return rows;
}

Result<std::vector<Json>> bench(const BenchFlags& flags) {
  if (flags.backend.name == "cpu") return bench_host(flags);
  TD_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, make_backend(flags.backend));
  if (backend->memory_is_host()) return bench_host(flags);
  return std::vector<Json>{measured(
      row_of("bandwidth", "none", *backend), flags.rounds, [&] { return backend->read_gb_per_s(); },
      [&] { return backend->copy_gb_per_s(); })};
}

}  // namespace

int run_bandwidth(Arguments args) {
  BenchFlags flags;
  Options options(kCommand,
                  "Reads and copies 512 MB of the host's memory with a team of threads, or 1 GB of a card's. "
                  "Copy counts bytes read and bytes written.",
                  kExamples);
  std::vector<std::string> names = backend_names();
  names.insert(names.begin(), "auto");
  flags.backend.name = "cpu";
  options.add("--backend", &flags.backend.name, "NAME",
              "Whose memory: that of auto, reference, cpu or (where built in) cuda [cpu]",
              {.choices = names});
  flags.add_to(options, 10);
  if (const auto code = options.parse(args)) return *code;
  return report(flags, kCommand, bench(flags));
}

}  // namespace tandem::bench
