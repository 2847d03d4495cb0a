// Speculation changes nothing but time: whatever drafts, however long, in whatever company, greedy or drawn,
// with penalties, stops and limits, every token and every log-probability is the one of plain decoding, to
// the bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "engine/engine.h"
#include "engine/load_drafter.h"

namespace tandem {
namespace {

#ifdef TANDEM_SLOW
constexpr int kRuns = 1500;
#else
constexpr int kRuns = 150;
#endif

using Rng = std::mt19937;
int pick(Rng& rng, std::initializer_list<int> of) { return of.begin()[rng() % of.size()]; }
int uniform(Rng& rng, int low, int high) { return low + int(rng() % unsigned(high - low + 1)); }

template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

// What one request gave.
struct Output {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;  // of the tokens: as good as the logits' own bits
  FinishReason finish = FinishReason::none;
  std::string error;
  SpeculationStats stats;

  bool same_as(const Output& o) const {
    return tokens == o.tokens && finish == o.finish && error == o.error &&
           logprobs.size() == o.logprobs.size() &&
           std::equal(logprobs.begin(), logprobs.end(), o.logprobs.begin(), [](float a, float b) {
             return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
           });
  }
};

std::vector<Output> run(Decoder& decoder, const std::vector<Request>& requests, EngineOptions options) {
  options.max_sequences = int(requests.size());
  options.max_positions = 512 * options.max_sequences;
  const std::unique_ptr<Engine> engine = must(Engine::create(decoder, options));
  std::map<int, size_t> index;
  for (size_t i = 0; i < requests.size(); ++i) index[must(engine->submit(requests[i]))] = i;
  std::vector<Output> outputs(requests.size());
  engine->run([&](const Event& e) {
    Output& out = outputs[index.at(e.request)];
    if (e.token) out.tokens.push_back(*e.token);
    if (e.logprobs != nullptr) out.logprobs.push_back(e.logprobs->chosen);
    if (e.error != nullptr) out.error = *e.error;
    if (e.finish != FinishReason::none) out.finish = e.finish;
  });
  for (const auto& [number, i] : index) outputs[i].stats = engine->stats(number).speculation;
  return outputs;
}

// Proposes what a function says.
class Scripted final : public Drafter {
 public:
  using Script = std::function<void(const DraftRequest&)>;
  explicit Scripted(Script script, bool trees = false, DraftCost cost = DraftCost::block)
      : script_(std::move(script)), trees_(trees), cost_(cost) {}
  std::string_view name() const override { return "scripted"; }
  DraftCost cost() const override { return cost_; }
  int max_draft() const override { return kMaxDraft; }
  bool makes_trees() const override { return trees_; }
  Status begin(int, const DraftedSequence&) override { return {}; }
  void end(int) override {}
  void observe(std::span<const Observation>) override {}
  void propose(std::span<const DraftRequest> requests) override {
    for (const DraftRequest& r : requests) script_(r);
  }

 private:
  Script script_;
  bool trees_;
  DraftCost cost_;
};

// Random tokens, ids outside the vocabulary, wrong lengths and parents, exceptions.
void hostile(Rng& rng, const DraftRequest& r, int n_vocab) {
  if (rng() % 16 == 0) throw std::runtime_error("no draft today");
  r.draft->n = rng() % 8 == 0 ? uniform(rng, -5, 1000) : uniform(rng, 0, r.max);
  for (int i = 0; i < kMaxDraft; ++i) {
    r.draft->tokens[size_t(i)] = rng() % 64 == 0 ? TokenId(rng()) : TokenId(rng() % unsigned(n_vocab));
    r.draft->parents[size_t(i)] = int8_t(rng() % 64 == 0 ? rng() : unsigned(i - 1));
  }
  if (rng() % 4 == 0) r.draft->q.resize(rng() % 1000, 0.5f);
}

// A random tree around the right continuation, depth first: each node has the right token among its children
// or not.
void tree_around(Rng& rng, const DraftRequest& r, std::span<const TokenId> right, int n_vocab) {
  Draft& d = *r.draft;
  std::vector<int> open = {-1};  // the path of the node that was added last, root first
  std::vector<bool> on_path = {true};
  while (d.n < r.tree_nodes) {
    const size_t keep = 1 + rng() % open.size();  // go on from one of its ancestors
    open.resize(keep);
    on_path.resize(keep);
    if (int(open.size()) > r.max) continue;
    const size_t depth = keep - 1;
    const bool good = on_path.back() && depth < right.size() && rng() % 3 != 0;
    d.parents[size_t(d.n)] = int8_t(open.back());
    d.tokens[size_t(d.n)] = good ? right[depth] : TokenId(rng() % unsigned(n_vocab));
    open.push_back(d.n++);
    on_path.push_back(good);
    // A token twice among siblings: the first one counts, and both are right.
  }
}

class Speculation : public testing::Test {
 protected:
  static LoadedModel load(const std::string& folder, const BackendOptions& backend) {
    return must(load_model({.model = folder,
                            .backend = backend,
                            .limits = {.max_rows = 256, .max_logit_rows = 8},
                            .progress = {},
                            .warn = {}}));
  }
  static LoadedModel demo() {
    return load(std::string(TANDEM_MODELS) + "/tandem-demo", {.name = "auto", .threads = 2});
  }

