#include "cli/bench/busy.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace tandem::bench {
namespace {

// Runs in a child of a process with several threads: nothing but plain system calls.
[[noreturn]] void spin(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);  // it died before the line above
  volatile unsigned counter = 0;
  while (true) counter = counter + 1;
}

}  // namespace

Result<BusyProcesses> BusyProcesses::start(int n) {
  BusyProcesses busy;
  const pid_t parent = ::getpid();
  for (int i = 0; i < n; ++i) {
    const pid_t child = ::fork();
    if (child < 0) return Error{fmt::format("a busy process could not be started: {}", std::strerror(errno))};
    if (child == 0) spin(parent);
    busy.children_.push_back(child);
  }
  return busy;
}

BusyProcesses::~BusyProcesses() {
  for (const pid_t child : children_) ::kill(child, SIGKILL);
  for (const pid_t child : children_) {
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace tandem::bench
