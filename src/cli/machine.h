// What this process runs on, as the system tells it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tandem {

std::string cpu_model();  // "AMD EPYC 9B14", or "unknown"
int usable_cores();       // that the scheduler may give this process
// Cores' worth of time that the control group allows, none without a limit.
std::optional<double> cpu_quota();
uint64_t memory_bytes();            // of the machine
uint64_t available_memory_bytes();  // that could be taken now, within the control group's limit

// The first line of a small file of the system, empty if there is none.
std::string first_line(const std::string& path);

}  // namespace tandem
