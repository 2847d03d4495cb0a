// Loops of a thread team: every task once, whatever the sizes, the sleeping and the company.
#include "base/thread_team.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace tandem {
namespace {

TEST(ThreadTeam, RunsEveryTaskOnce) {
  for (const int n_threads : {1, 2, 3, 7}) {
    ThreadTeam team(n_threads);
    for (const int64_t n : {0, 1, 2, 5, 64, 1000, 4097}) {
      for (const int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> count(static_cast<size_t>(n));
        team.parallel_for(n, grain, [&](int64_t first, int64_t last, int thread) {
          EXPECT_LT(first, last);
          EXPECT_LE(last - first, grain);
          EXPECT_GE(thread, 0);
          EXPECT_LT(thread, n_threads);
          for (int64_t i = first; i < last; ++i) count[size_t(i)].fetch_add(1, std::memory_order_relaxed);
        });
        for (const auto& c : count) ASSERT_EQ(c.load(), 1) << n << " tasks, grain " << grain;
      }
    }
  }
}

TEST(ThreadTeam, WritesAreSeenByTheCallerAndByTheNextLoop) {
  ThreadTeam team(3);
  std::vector<int64_t> a(300), b(300);
  for (int round = 1; round <= 2000; ++round) {
    team.parallel_for(300, 7, [&](int64_t first, int64_t last, int) {
      for (int64_t i = first; i < last; ++i) a[size_t(i)] = i * round;
    });
    team.parallel_for(300, 11, [&](int64_t first, int64_t last, int) {
      for (int64_t i = first; i < last; ++i) b[size_t(i)] = a[size_t(299 - i)];
    });
    ASSERT_EQ(std::accumulate(b.begin(), b.end(), int64_t{0}), int64_t{round} * 299 * 300 / 2);
  }
}

TEST(ThreadTeam, ScratchByThreadIsExclusive) {
  ThreadTeam team(4);
  std::vector<int64_t> sum(4 * 64);
  for (int round = 0; round < 500; ++round) {
    team.parallel_for(100, 1, [&](int64_t first, int64_t last, int thread) {
      for (int64_t i = first; i < last; ++i) sum[size_t(thread) * 64] += i;
    });
  }
  EXPECT_EQ(std::accumulate(sum.begin(), sum.end(), int64_t{0}), int64_t{500} * 99 * 100 / 2);
}

// Workers that fell asleep between loops, and a caller that fell asleep at the end of one, wake up again.
TEST(ThreadTeam, SleepersWakeUp) {
  ThreadTeam team(2);
  for (int round = 0; round < 10; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> n_done{0};
    team.parallel_for(2, 1, [&](int64_t first, int64_t, int) {
      if (first == round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      n_done.fetch_add(1);
    });
    ASSERT_EQ(n_done.load(), 2);
  }
}

TEST(ThreadTeam, MoreThreadsThanCoresFinish) {
  ThreadTeam team(int(std::thread::hardware_concurrency()) * 4);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int64_t> sum{0};
    team.parallel_for(64, 1, [&](int64_t first, int64_t, int) { sum.fetch_add(first); });
    ASSERT_EQ(sum.load(), 63 * 64 / 2);
  }
}

TEST(ThreadTeam, TeamsComeAndGo) {
  for (int round = 0; round < 50; ++round) {
    ThreadTeam team(3);
    std::atomic<int64_t> n{0};
    if (round % 2 == 0) team.parallel_for(10, 1, [&](int64_t, int64_t, int) { n.fetch_add(1); });
    EXPECT_EQ(n.load(), round % 2 == 0 ? 10 : 0);
  }
}

// A stack larger than the address space: the system refuses every thread, as under a tight ulimit.
TEST(ThreadTeam, AThreadThatCannotStartIsAnErrorAndTheCallerStillWorks) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  {
    ThreadTeam team(4);
    EXPECT_EQ(pthread_setattr_default_np(&usual), 0);
    ASSERT_FALSE(team.started().ok());
    EXPECT_EQ(team.started().error().message.substr(0, 30), "cannot start thread 2 of 4: Re");
    EXPECT_EQ(team.size(), 1);
    int64_t sum = 0;
    team.parallel_for(10, 3, [&](int64_t first, int64_t last, int) { sum += last - first; });
    EXPECT_EQ(sum, 10);
  }
  EXPECT_TRUE(ThreadTeam(4).started().ok());
  pthread_attr_destroy(&usual);
  pthread_attr_destroy(&huge);
}

}  // namespace
}  // namespace tandem
