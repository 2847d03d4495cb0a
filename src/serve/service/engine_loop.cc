#include "serve/service/engine_loop.h"

#include <algorithm>

namespace tandem::serve {
namespace {

using Clock = std::chrono::steady_clock;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

EngineLoop::EngineLoop(Engine& engine, Limits limits,
                       std::function<void(const std::function<void()>&)> around_flushes)
    : engine_(engine),
      limits_(limits),
      around_flushes_(std::move(around_flushes)),
      thread_([this] { run(); }) {}

EngineLoop::~EngineLoop() { stop(); }

bool EngineLoop::submit(uint64_t id, std::shared_ptr<Generation> generation) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || counters_.queued + counters_.running >= limits_.max_queue + limits_.max_running)
      return false;
    ++counters_.queued;
    idle_ = false;
    orders_.push_back({.id = id, .generation = std::move(generation)});
  }
  changed_.notify_one();
  return true;
}

void EngineLoop::cancel(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back({.id = id, .cancels = true});
  }
  changed_.notify_one();
}

bool EngineLoop::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return idle_; });
}

void EngineLoop::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::chrono::milliseconds EngineLoop::since_last_step() const {
  const int64_t began = step_began_ms_;
  return std::chrono::milliseconds(began == 0 ? 0 : now_ms() - began);
}

void EngineLoop::run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (orders_.empty() && engine_.idle()) {
        idle_ = true;
        step_began_ms_ = 0;
        changed_.notify_all();
        changed_.wait(lock, [&] { return stopping_ || !orders_.empty(); });
      }
      if (stopping_) break;
      taken_.swap(orders_);
    }
    take_orders();
    if (engine_.idle()) {
      after_step();
      continue;
    }
    step_began_ms_ = now_ms();
    engine_.step([this](const Event& event) { on_event(event); });
    after_step();
  }
  const ApiError error = unavailable("draining", "the server is shutting down");
  for (const auto& [id, running] : running_) running->generation->refused(error);
  for (const Order& order : orders_) {
    if (order.generation != nullptr) order.generation->refused(error);
  }
}

void EngineLoop::take_orders() {
  for (Order& order : taken_) {
    if (order.cancels) {
      forget(order.id);
    } else {
      start(order.id, std::move(order.generation));
    }
  }
  taken_.clear();
}

void EngineLoop::start(uint64_t id, std::shared_ptr<Generation> generation) {
  --counters_.queued;
  auto running =
      std::make_unique<Running>(Running{.id = id, .generation = std::move(generation), .numbers = {}});
  for (Request& request : running->generation->take_requests()) {
    const Result<int> number = engine_.submit(std::move(request));
    if (!number.ok()) {
      for (const int earlier : running->numbers) {
        by_number_.erase(earlier);
        engine_.cancel(earlier);
      }
      running->generation->refused(invalid_field("", "invalid_value", number.error().message));
      return;
    }
    by_number_[*number] = {running.get(), int(running->numbers.size())};
    running->numbers.push_back(*number);
  }
  running->n_left = int(running->numbers.size());
  ++counters_.running;
  running->generation->accepted();
  running_[running->id] = std::move(running);
}

void EngineLoop::forget(uint64_t id) {
  const auto it = running_.find(id);
  if (it == running_.end()) return;
  for (const int number : it->second->numbers) {
    if (number < 0) continue;
    count(engine_.stats(number));
    by_number_.erase(number);
    engine_.cancel(number);
  }
  running_.erase(it);
  --counters_.running;
}

// What a generation throws ends that one and nothing else.
template <class Call>
void EngineLoop::guarded(Running& running, Call&& call) {
  if (running.failed) return;
  try {
    call();
  } catch (const std::exception& e) {
    running.failed = true;
    failed_.push_back(running.id);
    running.generation->refused(engine_failed(e.what(), ""));
  }
}

void EngineLoop::on_event(const Event& event) {
  const auto it = by_number_.find(event.request);
  if (it == by_number_.end()) return;  // stopped earlier in this step
  const Place place = it->second;
  place.running->touched = true;
  guarded(*place.running, [&] {
    if (event.token && place.running->generation->token(place.choice, event) == Generation::Next::stop) {
      stopped_.push_back(event.request);
      return end_choice(place, event.request, nullptr);
    }
    if (event.finish != FinishReason::none) end_choice(place, event.request, &event);
  });
}

void EngineLoop::end_choice(const Place& place, int number, const Event* event) {
  Running& running = *place.running;
  const RequestStats& stats = engine_.stats(number);
  running.generation->over(place.choice, event, stats);
  count(stats);
  running.numbers[size_t(place.choice)] = -1;
  by_number_.erase(number);
  if (--running.n_left == 0) finished_.push_back(running.id);
}

void EngineLoop::after_step() {
  for (const int number : stopped_) engine_.cancel(number);
  stopped_.clear();
  const Clock::time_point now = Clock::now();
  const bool ticks = now - last_tick_ > std::chrono::seconds(1);
  if (ticks) last_tick_ = now;
  around_flushes_([&] {
    for (const auto& [id, running] : running_) {
      if (!running->touched && !ticks) continue;
      running->touched = false;
      guarded(*running, [&] {
        if (ticks) running->generation->tick();
        running->generation->flush();
      });
    }
  });
  for (const uint64_t id : failed_) forget(id);
  failed_.clear();
  for (const uint64_t id : finished_) {
    if (running_.erase(id) > 0) --counters_.running;
  }
  finished_.clear();
}

void EngineLoop::count(const RequestStats& stats) {
  counters_.prompt_tokens += stats.prompt_tokens;
  counters_.generated_tokens += stats.generated_tokens;
  counters_.rounds += stats.speculation.rounds;
  counters_.drafted_tokens += stats.speculation.drafted;
  counters_.accepted_tokens += stats.speculation.accepted;
}

}  // namespace tandem::serve
