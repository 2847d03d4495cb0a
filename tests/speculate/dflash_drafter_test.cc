// The DFlash drafter from a target's hidden states to drafts: DFlash 2's against its definition in double,
// and what does not matter to a draft.
#include "speculate/dflash_drafter.h"

#include <gtest/gtest.h>

#include "model/tiny_dflash.h"

namespace tandem {
namespace {

constexpr DecoderLimits kLimits{.max_rows = 128, .max_logit_rows = 32};

// A target with prompts run through it and a drafter that has observed them.
class Drafting {
 public:
  Drafting(const TinyDrafter& d, const nlohmann::json& config, const DecoderLimits& drafter_limits = kLimits)
      : target_tensors_(write_tiny_target(target_folder_)),
        drafter_tensors_(tiny_drafter_tensors(d)),
        target_(target_folder_.path(), {.name = "reference"}, kLimits),
        oracle_(d, drafter_tensors_, target_tensors_) {
    drafter_tensors_.builder().write(drafter_folder_, config.dump());
    auto network =
        value_or_throw(load_tiny_drafter(drafter_folder_.path(), target_.decoder(), drafter_limits));
    drafter_ = value_or_throw(DflashDrafter::create(std::move(network), target_.decoder(),
                                                    {.max_sequences = 4, .max_positions = 512}));
    pool_.emplace(target_.make_pool(4, 512));
  }
  explicit Drafting(const TinyDrafter& d, const DecoderLimits& drafter_limits = kLimits)
      : Drafting(d, tiny_drafter_config(d), drafter_limits) {}

  // Prefills a prompt of n random tokens; the anchor behind it is random too.
  void add(int n, const SamplingParams& sampling = {}, bool wants_q = false, int n_tokens = 0) {
    const int slot = int(texts_.size());
    std::vector<TokenId>& text = texts_.emplace_back();
    for (int i = 0; i <= n; ++i) text.push_back(TokenId(rng_() % 60));
    const auto prompt = std::span(text).first(size_t(n));
    SequenceState state = value_or_throw(SequenceState::create(*pool_));
    target_.prefill(*pool_, state, prompt);
    const View features = target_.decoder().features();
    auto& kept = features_.emplace_back();
    std::vector<int32_t> rows;
    for (int r = 0; r < n; ++r) {
      const float* row = static_cast<const float*>(features.data) + r * features.stride;
      kept.emplace_back(row, row + features.cols);
      rows.push_back(r);
    }
    ok_or_throw(drafter_->begin(
        slot, {.prompt = prompt, .sampling = &sampling, .n_tokens = n_tokens, .wants_q = wants_q}));
    const Observation seen{.slot = slot, .start = 0, .rows = rows, .text = prompt};
    drafter_->observe({&seen, 1});
  }

  std::vector<Draft> propose(int max, int tree_nodes = 0) {
    std::vector<Draft> drafts(texts_.size());
    std::vector<DraftRequest> requests;
    for (size_t i = 0; i < texts_.size(); ++i) {
      requests.push_back(
          {.slot = int(i), .max = max, .tree_nodes = tree_nodes, .text = texts_[i], .draft = &drafts[i]});
    }
    drafter_->propose(requests);
    return drafts;
  }

  DflashDrafter& drafter() { return *drafter_; }
  const std::vector<TokenId>& text(size_t i) const { return texts_[i]; }
  DflashOracle::Rows hidden(const TinyDrafter& d, size_t i) const {
    std::vector<TokenId> block(size_t(d.block), TokenId(d.sizes.vocab - 1));
    block[0] = texts_[i].back();
    return oracle_.hidden(features_[i], block);
  }
  const DflashOracle& oracle() const { return oracle_; }

