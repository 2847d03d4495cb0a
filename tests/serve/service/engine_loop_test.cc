// The engine's thread: every generation gets its own tokens and one end, whoever joins, throws, is cancelled
// or does not fit in the queue.
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

#include "engine/loaded_model.h"
#include "serve/service/engine_loop.h"

namespace tandem::serve {
namespace {

struct Heard {
  std::vector<TokenId> tokens;
  int accepted = 0, refused = 0, over = 0;
};

// Collects what it is told; may stop or throw at a token.
class Listener final : public Generation {
 public:
  Listener(Request request, int stop_at = -1, int throw_at = -1)
      : request_(std::move(request)), stop_at_(stop_at), throw_at_(throw_at) {}
  ~Listener() override { gone_.set_value(heard_); }

  std::vector<Request> take_requests() override { return {request_}; }
  void refused(const ApiError&) override { ++heard_.refused; }
  void accepted() override { ++heard_.accepted; }
  Next token(int, const Event& event) override {
    heard_.tokens.push_back(*event.token);
    if (int(heard_.tokens.size()) == throw_at_) throw std::runtime_error("a parser gave up");
    return int(heard_.tokens.size()) == stop_at_ ? Next::stop : Next::go_on;
  }
  void over(int, const Event*, const RequestStats&) override { ++heard_.over; }
  void flush() override {}

  std::future<Heard> end() { return gone_.get_future(); }

 private:
  Request request_;
  const int stop_at_, throw_at_;
  Heard heard_;
  std::promise<Heard> gone_;
};

class EngineLoops : public testing::Test {
 protected:
  void SetUp() override {
    Result<LoadedModel> model = load_model({.model = std::string(TANDEM_MODELS) + "/tandem-demo",
                                            .backend = {.name = "auto", .threads = 1},
                                            .limits = {.max_rows = 64, .max_logit_rows = 8},
                                            .progress = {},
                                            .warn = {}});
    ASSERT_TRUE(model.ok());
    model_ = std::make_unique<LoadedModel>(*std::move(model));
    Result<std::unique_ptr<Engine>> engine =
        Engine::create(*model_->decoder, {.max_sequences = 4, .max_positions = 1024, .prefill_chunk = 64});
    ASSERT_TRUE(engine.ok());
    engine_ = *std::move(engine);
    loop_ = std::make_unique<EngineLoop>(*engine_, EngineLoop::Limits{.max_running = 4, .max_queue = 2},
                                         [](const std::function<void()>& flushes) { flushes(); });
  }
  static Request request(int seed, int n) {
    Request r;
    r.prompt = {TokenId(100 + seed), 7, 9};
    r.max_tokens = n;
    r.sampling.temperature = 1;
    r.sampling.seed = uint64_t(seed);
    return r;
  }
  // False: the queue was full.
  bool submit(uint64_t id, Request r, std::future<Heard>& end, int stop_at = -1, int throw_at = -1) {
    auto listener = std::make_shared<Listener>(std::move(r), stop_at, throw_at);
    end = listener->end();
    return loop_->submit(id, std::move(listener));
  }

  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineLoop> loop_;
};

TEST_F(EngineLoops, E10_WhoThrowsFailsAloneAndTheOthersAnswersStay) {
  std::vector<Heard> alone;
  for (int i = 0; i < 4; ++i) {
    std::future<Heard> end;
    ASSERT_TRUE(submit(uint64_t(i + 1), request(i, 24), end));
    alone.push_back(end.get());
    ASSERT_EQ(alone.back().tokens.size(), 24u);
    ASSERT_EQ(alone.back().over, 1);
  }
  std::future<Heard> ends[4];
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(submit(uint64_t(i + 11), request(i, 24), ends[i], -1, i == 2 ? 5 : -1));
  for (int i = 0; i < 4; ++i) {
    const Heard heard = ends[i].get();
    if (i == 2) {
      EXPECT_EQ(heard.refused, 1);
      EXPECT_EQ(heard.over, 0);
      EXPECT_EQ(heard.tokens.size(), 5u);
    } else {
      EXPECT_EQ(heard.tokens, alone[size_t(i)].tokens);
      EXPECT_EQ(heard.over, 1);
      EXPECT_EQ(heard.refused, 0);
    }
  }
  EXPECT_TRUE(loop_->drain(std::chrono::seconds(5)));
  EXPECT_EQ(loop_->counters().running, 0);
}

TEST_F(EngineLoops, AStopEndsAnAnswerAtItsToken) {
  std::future<Heard> end;
  ASSERT_TRUE(submit(1, request(1, 64), end, 9));
  const Heard heard = end.get();
  EXPECT_EQ(heard.tokens.size(), 9u);
  EXPECT_EQ(heard.over, 1);
}

TEST_F(EngineLoops, E8_CancelledOnesSayNothingMoreAndLeaveTheirPlace) {
  for (uint64_t id = 1; id <= 20; ++id) {
    std::future<Heard> end;
    ASSERT_TRUE(submit(id, request(int(id), 900), end));
    if (id % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(id));
    loop_->cancel(id);
    loop_->cancel(id);
    const Heard heard = end.get();
    EXPECT_EQ(heard.over, 0);
    EXPECT_EQ(heard.refused, 0);
    EXPECT_LT(heard.tokens.size(), 900u);
  }
  loop_->cancel(12345);
  EXPECT_TRUE(loop_->drain(std::chrono::seconds(5)));
}

TEST_F(EngineLoops, AFullQueueTakesNobodyMore) {
  std::vector<std::future<Heard>> ends(40);
  int taken = 0;
  for (int i = 0; i < 40; ++i) taken += submit(uint64_t(i + 1), request(i, 200), ends[size_t(i)]);
  EXPECT_GE(taken, 6);
  EXPECT_LT(taken, 40);
  int answered = 0;
  for (auto& end : ends) answered += end.get().tokens.size() == 200u;
  EXPECT_EQ(answered, taken);
}

}  // namespace
}  // namespace tandem::serve
