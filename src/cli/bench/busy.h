// Foreign processes that spin on the cores, to measure what a busy machine does to the engine.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/result.h"

namespace tandem::bench {

class BusyProcesses {
 public:
  // Starts n children that only spin. They die with this object, and with this process whatever ends it.
  // Errors: the system's reason.
  static Result<BusyProcesses> start(int n);
  BusyProcesses(BusyProcesses&& other) noexcept { children_.swap(other.children_); }
  BusyProcesses& operator=(BusyProcesses&&) = delete;
  ~BusyProcesses();

 private:
  BusyProcesses() = default;
  std::vector<pid_t> children_;
};

}  // namespace tandem::bench