 private:
  std::mt19937 rng_{9};
  TempFolder target_folder_, drafter_folder_;
  TinyTensors target_tensors_, drafter_tensors_;
  ModelUnderTest target_;
  DflashOracle oracle_;
  std::unique_ptr<DflashDrafter> drafter_;
  std::optional<StatePool> pool_;
  std::vector<std::vector<TokenId>> texts_;
  std::vector<std::vector<std::vector<float>>> features_;
};

std::vector<TokenId> tokens(const Draft& d) { return {d.tokens.begin(), d.tokens.begin() + d.n}; }

// The greedy walk over the best `top_k` of the first n_tokens ids, in double.
std::vector<TokenId> greedy_walk(const Drafting& run, const TinyDrafter& d, size_t sequence,
                                 int n_tokens = 64) {
  const auto hidden = run.hidden(d, sequence);
  const auto logits = run.oracle().logits(hidden);
  std::vector<TokenId> path;
  TokenId before = run.text(sequence).back();
  for (int slot = d.sample_from_anchor ? 0 : 1; slot < d.block; ++slot) {
    const std::vector<double>& u = logits[size_t(slot)];
    std::vector<TokenId> ids(size_t(n_tokens), 0);
    for (int i = 0; i < n_tokens; ++i) ids[size_t(i)] = i;
    std::sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return u[size_t(a)] > u[size_t(b)]; });
    ids.resize(size_t(std::min(d.top_k, n_tokens)));
    const auto score = [&](TokenId b) {
      return run.oracle().score(hidden[size_t(slot)], u[size_t(b)], before, b);
    };
    before =
        *std::max_element(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return score(a) < score(b); });
    path.push_back(before);
  }
  return path;
}

TEST(DflashDrafter, Dflash2DraftsWhatItsDefinitionSays) {
  for (const TinyDrafter& d : {TinyDrafter{.block = 8, .windows = {20, 20, 20}, .is_causal = false},
                               TinyDrafter{.block = 5, .top_k = 4, .sample_from_anchor = true},
                               TinyDrafter{.block = 16, .top_k = 64, .prefix = "model."}}) {
    Drafting run(d);
    for (const int n : {5, 40, 100}) run.add(n);
    const std::vector<Draft> drafts = run.propose(kMaxDraft);
    int unlike_argmax = 0;
    for (size_t i = 0; i < drafts.size(); ++i) {
      const std::vector<TokenId> want = greedy_walk(run, d, i);
      EXPECT_EQ(tokens(drafts[i]), want) << "block of " << d.block << ", sequence " << i;
      EXPECT_EQ(int(want.size()), run.drafter().max_draft());
      EXPECT_TRUE(drafts[i].is_chain() && drafts[i].q.empty());
      unlike_argmax += tokens(drafts[i]) != greedy_walk(
                                                run,
                                                [&] {
                                                  TinyDrafter alone = d;
                                                  alone.top_k = 1;
                                                  return alone;
                                                }(),
                                                i);
    }
    EXPECT_GT(unlike_argmax, 0) << "the selector changed nothing: nothing was tested";
  }
}

// The most probable prefixes of a block by the selector's probabilities, each given the token before, in
// double.
TEST(DflashDrafter, TreesHoldTheMostProbablePrefixesOfTheSelector) {
  const TinyDrafter d{.block = 8};
  for (const int max_logit_rows : {32, 5}) {
    Drafting run(d, DecoderLimits{.max_rows = 128, .max_logit_rows = max_logit_rows});
    for (const int n : {5, 40}) run.add(n);
    const std::vector<Draft> drafts = run.propose(7, 20);
    for (size_t i = 0; i < drafts.size(); ++i) {
      const auto hidden = run.hidden(d, i), logits = run.oracle().logits(hidden);
      using Prefix = std::pair<double, std::vector<TokenId>>;
      std::vector<Prefix> open{{0.0, {}}}, want;
      while (want.size() < 20) {
        const auto best = std::max_element(open.begin(), open.end());
        const Prefix prefix = *best;
        open.erase(best);
        if (!prefix.second.empty()) want.push_back(prefix);
        if (prefix.second.size() == 7) continue;
        const size_t slot = prefix.second.size() + 1;
        const TokenId before = prefix.second.empty() ? run.text(i).back() : prefix.second.back();
        std::vector<TokenId> ids(64);
        for (int id = 0; id < 64; ++id) ids[size_t(id)] = id;
        const std::vector<double>& u = logits[slot];
        std::sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return u[size_t(a)] > u[size_t(b)]; });
        ids.resize(16);
        double total = 0;
        const auto score = [&](TokenId b) {
          return run.oracle().score(hidden[slot], u[size_t(b)], before, b);
        };
        for (const TokenId b : ids) total += std::exp(score(b));
        for (const TokenId b : ids) {
          Prefix longer{prefix.first + score(b) - std::log(total), prefix.second};
          longer.second.push_back(b);
          open.push_back(std::move(longer));
        }
      }
      std::vector<std::vector<TokenId>> paths, wanted;
      for (int node = 0; node < drafts[i].n; ++node) {
        std::vector<TokenId> path;
        for (int at = node; at >= 0; at = drafts[i].parents[size_t(at)]) {
          path.insert(path.begin(), drafts[i].tokens[size_t(at)]);
        }
        paths.push_back(path);
      }
      for (const Prefix& p : want) wanted.push_back(p.second);
      std::sort(paths.begin(), paths.end());
      std::sort(wanted.begin(), wanted.end());
      EXPECT_EQ(paths, wanted) << "sequence " << i << ", " << max_logit_rows << " rows of logits a call";
    }
  }
}

