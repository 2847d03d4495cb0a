// The promise that makes speculation lossless, on whole models: a token's logits and state depend on its own
// sequence alone, bit for bit, never on who shares the step, on how many rows a step has or whether they are
// a tree of drafts, on where a prompt was cut, or on threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "golden/model_under_test.h"
#include "support/backends.h"

namespace tandem {
namespace {

struct Case {
  std::string model;
  BackendOptions backend;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::string tiny = std::string(TANDEM_TEST_DATA) + "/goldens/tiny/";
  for (const char* family : {"qwen3_5", "qwen3_5_moe"}) all.push_back({tiny + family, {.name = "reference"}});
  for (const BackendOptions& fast : fast_backends()) {
    for (const char* family : {"qwen3_5", "qwen3_5_moe", "qwen3"}) all.push_back({tiny + family, fast});
    all.push_back({std::string(TANDEM_MODELS) + "/tandem-demo", fast});
  }
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const std::string& m = info.param.model;
  std::string name =
      m.substr(m.rfind('/') + 1) + "_" + info.param.backend.name + "_" + info.param.backend.isa;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// SeqStep::parents of a random tree, anything from a chain to a star.
std::vector<int8_t> random_tree(std::mt19937& rng, int n) {
  constexpr unsigned kStepsUp[] = {0, 1, 1, 3, 100};  // at most, from the row before
  const unsigned steps_up = kStepsUp[rng() % 5];
  std::vector<int8_t> parents = {-1};
  for (int i = 1; i < n; ++i) {
    int parent = i - 1;
    for (unsigned up = rng() % (steps_up + 1); up > 0 && parent > 0; --up) parent = parents[size_t(parent)];
    parents.push_back(int8_t(parent));
  }
  return parents;
}

std::vector<int> path_to(const std::vector<int8_t>& parents, int row) {
  std::vector<int> path;
  for (; row >= 0; row = parents[size_t(row)]) path.insert(path.begin(), row);
  return path;
}

class RowIndependence : public testing::TestWithParam<Case> {
 protected:
  RowIndependence() : model_(GetParam().model, GetParam().backend, {.max_rows = 256, .max_logit_rows = 32}) {}

  std::vector<TokenId> tokens(int n, int seed) const {
    std::mt19937 rng{unsigned(seed)};
    std::vector<TokenId> ids;
    for (int i = 0; i < n; ++i) ids.push_back(TokenId(rng() % unsigned(model_n_vocab_)));
    return ids;
  }

