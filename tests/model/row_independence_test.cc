// The promise that makes speculation lossless, on whole models: a token's logits and state depend on its own
// sequence alone, bit for bit, never on who shares the step, on how many rows a step has, on where a prompt
// was cut, or on threads.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "golden/model_under_test.h"

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
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    const BackendOptions cpu{.name = "cpu", .threads = 2, .isa = isa};
    if (!make_backend(cpu).ok()) continue;
    for (const char* family : {"qwen3_5", "qwen3_5_moe", "qwen3"}) all.push_back({tiny + family, cpu});
    all.push_back({std::string(TANDEM_MODELS) + "/tandem-demo", cpu});
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
