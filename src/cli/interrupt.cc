#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace tandem {
namespace {

// A signal handler has no other place to leave a word.
std::atomic<bool> g_interrupted{false}, g_told_to_end{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int number) {
  g_interrupted.store(true, std::memory_order_relaxed);
  if (number != SIGINT) g_told_to_end.store(true, std::memory_order_relaxed);
}

void watch(int number) {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = int(SA_RESETHAND);  // the second one kills; reads return with EINTR
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

bool is_ignored(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void watch_interrupt() {
  g_interrupted.store(told_to_end(), std::memory_order_relaxed);
  watch(SIGINT);
  watch(SIGTERM);
  if (!is_ignored(SIGHUP)) watch(SIGHUP);
}

bool interrupted() { return g_interrupted.load(std::memory_order_relaxed); }

bool told_to_end() { return g_told_to_end.load(std::memory_order_relaxed); }

}  // namespace tandem
