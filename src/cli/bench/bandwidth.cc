// tandem bench bandwidth: what reading and copying memory reaches on this machine, the limit of decoding.
#include <memory>

#include "cli/bench/bandwidth_test.h"
#include "cli/bench/bench.h"
#include "cli/machine.h"

namespace tandem::bench {
namespace {

constexpr const char* kCommand = "bench bandwidth";

constexpr const char* kExamples =
    "tandem bench bandwidth --threads 1,2\n"
    "tandem bench bandwidth --json";

Result<std::vector<Json>> bench(const BenchFlags& flags) {
  std::vector<Json> rows;
  for (const int wanted : flags.thread_counts()) {
    const int threads = wanted > 0 ? wanted : usable_cores();
    TD_ASSIGN_OR_RETURN(const std::unique_ptr<BandwidthTest> test, BandwidthTest::create(threads));
    std::vector<double> read, copy;
    for (int round = 0; round < flags.rounds; ++round) {
      read.push_back(test->read_gb_per_s(2));
      copy.push_back(test->copy_gb_per_s(2));
    }
    Json row = row_of("bandwidth", "none", "host", threads);
    row["read_gb_per_s"] = median(read);
    row["copy_gb_per_s"] = median(copy);
    row["read_best_gb_per_s"] = percentile(read, 1);
    row["copy_best_gb_per_s"] = percentile(copy, 1);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

int run_bandwidth(Arguments args) {
  BenchFlags flags;
  Options options(kCommand,
                  "Reads and copies 512 MB with a team of threads. Copy counts bytes read and bytes written.",
                  kExamples);
  flags.add_to(options, 10);
  if (const auto code = options.parse(args)) return *code;
  const Result<std::vector<Json>> rows = bench(flags);
  if (!rows.ok()) return fail(kCommand, rows.error().message);
  return report(flags, kCommand, *rows);
}

}  // namespace tandem::bench
