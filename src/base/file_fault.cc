#include "base/file_fault.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace tandem {
namespace {

// Written by ordinary code, read by the handler: atomics without locks, and text that stays in place. A slot
// that the handler matches cannot go away: the thread that faulted is reading its file.
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<char*> path{nullptr};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<char*>::is_always_lock_free);

std::array<Slot, 1024> g_slots;
std::atomic<char*> g_folder{nullptr};

void say(const char* text) { (void)!::write(STDERR_FILENO, text, std::strlen(text)); }

// opendir allocates, which a handler must not: the system call itself does not.
void remove_flat_folder(const char* folder) {
  const int fd = ::open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  alignas(dirent64) char block[4096];
  while (true) {
    const long n = ::syscall(SYS_getdents64, fd, block, sizeof block);
    if (n <= 0) break;
    for (long at = 0; at < n;) {
      const auto* entry = reinterpret_cast<const dirent64*>(block + at);
      at += entry->d_reclen;
      if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0)
        ::unlinkat(fd, entry->d_name, 0);
    }
  }
  ::close(fd);
  ::rmdir(folder);
}

// Only calls that are safe in a signal handler.
void on_fault(int number, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Slot& slot : g_slots) {
    if (address < slot.begin.load() || address >= slot.end.load()) continue;
    const char* path = slot.path.load();
    say("tandem: ");
    say(path != nullptr ? path : "a file");
    say(": could not be read further while it was in use: another program changed it, or its disk failed; "
        "make it whole and run this again\n");
    if (const char* folder = g_folder.load(); folder != nullptr) remove_flat_folder(folder);
    ::_exit(1);
  }
  std::signal(number, SIG_DFL);  // the load is tried again when this returns, and ends the process
}

}  // namespace

void explain_file_faults() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

int remember_mapping(const void* data, size_t bytes, const std::string& path) {
  for (size_t i = 0; i < g_slots.size(); ++i) {
    Slot& slot = g_slots[i];
    if (slot.taken.exchange(true)) continue;
    slot.path.store(::strdup(path.c_str()));
    slot.begin.store(reinterpret_cast<uintptr_t>(data));
    slot.end.store(reinterpret_cast<uintptr_t>(data) + bytes);
    return int(i);
  }
  return -1;
}

void forget_mapping(int ticket) {
  if (ticket < 0) return;
  Slot& slot = g_slots[size_t(ticket)];
  slot.end.store(0);
  slot.begin.store(0);
  std::free(slot.path.exchange(nullptr));
  slot.taken.store(false);
}

void remove_on_file_fault(const std::string& folder) {
  std::free(g_folder.exchange(folder.empty() ? nullptr : ::strdup(folder.c_str())));
}

}  // namespace tandem
