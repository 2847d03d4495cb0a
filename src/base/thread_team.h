// A team of threads that shares loops. The caller works too, so a team of one has no other thread.
//
// Chunks of a loop are claimed with one compare-and-swap each: a thread that the system takes off its core
// holds up only the chunk it is working on, never the rest of the loop and never a loop it has not joined.
// Waiting is a bounded spin, then a futex, for the workers (next loop) and for the caller (end of the loop)
// alike: a foreign process on one of the cores costs its share, not a time slice per loop. Nothing allocates
// after construction.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/result.h"

namespace tandem {

class ThreadTeam {
 public:
  // n_threads >= 1, the caller included. When the system refuses a thread, those that did start are ended
  // again, the team is the caller alone, and started() says so: whoever makes a team asks.
  explicit ThreadTeam(int n_threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return n_threads_; }
  // Errors: which thread of how many could not start, the system's reason, the cure.
  const Status& started() const { return started_; }

  // Calls body(first, last, thread) for ranges of at most `grain` tasks that cover [0, n_tasks) once each, on
  // any threads in any order, and returns when all are done. `thread` in [0, size()) is this thread's own,
  // for scratch. Each thread starts on its own contiguous part of the tasks (so that it reads one sequential
  // stream) and helps others when that is done. Only one thread may call at a time; body must not call the
  // team and must not throw.
  template <class Body>
  void parallel_for(int64_t n_tasks, int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        n_tasks, grain,
        [](void* context, int64_t first, int64_t last, int thread) {
          (*static_cast<Plain*>(context))(first, last, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Trampoline = void (*)(void* context, int64_t first, int64_t last, int thread);

  // Chunks of one thread's part that nobody has claimed: end in the high half, begin in the low half.
  struct alignas(128) Part {
    std::atomic<uint64_t> unclaimed{0};
  };

  void run(int64_t n_tasks, int64_t grain, Trampoline call, void* context);
  void work(int thread);
  void worker_main(int thread);
  void run_chunk(int64_t chunk, int thread);
  void wait_for_end();
  void end_workers();

  int n_threads_;  // fixed once constructed
  Status started_;
  // The loop in progress. Written by the caller between loops; read only by a thread that holds a claimed
  // chunk, which keeps the loop from ending.
  Trampoline call_ = nullptr;
  void* context_ = nullptr;
  int64_t n_tasks_ = 0, chunks_per_part_ = 1;

  std::unique_ptr<Part[]> parts_;
  alignas(128) std::atomic<uint32_t> n_unfinished_{0};  // chunks; the caller's futex
  std::atomic<uint32_t> caller_asleep_{0};      // 1 while the caller is in, or on its way into, the futex
  alignas(128) std::atomic<uint32_t> loop_{0};  // counts loops; the workers' futex
  std::atomic<uint32_t> n_asleep_{0};           // workers in, or on their way into, the futex
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace tandem
