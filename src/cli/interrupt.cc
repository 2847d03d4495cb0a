#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace tandem {
namespace {

// A signal handler has no other place to leave a word.
std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int) { g_interrupted.store(true, std::memory_order_relaxed); }

}  // namespace

void watch_interrupt() {
  g_interrupted.store(false, std::memory_order_relaxed);
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = int(SA_RESETHAND);  // the second one kills; reads return with EINTR
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return g_interrupted.load(std::memory_order_relaxed); }

}  // namespace tandem
