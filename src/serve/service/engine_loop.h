// The thread that owns the engine. Others hand it generations and cancellations and learn of tokens by
// callbacks on that thread; nothing else touches the engine.
//
//   submit -> (the loop takes it between two steps) accepted or refused -> events, a flush per step -> over
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "serve/api/api_error.h"

namespace tandem::serve {

// One answer of the API: one choice or several, which the engine runs side by side. The calls come on the
// engine's thread, in the order in which they stand here.
class Generation {
 public:
  virtual ~Generation() = default;
  // What the engine shall run; called once.
  virtual std::vector<Request> take_requests() = 0;
  virtual void refused(const ApiError& error) = 0;  // instead of all that follows
  virtual void accepted() = 0;
  enum class Next : uint8_t { go_on, stop };  // stop: the choice is over, whatever the engine would add
  virtual Next token(int choice, const Event& event) = 0;
  virtual void over(int choice, const Event* event, const RequestStats& stats) = 0;  // event: null after stop
  // After a step that brought it something: what it has to say leaves in one write.
  virtual void flush() = 0;
  // About once a second while it runs.
  virtual void tick() {}
};

class EngineLoop {
 public:
  struct Limits {
    int max_running = 1;  // choices the engine runs at once
    int max_queue = 256;  // generations that wait for it
  };
  // Figures of the loop, for metrics: written by its thread alone.
  struct Counters {
    std::atomic<int64_t> running{0}, queued{0};
    std::atomic<int64_t> prompt_tokens{0}, generated_tokens{0}, rounds{0}, drafted_tokens{0},
        accepted_tokens{0};
  };

  // Both must outlive the loop. `around_flushes`: called around the flushes of a step (http::WriteBatch).
  EngineLoop(Engine& engine, Limits limits, std::function<void(const std::function<void()>&)> around_flushes);
  ~EngineLoop();  // stop()

  // From any thread. False: the queue is full; nothing of the generation is called then.
  bool submit(uint64_t id, std::shared_ptr<Generation> generation);
  // Ends it without another call; unknown ids are ignored.
  void cancel(uint64_t id);
  // Runs what is there to its end, for at most `timeout`; then refuses the rest. True when nothing was left.
  bool drain(std::chrono::milliseconds timeout);
  void stop();

  const Counters& counters() const { return counters_; }
  // How long ago the loop began its last step; zero while it has nothing to do.
  std::chrono::milliseconds since_last_step() const;

 private:
  struct Order {
    uint64_t id;
    bool cancels = false;
    std::shared_ptr<Generation> generation = {};  // to start, if it does not cancel
  };
  struct Running {
    uint64_t id;
    std::shared_ptr<Generation> generation;
    std::vector<int> numbers;  // of the choices, in the engine; -1: over
    int n_left = 0;
    bool touched = false;  // since the last flush
    bool failed = false;
  };
  struct Place {
    Running* running;
    int choice;
  };

  void run();
  void take_orders();
  void start(uint64_t id, std::shared_ptr<Generation> generation);
  void forget(uint64_t id);
  void on_event(const Event& event);
  template <class Call>
  void guarded(Running& running, Call&& call);
  void end_choice(const Place& place, int number, const Event* event);
  void after_step();
  void count(const RequestStats& stats);

  Engine& engine_;
  const Limits limits_;
  const std::function<void(const std::function<void()>&)> around_flushes_;
  Counters counters_;
  std::atomic<int64_t> step_began_ms_{0};

  std::mutex mutex_;  // for what follows
  std::condition_variable changed_;
  std::vector<Order> orders_;
  bool stopping_ = false, idle_ = true;

  // Of the loop's thread.
  std::vector<Order> taken_;
  std::unordered_map<uint64_t, std::unique_ptr<Running>> running_;
  std::unordered_map<int, Place> by_number_;
  std::vector<int> stopped_;  // numbers to cancel when the step is over
  std::vector<uint64_t> finished_, failed_;
  std::chrono::steady_clock::time_point last_tick_{};

  std::thread thread_;
};

}  // namespace tandem::serve
