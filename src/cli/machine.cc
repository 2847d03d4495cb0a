#include "cli/machine.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace tandem {
namespace {

// "MemTotal:  24 kB" of /proc/meminfo, in bytes.
uint64_t meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(key + ":")) return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
  }
  return "unknown";
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

std::optional<double> cpu_quota() {
  std::istringstream fields(first_line("/sys/fs/cgroup/cpu.max"));
  std::string quota;
  double period = 0;
  if (!(fields >> quota >> period) || quota == "max" || period <= 0) return std::nullopt;
  return std::strtod(quota.c_str(), nullptr) / period;
}

uint64_t memory_bytes() { return meminfo("MemTotal"); }

uint64_t available_memory_bytes() {
  uint64_t available = meminfo("MemAvailable");
  const std::string limit = first_line("/sys/fs/cgroup/memory.max");
  if (!limit.empty() && limit != "max") {
    const uint64_t most = std::strtoull(limit.c_str(), nullptr, 10);
    const uint64_t used = std::strtoull(first_line("/sys/fs/cgroup/memory.current").c_str(), nullptr, 10);
    available = std::min(available, most > used ? most - used : 0);
  }
  return available;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace tandem
