// A prompt that begins with a cached prefix gives every token and every log-probability of the same prompt
// computed alone and from nothing, to the bit; and whatever comes and goes, pages and slots come back.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>

#include "engine/engine.h"
#include "engine/load_drafter.h"

namespace tandem {
namespace {

template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

struct Output {
  std::vector<TokenId> tokens;
  std::vector<uint32_t> logprobs;  // their bits
  FinishReason finish = FinishReason::none;
  bool operator==(const Output&) const = default;
};

void collect(std::map<int, Output>& outputs, const Event& e) {
  Output& out = outputs[e.request];
  if (e.token) out.tokens.push_back(*e.token);
  if (e.logprobs != nullptr) out.logprobs.push_back(std::bit_cast<uint32_t>(e.logprobs->chosen));
  if (e.finish != FinishReason::none) out.finish = e.finish;
}

class PrefixCache : public testing::Test {
 protected:
  static LoadedModel demo() {
    return must(load_model({.model = std::string(TANDEM_MODELS) + "/tandem-demo",
                            .backend = {.name = "auto", .threads = 2},
                            .limits = {.max_rows = 256, .max_logit_rows = 8},
                            .progress = {},
                            .warn = {}}));
  }
  static Output alone(Decoder& decoder, const Request& request) {
    const auto engine = must(Engine::create(decoder, {.max_positions = 512, .prefill_chunk = 128}));
    std::map<int, Output> outputs;
    const int number = must(engine->submit(request));
    engine->run([&](const Event& e) { collect(outputs, e); });
    return outputs[number];
  }
  static std::vector<TokenId> tokens(std::mt19937& rng, int n, int n_vocab) {
    std::vector<TokenId> ids;
    for (int i = 0; i < n; ++i) ids.push_back(TokenId(rng() % unsigned(n_vocab)));
    return ids;
  }
};

TEST_F(PrefixCache, HitsChangeNoBitWhateverDraftsAndWhoeverIsEvicted) {
  LoadedModel model = demo();
  const int n_vocab = model.config.vocab_size;
  int64_t cached = 0;
  uint64_t evicted = 0;
  for (const char* name : {"none", "mtp", "dflash", "ngram"}) {
    std::unique_ptr<Drafter> drafter;
    if (std::string_view(name) != "none") {
      drafter = must(load_drafter(
          model,
          {.name = name, .folder = {}, .bits = 8, .limits = {.max_sequences = 3, .max_positions = 4096}}));
    }
    std::mt19937 rng{7};
    EngineOptions options{.max_sequences = 3,
                          .max_positions = 640,
                          .prefill_chunk = 128,
                          .prefix_cache_bytes = size_t{4} << 20,
                          .checkpoint_interval = 64};
    if (drafter) options.drafters = {drafter.get()};
    const auto engine = must(Engine::create(*model.decoder, options));
    const std::vector<std::vector<TokenId>> starts = {tokens(rng, 64, n_vocab), tokens(rng, 127, n_vocab),
                                                      tokens(rng, 128, n_vocab), tokens(rng, 200, n_vocab)};
    std::map<int, Request> requests;
    std::map<int, Output> outputs;
    for (int i = 0; i < 40; ++i) {
      Request r;
      r.prompt = starts[rng() % starts.size()];
      if (rng() % 4 == 0) r.prompt.resize(r.prompt.size() / 2);
      const int more[] = {0, 1, 2, 63, 64, 65, 130};
      for (const TokenId id : tokens(rng, more[rng() % 7], n_vocab)) r.prompt.push_back(id);
      r.max_tokens = 1 + int(rng() % 12);
      r.sampling.seed = rng();
      if (rng() % 2 == 0) r.sampling.temperature = 0.8f;
      r.top_logprobs = 0;
      r.prefix_cache = rng() % 8 != 0;
      if (rng() % 4 == 0) r.cache_salt = "another tenant";
      if (rng() % 4 == 0) r.fork_points = {70};
      const int number = must(engine->submit(r));
      requests[number] = r;
      for (int steps = int(rng() % 4); steps > 0; --steps) {
        engine->step([&](const Event& e) { collect(outputs, e); });
      }
      if (rng() % 8 == 0) {
        engine->cancel(number);
        requests.erase(number);
      }
    }
    engine->run([&](const Event& e) { collect(outputs, e); });
    for (const auto& [number, request] : requests) {
      cached += engine->stats(number).cached_tokens;
      ASSERT_EQ(outputs[number], alone(*model.decoder, request)) << name << ", request " << number;
    }
    const PrefixTree& tree = *engine->prefix_tree();
    evicted += tree.evicted_pages() + tree.evicted_checkpoints();
    EXPECT_EQ(engine->pool().free_slots(), 3);
    EXPECT_EQ(engine->pool().free_pages() + tree.n_pages(), engine->pool().total_pages());
    engine->clear_prefix_cache();
    EXPECT_EQ(engine->pool().free_pages(), engine->pool().total_pages());
    EXPECT_EQ(tree.n_checkpoints(), 0);
  }
  EXPECT_GT(cached, 1000);
  EXPECT_GT(evicted, 0u);
}

TEST_F(PrefixCache, CachedTokensAreFullPagesAndOneTokenIsAlwaysComputed) {
  LoadedModel model = demo();
  std::mt19937 rng{1};
  const auto engine = must(Engine::create(
      *model.decoder, {.max_positions = 512, .prefill_chunk = 256, .prefix_cache_bytes = size_t{8} << 20}));
  const auto cached = [&](std::vector<TokenId> prompt, bool use = true, const char* salt = "") {
    Request r;
    r.prompt = std::move(prompt);
    r.prefix_cache = use;
    r.cache_salt = salt;
    r.max_tokens = 2;
    const int number = must(engine->submit(std::move(r)));
    engine->run([](const Event&) {});
    return engine->stats(number).cached_tokens;
  };
  const std::vector<TokenId> prompt = tokens(rng, 192, model.config.vocab_size);
  EXPECT_EQ(cached(prompt), 0);
  EXPECT_EQ(cached(prompt), 128);
  EXPECT_EQ(cached(prompt, false), 0);
  EXPECT_EQ(cached(prompt, true, "a"), 0);
  EXPECT_EQ(cached(prompt, true, "a"), 128);
  EXPECT_EQ(cached({prompt.begin(), prompt.begin() + 64}), 0);
}

}  // namespace
}  // namespace tandem