  // Logits of plain decoding, one row a step.
  std::vector<float> plain(std::span<const TokenId> prompt, std::span<const TokenId> then) {
    StatePool pool = model_.make_pool(1, int(prompt.size() + then.size()));
    SequenceState state = value_or_throw(SequenceState::create(pool));
    model_.prefill(pool, state, prompt);
    std::vector<float> all;
    for (size_t i = 0; i < then.size(); ++i) {
      const std::vector<float> row = model_.verify(pool, state, then.subspan(i, 1), 1);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  // Logits of all rows of a tree, of which the path `keep` is committed.
  std::vector<float> verify_tree(StatePool& pool, SequenceState& state, std::span<const TokenId> ids,
                                 std::span<const int8_t> parents, std::span<const int> keep) {
    ok_or_throw(state.begin_verify(parents));
    const SeqStep seq = state.rows(0);
    model_.decoder().forward({.path = Path::decode, .n_rows = int(ids.size()), .seqs = std::span(&seq, 1)},
                             ids, pool);
    state.commit(keep);
    std::vector<float> logits;
    model_.append_logits(int(ids.size()), logits);
    return logits;
  }

  // What the slot of a sequence holds: the state and the window of every recurrent layer.
  std::vector<float> recurrent_state(const StatePool& pool, const SequenceState& state) {
    const DeltaShape& d = pool.shape().delta;
    std::vector<float> all;
    const auto add = [&](const float* device, size_t n) {
      all.resize(all.size() + n);
      model_.backend().copy_out(std::as_writable_bytes(std::span(all).last(n)),
                                reinterpret_cast<const std::byte*>(device + size_t(state.slot()) * n));
    };
    for (int i = 0; i < pool.shape().n_delta_layers; ++i) {
      add(pool.delta(i).s, size_t(d.value_dim()) * size_t(d.d_k));
      add(pool.delta(i).conv, size_t(kConvTaps - 1) * size_t(d.conv_dim()));
    }
    return all;
  }

  std::span<const float> row(const std::vector<float>& logits, int r) const {
    return std::span(logits).subspan(size_t(r) * size_t(model_n_vocab_), size_t(model_n_vocab_));
  }

  void expect_same_bits(std::span<const float> a, std::span<const float> b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0) << what;
  }

  ModelUnderTest model_;
  int model_n_vocab_ = model_.n_vocab();
};

TEST_P(RowIndependence, VerifyStepsOfAnyLengthEqualPlainSteps) {
  const std::vector<TokenId> prompt = tokens(70, 1), then = tokens(32, 2);
  const std::vector<float> want = plain(prompt, then);
  for (const int rows : {2, 3, 8, 17, 32}) {
    StatePool pool = model_.make_pool(1, 102);
    SequenceState state = value_or_throw(SequenceState::create(pool));
    model_.prefill(pool, state, prompt);
    std::vector<float> got;
    for (size_t done = 0; done < then.size();) {
      const int n = std::min(rows, int(then.size() - done));
      const std::vector<float> part = model_.verify(pool, state, std::span(then).subspan(done, size_t(n)), n);
      got.insert(got.end(), part.begin(), part.end());
      done += size_t(n);
    }
    expect_same_bits(got, want, "steps of " + std::to_string(rows) + " rows");
  }
}

TEST_P(RowIndependence, RejectedRowsLeaveNoTrace) {
  const std::vector<TokenId> prompt = tokens(65, 3), then = tokens(24, 4);
  const std::vector<float> want = plain(prompt, then);
  std::mt19937 rng(5);
  StatePool pool = model_.make_pool(1, 200);
  SequenceState state = value_or_throw(SequenceState::create(pool));
  model_.prefill(pool, state, prompt);
  std::vector<float> got;
  const auto v = size_t(model_.n_vocab());
  for (size_t done = 0; done < then.size();) {
    const int right =
        std::min(int(rng() % 5), int(then.size() - done));  // rows that will be kept; none is legal
    std::vector<TokenId> draft(then.begin() + int64_t(done), then.begin() + int64_t(done) + right);
    const std::vector<TokenId> wrong = tokens(1 + int(rng() % 6), int(rng()));
    draft.insert(draft.end(), wrong.begin(), wrong.end());
    const std::vector<float> logits = model_.verify(pool, state, draft, right);
    got.insert(got.end(), logits.begin(), logits.begin() + int64_t(size_t(right) * v));
    done += size_t(right);
  }
  expect_same_bits(got, want, "with rejected drafts in between");
}

TEST_P(RowIndependence, EveryPathOfATreeEqualsTheChainAndPlainSteps) {
  std::mt19937 rng(70);
  for (const int n : {2, 3, 9, 32}) {
    const std::vector<TokenId> prompt = tokens(40 + int(rng() % 50), n), ids = tokens(n, 100 + n);
    const std::vector<int8_t> parents = random_tree(rng, n);
    StatePool pool = model_.make_pool(1, 130);
    SequenceState state = value_or_throw(SequenceState::create(pool));
    model_.prefill(pool, state, prompt);
    const std::vector<float> got = verify_tree(pool, state, ids, parents, {});
    for (int leaf = 0; leaf < n; ++leaf) {
      if (std::count(parents.begin(), parents.end(), int8_t(leaf)) > 0) continue;
      const std::vector<int> path = path_to(parents, leaf);
      std::vector<TokenId> chain;
      for (const int r : path) chain.push_back(ids[size_t(r)]);
      const std::vector<float> want =
          leaf + 1 < n ? model_.verify(pool, state, chain, 0) : plain(prompt, chain);
      for (size_t i = 0; i < path.size(); ++i) {
        expect_same_bits(row(got, path[i]), row(want, int(i)),
                         "row " + std::to_string(path[i]) + " of " + std::to_string(n));
      }
    }
  }
}

TEST_P(RowIndependence, RoundsOfCommittedPathsEqualPlainSteps) {
  const BackendOptions& backend = GetParam().backend;
  const bool fast = backend.isa.rfind("avx", 0) == 0 && GetParam().model.find("/tiny/") != std::string::npos;
  const int rounds = fast ? 300 : 12;
  std::mt19937 rng(71);
  StatePool pool = model_.make_pool(1, 3000), plain_pool = model_.make_pool(1, 3000);
  SequenceState state = value_or_throw(SequenceState::create(pool)),
                plain_state = value_or_throw(SequenceState::create(plain_pool));
  const std::vector<TokenId> prompt = tokens(50, 72);
  model_.prefill(pool, state, prompt);
  model_.prefill(plain_pool, plain_state, prompt);
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    const int n = 1 + int(rng() % 32);
    const std::vector<TokenId> ids = tokens(n, 1000 + round);
    const std::vector<int8_t> parents = random_tree(rng, n);
    std::vector<int> keep = path_to(parents, int(rng() % unsigned(n)));
    keep.resize(std::min(keep.size(), size_t(rng() % 9)));  // none is legal
    const std::vector<float> got = verify_tree(pool, state, ids, parents, keep);
    for (const int r : keep) {
      const std::vector<float> want =
          model_.verify(plain_pool, plain_state, std::span(&ids[size_t(r)], 1), 1);
      expect_same_bits(row(got, r), want, "round " + std::to_string(round) + ", row " + std::to_string(r));
    }
    ASSERT_EQ(state.length(), plain_state.length());
    if (round % 10 != 9) continue;
    state.flush();
    plain_state.flush();
    expect_same_bits(recurrent_state(pool, state), recurrent_state(plain_pool, plain_state),
                     "state after round " + std::to_string(round));
  }
}

TEST_P(RowIndependence, ABatchOfEightEqualsEachAlone) {
  constexpr int kSequences = 8, kSteps = 4;
  std::vector<std::vector<TokenId>> prompts, thens;
  StatePool pool = model_.make_pool(kSequences, 8 * 200);
  std::vector<SequenceState> states;
  for (int i = 0; i < kSequences; ++i) {
    prompts.push_back(tokens(5 + 29 * i, 10 + i));
    thens.push_back(tokens(kSteps * (1 + i % 3), 30 + i));
    states.push_back(value_or_throw(SequenceState::create(pool)));
    model_.prefill(pool, states.back(), prompts.back());
  }
  std::vector<std::vector<float>> got(kSequences);
  const auto v = size_t(model_.n_vocab());
  for (int step = 0; step < kSteps; ++step) {  // ragged: sequence i has 1 + i % 3 rows a step
    std::vector<SeqStep> seqs;
    std::vector<TokenId> ids;
    for (int i = 0; i < kSequences; ++i) {
      const int n = 1 + i % 3;
      ok_or_throw(states[size_t(i)].begin_verify(n));
      seqs.push_back(states[size_t(i)].rows(int(ids.size())));
      ids.insert(ids.end(), thens[size_t(i)].begin() + step * n, thens[size_t(i)].begin() + (step + 1) * n);
    }
    model_.decoder().forward({.path = Path::decode, .n_rows = int(ids.size()), .seqs = seqs}, ids, pool);
    std::vector<float> logits;
    model_.append_logits(int(ids.size()), logits);
    for (int i = 0, row = 0; i < kSequences; ++i) {
      const int n = 1 + i % 3;
      states[size_t(i)].commit(n);
      got[size_t(i)].insert(got[size_t(i)].end(), logits.begin() + int64_t(size_t(row) * v),
                            logits.begin() + int64_t(size_t(row + n) * v));
      row += n;
    }
  }
  for (int i = 0; i < kSequences; ++i) {
    expect_same_bits(got[size_t(i)], plain(prompts[size_t(i)], thens[size_t(i)]),
                     "sequence " + std::to_string(i));
  }
}

TEST_P(RowIndependence, WhereAPromptIsCutChangesNothing) {
  const std::vector<TokenId> prompt = tokens(250, 50), then = tokens(3, 51);
  std::vector<float> want_prompt, want;
  for (const int chunk : {256, 64, 128, 192}) {
    StatePool pool = model_.make_pool(1, 260);
    SequenceState state = value_or_throw(SequenceState::create(pool));
    std::vector<float> of_prompt;
    model_.prefill(pool, state, prompt, chunk, &of_prompt);
    const std::vector<float> after = model_.verify(pool, state, then, 3);
    if (chunk == 256) {
      want_prompt = of_prompt;
      want = after;
      continue;
    }
    expect_same_bits(of_prompt, want_prompt, "prompt logits, chunks of " + std::to_string(chunk));
    expect_same_bits(after, want, "decode after chunks of " + std::to_string(chunk));
  }
}

TEST_P(RowIndependence, ThreadsChangeNothing) {
  if (GetParam().backend.name == "reference") return;  // has one thread
  const std::vector<TokenId> prompt = tokens(130, 60), then = tokens(5, 61);
  const std::vector<float> want = plain(prompt, then);
  for (const int threads : {1, 3}) {
    BackendOptions options = GetParam().backend;
    options.threads = threads;
    ModelUnderTest other(GetParam().model, options, {.max_rows = 256, .max_logit_rows = 32});
    std::swap(other, model_);
    expect_same_bits(plain(prompt, then), want, std::to_string(threads) + " threads");
    std::swap(other, model_);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RowIndependence, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace tandem