TEST(DflashDrafter, TokensWithoutTextAreNeverDrafted) {
  const TinyDrafter d{.block = 16};
  for (const int n_tokens : {50, 10, 1}) {
    Drafting run(d);
    run.add(30, {}, false, n_tokens);
    EXPECT_EQ(tokens(run.propose(kMaxDraft)[0]), greedy_walk(run, d, 0, n_tokens));
  }
}

// q is what each token was drawn from: at most top_k tokens, sum one; greedy drafts need none.
TEST(DflashDrafter, SaysWhatSampledDraftsWereDrawnFrom) {
  const TinyDrafter d{.block = 8};
  for (const int n_tokens : {0, 50}) {
    Drafting run(d);
    run.add(20, {.temperature = 0.8f, .seed = 3}, true, n_tokens);
    run.add(35, {.temperature = 1.5f, .seed = 4}, true, n_tokens);
    const size_t n_vocab = n_tokens > 0 ? 50 : 64;
    for (const Draft& draft : run.propose(kMaxDraft)) {
      ASSERT_EQ(draft.n, 7);
      ASSERT_EQ(draft.q.size(), 7 * n_vocab);
      for (size_t j = 0; j < 7; ++j) {
        const auto q = std::span(draft.q).subspan(j * n_vocab, n_vocab);
        double sum = 0;
        int support = 0;
        for (const float x : q) {
          sum += x;
          support += x > 0;
        }
        EXPECT_NEAR(sum, 1, 16 * 0x1p-24);
        EXPECT_EQ(support, 16);
        EXPECT_GT(q[size_t(draft.tokens[j])], 0);
      }
    }
  }
}

// Neither company, nor how rows of logits are cut into calls, nor the length wanted changes a draft.
TEST(DflashDrafter, ADraftIsItsOwn) {
  const TinyDrafter d{.block = 8, .windows = {0, 9, 0}};
  const SamplingParams drawn{.temperature = 0.9f, .top_p = 0.95, .seed = 77};
  for (const SamplingParams& sampling : {SamplingParams{}, drawn}) {
    Drafting all(d);
    for (const int n : {5, 40, 70}) all.add(n, sampling, true);
    const std::vector<Draft> want = all.propose(7);
    for (const int rows : {1, 2, 3, 5, 8}) {
      Drafting cut(d, DecoderLimits{.max_rows = 128, .max_logit_rows = rows});
      for (const int n : {5, 40, 70}) cut.add(n, sampling, true);
      const std::vector<Draft> got = cut.propose(7), three = cut.propose(3);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(tokens(got[i]), tokens(want[i])) << rows << " rows of logits a call";
        EXPECT_EQ(got[i].q, want[i].q);
        std::vector<TokenId> first = tokens(want[i]);
        first.resize(3);
        EXPECT_EQ(tokens(three[i]), first);
      }
    }
    Drafting alone(d);
    alone.add(5, sampling, true);
    EXPECT_EQ(tokens(alone.propose(7)[0]), tokens(want[0]));
  }
}

// A multiplier of a half at temperature 1 is temperature 2: a power of two, so to the bit.
TEST(DflashDrafter, TheFirstDflashScalesItsLogitsToo) {
  const TinyDrafter d{.second = false, .block = 16};
  nlohmann::json config = tiny_drafter_config(d);
  config["dflash_config"]["output_multiplier"] = 0.5;
  Drafting scaled(d, config), plain(d);
  scaled.add(30, {.temperature = 1, .seed = 5});
  plain.add(30, {.temperature = 2, .seed = 5});
  EXPECT_EQ(tokens(scaled.propose(15)[0]), tokens(plain.propose(15)[0]));
  Drafting other(d);
  other.add(30, {.temperature = 1, .seed = 5});
  EXPECT_NE(tokens(other.propose(15)[0]), tokens(plain.propose(15)[0])) << "the scale changed nothing";
}

}  // namespace
}  // namespace tandem