  // Requests that exercise every rule of choosing.
  static Request random_request(Rng& rng, int n_vocab) {
    Request r;
    const int n = pick(rng, {1, 2, 5, 17, 62, 63, 64, 65, 100, 127, 128, 129, 190});
    // Text that repeats itself in part, so that lookup finds something.
    for (int i = 0; i < n; ++i) {
      r.prompt.push_back(i > 8 && rng() % 4 != 0 ? r.prompt[size_t(i - 7)]
                                                 : TokenId(rng() % unsigned(n_vocab)));
    }
    r.max_tokens = pick(rng, {1, 2, 3, 20, 33, 40});
    SamplingParams& p = r.sampling;
    p.seed = rng();
    if (rng() % 2 == 0) {
      p.temperature = 0.8f;
      if (rng() % 2 == 0) p.top_k = uniform(rng, 2, 50);
      if (rng() % 2 == 0) p.top_p = 0.9;
      if (rng() % 4 == 0) p.min_p = 0.02;
    }
    if (rng() % 3 == 0) p.repetition_penalty = 1.2f;
    if (rng() % 4 == 0) p.presence_penalty = 0.5f;
    if (rng() % 4 == 0) p.frequency_penalty = 0.3f;
    if (rng() % 4 == 0) p.logit_bias = {{TokenId(rng() % unsigned(n_vocab)), 3.0f}};
    if (rng() % 3 == 0) {
      for (int i = 0; i < n_vocab / 40; ++i) p.stop_ids.push_back(TokenId(rng() % unsigned(n_vocab)));
      if (rng() % 2 == 0) p.min_tokens = 5;
    }
    r.top_logprobs = int(rng() % 3);
    return r;
  }
  static std::vector<Request> random_batch(Rng& rng, int n_vocab) {
    std::vector<Request> batch(size_t(uniform(rng, 1, 8)));
    for (Request& r : batch) r = random_request(rng, n_vocab);
    return batch;
  }
  static LengthOptions random_length(Rng& rng, const Drafter& drafter) {
    const int kind = int(rng() % 4);
    if (kind == 0) return {.kind = LengthOptions::Kind::automatic};
    if (kind == 1) return {.kind = LengthOptions::Kind::kod};
    return {.kind = LengthOptions::Kind::fixed, .fixed = std::min(drafter.max_draft(), uniform(rng, 1, 16))};
  }
  static void expect_same(const std::vector<Output>& got, const std::vector<Output>& want,
                          const std::string& what) {
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(got[i].same_as(want[i])) << what << ", sequence " << i << " of " << want.size() << ": "
                                           << testing::PrintToString(got[i].tokens) << " " << got[i].error
                                           << "\ninstead of " << testing::PrintToString(want[i].tokens);
    }
  }
};

TEST_F(Speculation, EveryDrafterGivesTheTokensOfPlainDecoding) {
  LoadedModel model = demo();
  const int n_vocab = model.config.vocab_size;
  std::map<std::string, int> accepted;
  int n_sequences = 0;
  for (const char* name : {"dflash", "mtp", "ngram", "mtp+ngram"}) {
    const auto drafter = must(load_drafter(
        model,
        {.name = name, .folder = {}, .bits = 8, .limits = {.max_sequences = 8, .max_positions = 4096}}));
    for (int i = 0; i < kRuns / 4; ++i) {
      Rng rng{unsigned(1000 + i)};
      const std::vector<Request> batch = random_batch(rng, n_vocab);
      const std::vector<Output> plain =
          run(*model.decoder, batch, {.prefill_chunk = pick(rng, {64, 128, 256})});
      const LengthOptions length = random_length(rng, *drafter);
      const std::vector<Output> got =
          run(*model.decoder, batch,
              {.prefill_chunk = pick(rng, {64, 128, 256}),
               .drafters = {drafter.get()},
               .length = length,
               .tree_nodes = drafter->makes_trees() && i % 2 == 0 ? uniform(rng, 1, kMaxDraft) : 0});
      expect_same(got, plain, std::string(name) + ", seed " + std::to_string(1000 + i));
      if (HasFatalFailure()) return;
      for (const Output& o : got) accepted[name] += o.stats.accepted;
      n_sequences += int(batch.size());
    }
  }
  EXPECT_GE(n_sequences, 3.5 * kRuns);
  for (const auto& [name, n] : accepted)
    EXPECT_GT(n, 100) << name << " never got a draft accepted: nothing was tested";
}

TEST_F(Speculation, AHostileDrafterCostsTimeOnly) {
  LoadedModel model = demo();
  const int n_vocab = model.config.vocab_size;
  for (int i = 0; i < kRuns / 3; ++i) {
    Rng rng{unsigned(5000 + i)}, lots{unsigned(i)};
    const std::vector<Request> batch = random_batch(rng, n_vocab);
    Scripted drafter([&](const DraftRequest& r) { hostile(lots, r, n_vocab); }, i % 2 == 0,
                     i % 3 == 0 ? DraftCost::free : DraftCost::block);
    const std::vector<Output> plain = run(*model.decoder, batch, {});
    const std::vector<Output> got = run(
        *model.decoder, batch,
        {.drafters = {&drafter}, .length = random_length(rng, drafter), .tree_nodes = i % 4 == 0 ? 12 : 0});
    expect_same(got, plain, "seed " + std::to_string(5000 + i));
    if (HasFatalFailure()) return;
  }
}

// Trees whose right path lies anywhere, in batches, greedy and drawn.
TEST_F(Speculation, TreesGiveTheTokensOfPlainDecoding) {
  LoadedModel model = demo();
  const int n_vocab = model.config.vocab_size;
  int accepted = 0;
  for (int i = 0; i < kRuns / 3; ++i) {
    Rng rng{unsigned(9000 + i)}, lots{unsigned(i)};
    const std::vector<Request> batch = random_batch(rng, n_vocab);
    const std::vector<Output> plain = run(*model.decoder, batch, {});
    std::map<std::vector<TokenId>, const Output*> of_prompt;
    for (size_t s = 0; s < batch.size(); ++s) of_prompt[batch[s].prompt] = &plain[s];
    Scripted drafter(
        [&](const DraftRequest& r) {
          std::span<const TokenId> right;
          for (size_t s = 0; s < batch.size(); ++s) {
            const auto& prompt = batch[s].prompt;
            const size_t done = r.text.size() - prompt.size();
            if (r.text.size() <= prompt.size() || !std::equal(prompt.begin(), prompt.end(), r.text.begin()) ||
                done > plain[s].tokens.size()) {
              continue;
            }
            if (std::equal(r.text.begin() + int64_t(prompt.size()), r.text.end(), plain[s].tokens.begin())) {
              right = std::span(plain[s].tokens).subspan(done);
            }
          }
          tree_around(lots, r, right, n_vocab);
        },
        true);
    const std::vector<Output> got =
        run(*model.decoder, batch, {.drafters = {&drafter}, .tree_nodes = uniform(rng, 1, kMaxDraft)});
    expect_same(got, plain, "seed " + std::to_string(9000 + i));
    if (HasFatalFailure()) return;
    for (const Output& o : got) accepted += o.stats.accepted;
  }
  EXPECT_GT(accepted, 500);
}

// A drafter that is right up to a given place, for every place, with an end at every place: stop token,
// limit, nothing.
TEST_F(Speculation, AnswersEndAtTheSameTokenWhereverTheDraftsEnd) {
  LoadedModel model = demo();
  Request request;
  for (int i = 0; i < 20; ++i) request.prompt.push_back(TokenId(40 + i * 13));
  request.max_tokens = 12;
  request.sampling.temperature = 0.8f;
  request.top_logprobs = 1;
  const std::vector<Output> free_run = run(*model.decoder, {request}, {});
  const std::vector<TokenId> right = free_run[0].tokens;
  ASSERT_EQ(right.size(), 12u);
  for (int end = 1; end <= 12; ++end) {
    for (const bool by_stop : {false, true}) {
      Request cut = request;
      if (by_stop) {
        cut.sampling.stop_ids = {right[size_t(end) - 1]};
      } else {
        cut.max_tokens = end;
      }
      const std::vector<Output> plain = run(*model.decoder, {cut}, {});
      for (int n_right = 0; n_right <= 7; ++n_right) {
        Scripted drafter([&](const DraftRequest& r) {
          const size_t done = r.text.size() - request.prompt.size();
          for (int i = 0; i < r.max; ++i) {
            const size_t at = done + size_t(i);
            r.draft->push(at < right.size() && i < n_right ? right[at] : 7);
          }
        });
        const std::vector<Output> got =
            run(*model.decoder, {cut},
                {.drafters = {&drafter}, .length = {.kind = LengthOptions::Kind::fixed, .fixed = 7}});
        expect_same(got, plain, "end " + std::to_string(end) + ", " + std::to_string(n_right) + " right");
        if (HasFatalFailure()) return;
        if (!by_stop && n_right == 7) {
          EXPECT_EQ(got[0].stats.accepted, got[0].stats.drafted) << "an oracle's drafts were refused";
        }
      }
    }
  }
}

// The same on the readable backend, with random networks of every family.
TEST_F(Speculation, TinyModelsOnTheReferenceBackend) {
  for (const char* family : {"qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3", "llama"}) {
    LoadedModel model =
        load(std::string(TANDEM_TEST_DATA) + "/goldens/tiny/" + family, {.name = "reference"});
    const int n_vocab = model.config.vocab_size;
    for (int i = 0; i < 3; ++i) {
      Rng rng{unsigned(20 + i)}, lots{unsigned(i)};
      std::vector<Request> batch(2);
      for (Request& r : batch) r = random_request(rng, n_vocab);
      for (Request& r : batch) r.max_tokens = std::min(r.max_tokens, 20);
      const std::vector<Output> plain = run(*model.decoder, batch, {});
      Scripted drafter([&](const DraftRequest& r) { hostile(lots, r, n_vocab); }, i == 0);
      const auto lookup = must(load_drafter(
          model,
          {.name = "ngram", .folder = {}, .bits = 8, .limits = {.max_sequences = 2, .max_positions = 1024}}));
      for (Drafter* d : {static_cast<Drafter*>(&drafter), lookup.get()}) {
        const std::vector<Output> got = run(*model.decoder, batch,
                                            {.drafters = {d},
                                             .length = random_length(rng, *d),
                                             .tree_nodes = i == 0 && d == &drafter ? 9 : 0});
        expect_same(got, plain,
                    std::string(family) + ", " + std::string(d->name()) + ", seed " + std::to_string(20 + i));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Rejection sampling keeps the law of the text, not its tokens: pairs of tokens after a prompt, over many
// seeds, against direct draws. The drafter draws from a law of its own and says so (or drafts one token only,
// and says nothing).
TEST_F(Speculation, RejectionKeepsTheLawOfTheText) {
  LoadedModel model = load(std::string(TANDEM_TEST_DATA) + "/goldens/tiny/qwen3",
                           {.name = "cpu", .threads = 1, .isa = "auto"});
  const auto n_vocab = size_t(model.config.vocab_size);
  Request request;
  request.prompt = {5, 9, 2};
  request.max_tokens = 4;
  request.sampling.temperature = 1.0f;
  request.sampling.top_k = 3;  // few tokens: each pair is seen often
  constexpr int kSeeds = 6000, kBatch = 8;
  const auto count = [&](const EngineOptions& options, uint64_t first_seed) {
    std::map<std::vector<TokenId>, double> pairs;
    for (int i = 0; i < kSeeds; i += kBatch) {
      std::vector<Request> batch(kBatch, request);
      for (int j = 0; j < kBatch; ++j) batch[size_t(j)].sampling.seed = first_seed + uint64_t(i + j);
      for (const Output& out : run(*model.decoder, batch, options)) ++pairs[{out.tokens[2], out.tokens[3]}];
    }
    return pairs;
  };
  const auto direct = count({}, 0);
  std::vector<TokenId> likely;
  for (const auto& [pair, n] : direct) likely.push_back(pair[0]);
  for (const bool says_q : {false, true}) {
    Rng lots{17};
    Scripted drafter([&](const DraftRequest& r) {
      for (int i = 0; i < r.max; ++i) {
        // Uniform over the tokens that are seen, drawn without a look at the target.
        r.draft->push(says_q ? likely[lots() % likely.size()] : likely[size_t(i) % likely.size()]);
        if (!says_q) continue;
        r.draft->q.resize(size_t(i + 1) * n_vocab);
        for (const TokenId t : likely)
          r.draft->q[size_t(i) * n_vocab + size_t(t)] += 1.0f / float(likely.size());
      }
    });
    const auto got = count({.drafters = {&drafter},
                            .length = {.kind = LengthOptions::Kind::fixed, .fixed = 3},
                            .accept = {.mode = AcceptMode::rejection}},
                           1000000);
    double chi = 0;
    int cells = 0;
    for (const auto& [pair, n] : direct) {
      const double m = got.contains(pair) ? got.at(pair) : 0;
      if (n + m < 20) continue;
      chi += (n - m) * (n - m) / (n + m);  // two samples of one size
      ++cells;
    }
    ASSERT_GT(cells, 5);
    // p = 0.001 of chi-square with cells - 1 degrees, by Wilson and Hilferty.
    const double k = cells - 1, h = 2.0 / (9 * k);
    EXPECT_LT(chi, k * std::pow(1 - h + 3.09 * std::sqrt(h), 3))
        << cells << " pairs, the drafter says q: " << says_q;
  }
}

// One slot, one request after another of other lengths: nothing of the one before is left in the drafters.
TEST_F(Speculation, ASlotForgetsItsLastSequence) {
  LoadedModel model = demo();
  for (const char* name : {"dflash", "mtp", "ngram"}) {
    const auto drafter = must(load_drafter(
        model,
        {.name = name, .folder = {}, .bits = 8, .limits = {.max_sequences = 1, .max_positions = 512}}));
    const LengthOptions length{.kind = LengthOptions::Kind::fixed, .fixed = 4};
    Rng rng{77};
    std::vector<Request> requests(4);
    for (Request& r : requests) r = random_request(rng, model.config.vocab_size);
    std::vector<SpeculationStats> fresh;
    for (const Request& r : requests) {
      const auto own = must(load_drafter(
          model,
          {.name = name, .folder = {}, .bits = 8, .limits = {.max_sequences = 1, .max_positions = 512}}));
      fresh.push_back(run(*model.decoder, {r}, {.drafters = {own.get()}, .length = length})[0].stats);
    }
    const auto engine = must(Engine::create(
        *model.decoder,
        {.max_sequences = 1, .max_positions = 512, .drafters = {drafter.get()}, .length = length}));
    for (size_t i = 0; i < requests.size(); ++i) {
      const int number = must(engine->submit(requests[i]));
      engine->run([](const Event&) {});
      EXPECT_EQ(engine->stats(number).speculation.accepted, fresh[i].accepted) << name << " request " << i;
    }
  }
}

}  // namespace
}  // namespace tandem
