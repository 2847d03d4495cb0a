// A target whose steps MTP drafters watch, for their tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>

#include "golden/model_under_test.h"
#include "speculate/mtp_drafter.h"

namespace tandem {

using Rng = std::mt19937;
inline int uniform(Rng& rng, int low, int high) { return low + int(rng() % unsigned(high - low + 1)); }

inline std::vector<TokenId> random_tokens(Rng& rng, int n, int n_vocab) {
  std::vector<TokenId> ids;
  for (int i = 0; i < n; ++i) ids.push_back(TokenId(rng() % unsigned(n_vocab)));
  return ids;
}

// Bit for bit: tokens, and the distributions that they were drawn from.
inline bool same(const Draft& a, const Draft& b) {
  return a.n == b.n && std::equal(a.tokens.begin(), a.tokens.begin() + a.n, b.tokens.begin()) &&
         a.q.size() == b.q.size() && std::equal(a.q.begin(), a.q.end(), b.q.begin(), [](float x, float y) {
           return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
         });
}

inline double distance(const Draft& a, const Draft& b) {
  double most = 0;
  for (size_t i = 0; i < a.q.size(); ++i) most = std::max(most, std::abs(double(a.q[i]) - double(b.q[i])));
  return most;
}

inline std::string text_of(const Draft& d) {
  return testing::PrintToString(std::vector<TokenId>(d.tokens.begin(), d.tokens.begin() + d.n));
}

// A target whose steps any number of drafters watch.
class Target {
 public:
  static constexpr int kSequences = 4, kPositions = 512;

  explicit Target(const std::string& folder, std::unique_ptr<Backend> backend, int max_rows = 64)
      : folder_(folder),
        model_(folder, std::move(backend), {.max_rows = max_rows, .max_logit_rows = 8}),
        pool_(model_.make_pool(kSequences, kSequences * kPositions)) {
    sampling_.temperature = 0.8f;  // so that drafts come with their distributions
    sampling_.seed = 3;
  }

  int n_vocab() const { return model_.n_vocab(); }
  const std::vector<TokenId>& text(int i) const { return sequences_[size_t(i)].text; }

  // draft_ids: a draft vocabulary, or empty.
  std::unique_ptr<MtpDrafter> drafter(const MtpOptions& options = {}, std::vector<TokenId> draft_ids = {}) {
    const ModelConfig config = value_or_throw(load_model_config(folder_));
    const Checkpoint checkpoint = value_or_throw(Checkpoint::open(folder_));
    CheckpointSource of_model = value_or_throw(CheckpointSource::create(checkpoint, config, nullptr));
    CheckpointSource source = value_or_throw(of_model.mtp_head());
    std::shared_ptr<const Weight> draft_head;
    if (!draft_ids.empty()) {
      const SourceMatrix whole = value_or_throw(of_model.matrix(
          config.tied_embeddings ? "embed_tokens" : "lm_head", config.vocab_size, config.d_model));
      std::vector<RowRun> runs;
      for (const TokenId id : draft_ids) runs.push_back({&whole.matrix, id, 1});
      draft_head = value_or_throw(model_.backend().pack({.name = "draft head", .rows = runs}));
    }
    DecoderLimits limits = model_.decoder().limits();
    limits.max_rows += 2 * kMaxDecodeRows;
    auto head = value_or_throw(
        MtpHead::load(source, config, model_.decoder(), limits, options, std::move(draft_head)));
    return value_or_throw(MtpDrafter::create(
        std::move(head), model_.decoder(),
        {.max_sequences = kSequences, .max_positions = kSequences * kPositions}, std::move(draft_ids)));
  }

  // A sequence for all `watching`, in the slot of its number.
  int begin(std::vector<TokenId> prompt, std::span<MtpDrafter* const> watching) {
    const int i = int(sequences_.size());
    sequences_.push_back({value_or_throw(SequenceState::create(pool_)), std::move(prompt)});
    for (MtpDrafter* d : watching) watch(i, *d, sampling_, 0);
    return i;
  }
  // The sequence just begun, for one more drafter.
  void watch(int i, MtpDrafter& drafter, const SamplingParams& sampling, int n_tokens, bool wants_q = true) {
    ok_or_throw(drafter.begin(
        i, {.prompt = text(i), .sampling = &sampling, .n_tokens = n_tokens, .wants_q = wants_q}));
  }

  void end(int i, std::span<MtpDrafter* const> watching) {
    for (MtpDrafter* d : watching) d->end(i);
    ASSERT_EQ(size_t(i) + 1, sequences_.size());
    sequences_.pop_back();
  }

  // Feeds the prompt in steps of at most `chunk` rows and chooses the first token.
  void prefill(int i, int chunk, std::span<MtpDrafter* const> watching) {
    Sequence& s = sequences_[size_t(i)];
    const int total = int(s.text.size());
    while (s.state.length() < total) {
      const int start = s.state.length();
      const int n = std::min(total, (start + chunk) / kChunkTokens * kChunkTokens) - start;
      ok_or_throw(s.state.begin_prefill(n));
      const SeqStep seq = s.state.rows(0);
      model_.decoder().forward({.path = Path::prefill, .n_rows = n, .seqs = {&seq, 1}},
                               std::span(s.text).subspan(size_t(start), size_t(n)), pool_);
      s.state.end_prefill();
      observe(i, start, n, watching);
      if (start + n == total) s.text.push_back(argmax(model_.decoder().logits(n - 1, 1)));
    }
  }

  // A round: verifies `draft`, keeps its first n_kept tokens whatever the target says, and takes the target's
  // token after them.
  void round(int i, std::span<const TokenId> draft, int n_kept, std::span<MtpDrafter* const> watching) {
    Sequence& s = sequences_[size_t(i)];
    std::vector<TokenId> ids = {s.text.back()};
    ids.insert(ids.end(), draft.begin(), draft.end());
    const int start = s.state.length();
    ok_or_throw(s.state.begin_verify(int(ids.size())));
    const SeqStep seq = s.state.rows(0);
    model_.decoder().forward({.n_rows = int(ids.size()), .seqs = {&seq, 1}}, ids, pool_);
    s.state.commit(1 + n_kept);
    s.text.insert(s.text.end(), draft.begin(), draft.begin() + n_kept);
    s.text.push_back(argmax(model_.decoder().logits(n_kept, 1)));
    observe(i, start, 1 + n_kept, watching);
  }

  Draft propose(MtpDrafter& drafter, int i, int most) const {
    Draft draft;
    const DraftRequest request{.slot = i, .max = most, .text = text(i), .draft = &draft};
    drafter.propose({&request, 1});
    return draft;
  }

 private:
  struct Sequence {
    SequenceState state;
    std::vector<TokenId> text;
  };

  void observe(int i, int start, int n, std::span<MtpDrafter* const> watching) {
    std::vector<int32_t> rows(static_cast<size_t>(n));
    std::iota(rows.begin(), rows.end(), 0);
    const Observation seen{.slot = i, .start = start, .rows = rows, .text = text(i)};
    for (MtpDrafter* d : watching) d->observe({&seen, 1});
  }

  std::string folder_;
  ModelUnderTest model_;
  StatePool pool_;
  SamplingParams sampling_;
  std::vector<Sequence> sequences_;
};

}  // namespace tandem
