#include "backend/host_memory.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>

namespace tandem {

size_t available_host_bytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return SIZE_MAX;
  size_t kib = 0;
  bool found = false;
  char line[256];
  while (!found && std::fgets(line, sizeof line, file))
    found = std::sscanf(line, "MemAvailable: %zu kB", &kib) == 1;
  std::fclose(file);
  return found ? kib * 1024 : SIZE_MAX;
}

Error out_of_host_memory(size_t bytes, const std::string& purpose) {
  return {fmt::format(
      "{} needs {} bytes ({:.1f} MiB) of memory, {} bytes ({:.1f} MiB) are available: choose a smaller "
      "model, a shorter context or fewer sequences, or free memory",
      purpose, bytes, double(bytes) / (1 << 20), available_host_bytes(),
      double(available_host_bytes()) / (1 << 20))};
}

Status check_host_memory(size_t bytes, const std::string& purpose) {
  if (bytes > available_host_bytes()) return out_of_host_memory(bytes, purpose);
  return {};
}

}  // namespace tandem
