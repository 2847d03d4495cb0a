// tandem doctor: what this machine offers, and what is missing or in the way.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "backend/registry.h"
#include "cli/bench/bandwidth_test.h"
#include "cli/command.h"
#include "cli/json.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/version.h"

namespace tandem {
namespace {

constexpr const char* kCommand = "doctor";

constexpr const char* kExamples =
    "tandem doctor\n"
    "tandem doctor --json";

enum class Verdict { good, advice, bad };

struct Check {
  const char* name;
  Verdict verdict = Verdict::good;
  std::string found;
  std::string cure = {};  // empty when all is well
};

const char* text_of(Verdict v) {
  return v == Verdict::good ? "ok" : v == Verdict::advice ? "advice" : "missing";
}

Check check_cpu() {
  // What the kernels make use of.
  const std::pair<const char*, bool> features[] = {{"avx2", __builtin_cpu_supports("avx2") > 0},
                                                   {"fma", __builtin_cpu_supports("fma") > 0},
                                                   {"avx512f", __builtin_cpu_supports("avx512f") > 0},
                                                   {"avx512bw", __builtin_cpu_supports("avx512bw") > 0},
                                                   {"avx512vnni", __builtin_cpu_supports("avx512vnni") > 0},
                                                   {"avx512bf16", __builtin_cpu_supports("avx512bf16") > 0}};
  std::vector<std::string> have, lack;
  for (const auto& [name, is] : features) (is ? have : lack).emplace_back(name);
  Check check{.name = "processor",
              .found = fmt::format(
                  "{}: {}", cpu_model(),
                  have.empty() ? "none of the features used" : fmt::format("{}", fmt::join(have, ", ")))};
  if (!__builtin_cpu_supports("avx2")) {
    check.verdict = Verdict::advice;
    check.cure = "without AVX2 the portable kernels run, several times slower";
  } else if (!lack.empty()) {
    check.found += fmt::format(" (not: {})", fmt::join(lack, ", "));
  }
  return check;
}

Check check_backend() {
  const Result<std::unique_ptr<Backend>> backend = make_backend({});
  if (!backend.ok()) return {"backend", Verdict::bad, "none", backend.error().message};
  return {"backend", Verdict::good, (*backend)->description()};
}

Check check_cores() {
  const int cores = usable_cores();
  const std::optional<double> quota = cpu_quota();
  Check check{.name = "cores", .found = fmt::format("{} usable", cores)};
  if (quota && *quota < cores) {
    check.verdict = Verdict::advice;
    check.found += fmt::format(", but time for {:.1f}", *quota);
    check.cure =
        fmt::format("the control group limits this process: run with --threads {}", std::max(1, int(*quota)));
  }
  return check;
}

Check check_memory() {
  const uint64_t total = memory_bytes(), available = available_memory_bytes();
  Check check{
      .name = "memory",
      .found = fmt::format("{:.1f} GB, {:.1f} GB available", double(total) / 1e9, double(available) / 1e9)};
  if (available < 1'000'000'000) {
    check.verdict = Verdict::advice;
    check.cure = "less than 1 GB is free: only small models fit; end other programs";
  }
  return check;
}

Check check_huge_pages() {
  const std::string modes = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = modes.find('['), close = modes.find(']');
  const std::string mode = open != modes.npos && close != modes.npos
                               ? modes.substr(open + 1, close - open - 1)
                               : std::string("not offered by this kernel");
  if (mode == "always" || mode == "madvise") return {"huge pages", Verdict::good, mode};
  return {"huge pages", Verdict::advice, mode,
          "weights read 7 to 28% slower from small pages: as root, echo madvise > "
          "/sys/kernel/mm/transparent_hugepage/enabled"};
}

std::vector<Check> check_bandwidth() {
  std::vector<Check> checks;
  std::vector<int> counts{1};
  if (usable_cores() > 1) counts.push_back(usable_cores());
  for (const int threads : counts) {
    const auto test = bench::BandwidthTest::create(threads);
    if (!test.ok()) return {{"bandwidth", Verdict::advice, "not measured", test.error().message}};
    checks.push_back({"bandwidth", Verdict::good,
                      fmt::format("{:.1f} GB/s read, {:.1f} GB/s copied (read + written) with {} thread{}",
                                  (*test)->read_gb_per_s(3), (*test)->copy_gb_per_s(2), threads,
                                  threads == 1 ? "" : "s")});
  }
  return checks;
}

}  // namespace

int run_doctor(Arguments args) {
  bool json = false;
  Options options(kCommand,
                  "Checks the machine and says what is missing. Exit code 1: something that is needed is.",
                  kExamples);
  options.flag("--json", json, "Print one JSON object");
  if (const auto code = options.parse(args)) return *code;
  std::vector<Check> checks{check_cpu(), check_backend(), check_cores(), check_memory(), check_huge_pages()};
  for (Check& check : check_bandwidth()) checks.push_back(std::move(check));
  bool bad = false;
  Json rows = Json::array();
  std::string text;
  for (const Check& c : checks) {
    bad = bad || c.verdict == Verdict::bad;
    rows.push_back(
        {{"check", c.name}, {"verdict", text_of(c.verdict)}, {"found", c.found}, {"cure", c.cure}});
    text += fmt::format("{:<8} {:<11} {}\n", text_of(c.verdict), c.name, c.found);
    if (!c.cure.empty()) text += fmt::format("{:<20} {}\n", "", c.cure);
  }
  Output out;
  out.write(json ? json_line({{"version", version()}, {"commit", commit()}, {"ok", !bad}, {"checks", rows}})
                 : text);
  return out.finish(kCommand, bad ? int{kFailed} : int{kDone});
}

}  // namespace tandem
