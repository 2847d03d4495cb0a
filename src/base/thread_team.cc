#include "base/thread_team.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <exception>
#include <string>

#include "base/check.h"

namespace tandem {
namespace {

// How long a thread spins before it sleeps. Longer than the gaps between the loops of one step, far shorter
// than a time slice.
constexpr auto kSpin = std::chrono::microseconds(50);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// True as soon as `done()`; false after kSpin.
template <class Done>
bool spin_until(Done done) {
  if (done()) return true;
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      pause();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

// Returns at once if the word no longer holds `expected`; may return for no reason.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

uint64_t chunk_range(uint64_t begin, uint64_t end) { return end << 32 | begin; }

// Claims a chunk of the range, or returns -1 if none is left: the owner from the front, a helper from the
// back, so that the owner's memory stream stays sequential.
int64_t claim(std::atomic<uint64_t>& unclaimed, bool from_front) {
  uint64_t range = unclaimed.load(std::memory_order_relaxed);
  while (true) {
    const uint64_t begin = range & 0xffffffffu, end = range >> 32;
    if (begin >= end) return -1;
    const uint64_t rest = from_front ? chunk_range(begin + 1, end) : chunk_range(begin, end - 1);
    // Acquire: what the caller wrote before it opened this range. A stale `range` fails, or is a true range
    // of the loop that is open now.
    if (unclaimed.compare_exchange_weak(range, rest, std::memory_order_acquire, std::memory_order_relaxed)) {
      return int64_t(from_front ? begin : end - 1);
    }
  }
}

}  // namespace

ThreadTeam::ThreadTeam(int n_threads)
    : n_threads_(std::max(1, n_threads)), parts_(std::make_unique<Part[]>(size_t(n_threads_))) {
  workers_.reserve(size_t(n_threads_) - 1);
  try {
    for (int i = 1; i < n_threads_; ++i) workers_.emplace_back([this, i] { worker_main(i); });
  } catch (const std::exception& e) {
    started_ = Error{"cannot start thread " + std::to_string(workers_.size() + 2) + " of " +
                     std::to_string(n_threads_) + ": " + e.what() +
                     "; use fewer --threads or raise the limits of this shell (ulimit -u, ulimit -v)"};
    end_workers();
    n_threads_ = 1;
  }
}

ThreadTeam::~ThreadTeam() { end_workers(); }

void ThreadTeam::end_workers() {
  stop_.store(true);
  loop_.fetch_add(1);
  futex_wake_all(loop_);
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadTeam::run(int64_t n_tasks, int64_t grain, Trampoline call, void* context) {
  if (n_tasks <= 0) return;
  TD_CHECK(grain > 0, "grain %lld\n", static_cast<long long>(grain));
  call_ = call;
  context_ = context;
  n_tasks_ = n_tasks;
  if (n_threads_ == 1 || n_tasks <= grain) {
    for (int64_t first = 0; first < n_tasks; first += grain) {
      call(context, first, std::min(first + grain, n_tasks), 0);
    }
    return;
  }
  // Every thread's part is the same number of tasks, give or take one, cut into the same number of chunks.
  const int64_t part = (n_tasks + n_threads_ - 1) / n_threads_;
  chunks_per_part_ = (part + grain - 1) / grain;
  TD_CHECK(chunks_per_part_ * n_threads_ <= INT_MAX, "%lld tasks in one loop, grain %lld\n",
           static_cast<long long>(n_tasks), static_cast<long long>(grain));
  n_unfinished_.store(uint32_t(chunks_per_part_ * n_threads_), std::memory_order_relaxed);
  for (int64_t i = 0; i < n_threads_; ++i) {
    parts_[size_t(i)].unclaimed.store(
        chunk_range(uint64_t(chunks_per_part_ * i), uint64_t(chunks_per_part_ * (i + 1))),
        std::memory_order_release);
  }
  loop_.fetch_add(1);
  if (n_asleep_.load() != 0) futex_wake_all(loop_);
  work(0);
  wait_for_end();
}

void ThreadTeam::run_chunk(int64_t chunk, int thread) {
  const int64_t part = chunk / chunks_per_part_, in_part = chunk % chunks_per_part_;
  const int64_t begin = n_tasks_ * part / n_threads_, n = n_tasks_ * (part + 1) / n_threads_ - begin;
  const int64_t first = begin + n * in_part / chunks_per_part_,
                last = begin + n * (in_part + 1) / chunks_per_part_;
  if (first < last) call_(context_, first, last, thread);
  // Sequentially consistent with caller_asleep_: either this thread sees the caller asleep, or the caller
  // sees zero.
  if (n_unfinished_.fetch_sub(1) == 1 && caller_asleep_.load() != 0) futex_wake_all(n_unfinished_);
}

void ThreadTeam::work(int thread) {
  for (int i = 0; i < n_threads_; ++i) {
    Part& part = parts_[size_t((thread + i) % n_threads_)];
    for (int64_t chunk = claim(part.unclaimed, i == 0); chunk >= 0; chunk = claim(part.unclaimed, i == 0)) {
      run_chunk(chunk, thread);
    }
  }
}

void ThreadTeam::wait_for_end() {
  if (spin_until([&] { return n_unfinished_.load(std::memory_order_acquire) == 0; })) return;
  caller_asleep_.store(1);
  for (uint32_t left = n_unfinished_.load(); left != 0; left = n_unfinished_.load()) {
    futex_wait(n_unfinished_, left);
  }
  caller_asleep_.store(0);
}

void ThreadTeam::worker_main(int thread) {
  uint32_t seen =
      0;  // loops count from one, so a loop that was opened before this thread started is not missed
  while (true) {
    if (!spin_until([&] { return loop_.load(std::memory_order_acquire) != seen; })) {
      n_asleep_.fetch_add(1);
      while (loop_.load() == seen) futex_wait(loop_, seen);
      n_asleep_.fetch_sub(1);
    }
    if (stop_.load()) return;
    seen = loop_.load(std::memory_order_acquire);
    work(thread);
  }
}

}  // namespace tandem
