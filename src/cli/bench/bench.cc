// The table of benchmarks.
#include "cli/bench/bench.h"

#include <fmt/format.h>

#include "cli/output.h"

namespace tandem {
namespace {

struct Entry {
  const char* name;
  const char* about;
  int (*run)(Arguments);
};

constexpr Entry kBenches[] = {
    {"decode", "a decode step against the memory bandwidth", bench::run_decode},
    {"verify", "the cost of steps of several rows, in steps of one", bench::run_verify},
    {"prefill", "prompt tokens per second against oneDNN's matrix product", bench::run_prefill},
    {"speculate", "plain and speculative decoding of the same prompts, in turns", bench::run_speculate},
    {"kernels", "the blocks of a layer against the memory bandwidth", bench::run_kernels},
    {"serve", "an OpenAI endpoint under load, or a model served against its bare engine", bench::run_serve},
    {"bandwidth", "reading and copying memory", bench::run_bandwidth},
};

std::string usage() {
  std::string text =
      "Measures how near the engine is to what the machine can do.\n"
      "Usage: tandem bench BENCH [OPTIONS]\n\n"
      "Benches:\n";
  for (const Entry& b : kBenches) text += fmt::format("  {:<12}{}\n", b.name, b.about);
  text +=
      "\nEach prints a table, or an array of rows with --json; tandem bench decode --help lists its "
      "options.\n\n"
      "Examples:\n"
      "  tandem bench decode --model synth:qwen3.5-0.8b@8 --threads 1,2\n"
      "  tandem bench verify --model models/tandem-demo --json\n"
      "  tandem bench serve --url http://127.0.0.1:8080 --concurrency 1,8\n"
      "  tandem bench bandwidth\n";
  return text;
}

}  // namespace

int run_bench(Arguments args) {
  if (args.empty())
    return misuse(
        "bench",
        "expected decode, verify, prefill, speculate, kernels, serve or bandwidth (see tandem bench --help)");
  if (args[0] == "-h" || args[0] == "--help") {
    Output out;
    out.write(usage());
    return out.finish("bench", kDone);
  }
  for (const Entry& b : kBenches) {
    if (args[0] == b.name) return b.run(args.subspan(1));
  }
  return misuse(
      "bench",
      fmt::format(
          "'{}' is no bench: expected decode, verify, prefill, speculate, kernels, serve or bandwidth",
          args[0]));
}

}  // namespace tandem
