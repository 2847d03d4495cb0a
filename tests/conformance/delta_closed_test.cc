// The closed form of verify steps (DeltaForm::closed): near the recurrence and near plain decoding, within
// derived bounds; and what it keeps bit for bit.
#include "conformance/delta_estimate.h"
#include "conformance/delta_sequence.h"
#include "conformance/harness.h"
#include "conformance/stack.h"

namespace tandem::conformance {
namespace {

class ClosedForm : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam()), exact_ = make(exact_form(GetParam()));
};

TEST_P(ClosedForm, NamesItsClass) {
  EXPECT_NE(backend_->description().find(", closed form"), std::string::npos);
  EXPECT_EQ(exact_->description().find(", closed form"), std::string::npos);
}

// Decays down to exp(-70) a token, tokens that change nothing (beta 0) and tokens that replace what their key
// holds (beta 1).
TEST_P(ClosedForm, StepsOfEveryLengthMatchTheRecurrence) {
  for_cases(2, 60000, [&](Rng& rng) {
    const DeltaShape shape = random_delta_shape(rng);
    SCOPED_TRACE(text(shape));
    DeltaSequence seq(*backend_, shape, kMaxDecodeRows, rng.uniform(0, kDeltaSlots - 1));
    DeltaEstimate exact(shape);
    for (int n = 2; n <= kMaxDecodeRows; ++n) {
      Tokens t = random_tokens(rng, shape, n, rng.pick({0.001f, 0.08f, 1.0f}));
      const bool strong = rng.uniform(0, 2) == 0;
      for (float& l : t.log_decay.v) {
        if (strong) l = rng.pick({0.0f, -1e-3f, -3.0f, -20.0f, -70.0f});
      }
      for (float& b : t.beta.v) b = rng.pick({0.0f, 1.0f, b});
      DeltaEstimate ahead = exact;
      const Estimates want = ahead.run(DeltaSums::closed, t);
      ASSERT_TRUE(within(seq.delta(Path::decode, t), want)) << n << " rows from " << seq.length();
      const int keep = rng.uniform(0, n);
      exact.run(DeltaSums::closed, t.slice(0, keep));
      seq.commit(keep);
    }
    seq.flush();
    EXPECT_TRUE(within(seq.state_rows(), exact.state()));
  });
}

// Every row that is kept, and the state in the end, against the same tokens one by one in exact form: no
// further apart than both may be from the recurrence.
TEST_P(ClosedForm, RoundsOfRandomAcceptanceStayNearPlainDecoding) {
  for_cases(1, 61000, [&](Rng& rng) {
    const DeltaShape shape{.n_k_heads = 1, .n_v_heads = 2, .d_k = 64, .d_v = 24};
    constexpr int kRounds = 300;
    DeltaSequence closed(*backend_, shape, kMaxDecodeRows, 0), plain(*exact_, shape, kMaxDecodeRows, 1);
    DeltaEstimate of_closed(shape), of_plain(shape);
    const auto apart = [](const Rows& about, Estimates a, const Estimates& b) {
      for (size_t i = 0; i < a.v.size(); ++i) a.v[i] = {about.v[i], a.v[i].bound + b.v[i].bound};
      return a;
    };
    int n_different = 0;
    for (int round = 0; round < kRounds; ++round) {
      const int n = rng.uniform(1, 16), keep = rng.uniform(0, n);
      const Tokens t = random_tokens(rng, shape, n, rng.pick({0.001f, 0.02f, 0.3f}));
      const Rows y = closed.delta(Path::decode, t).slice(0, keep);
      closed.commit(keep);
      Rows y_plain(0, shape.value_dim());
      for (int i = 0; i < keep; ++i) {
        y_plain.append(plain.delta(Path::decode, t.slice(i, 1)));
        plain.commit(1);
      }
      const Tokens kept = t.slice(0, keep);
      const Estimates bounds =
          apart(y_plain, of_closed.run(n > 1 ? DeltaSums::closed : DeltaSums::by_token, kept),
                of_plain.run(DeltaSums::by_token, kept));
      ASSERT_TRUE(within(y, bounds)) << "round " << round << ", " << keep << " of " << n << " rows";
      if (!same_bits(y, y_plain)) ++n_different;
    }
    closed.flush();
    plain.flush();
    EXPECT_TRUE(within(closed.state_rows(), apart(plain.state_rows(), of_closed.state(), of_plain.state())));
    EXPECT_GT(n_different, 0) << "the two forms are one";
  });
}

TEST_P(ClosedForm, ARowDoesNotDependOnTheRowsAfterItOrOnCompanyOrThreads) {
  const std::unique_ptr<Backend> one_thread = make(GetParam(), 1);
  for_cases(3, 62000, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack together(*backend_, shape, 11), alone(*one_thread, shape, 11);
    constexpr int kSequences = 3;
    std::vector<Sequence> a, b;
    for (int i = 0; i < kSequences; ++i) {
      a.push_back(together.new_sequence(300));
      b.push_back(alone.new_sequence(300));
      const Rows prompt = normal_rows(rng, rng.uniform(1, 70), shape.hidden);
      together.prefill({{&a.back(), prompt}});
      alone.prefill({{&b.back(), prompt}});
    }
    for (int round = 0; round < 3; ++round) {
      std::vector<Part> parts;
      std::vector<int> keep;
      for (Sequence& s : a) {
        parts.push_back({&s, normal_rows(rng, rng.uniform(2, shape.tape_rows), shape.hidden)});
        keep.push_back(rng.uniform(2, parts.back().x.rows));
      }
      const Rows all = together.decode(parts);
      if (backend_->name() != "reference") {
        EXPECT_EQ(together.allocations_of_last_step(), 0);
      }
      for (int i = 0, row = 0; i < kSequences; row += parts[size_t(i)].x.rows, ++i) {
        const int n = keep[size_t(i)];
        ASSERT_TRUE(same_bits(alone.decode(b[size_t(i)], parts[size_t(i)].x.slice(0, n)), all.slice(row, n)))
            << n << " of " << parts[size_t(i)].x.rows << " rows";
        alone.commit(b[size_t(i)], n);
        together.commit(a[size_t(i)], n);
      }
    }
    for (int i = 0; i < kSequences; ++i) {
      together.flush(a[size_t(i)]);
      alone.flush(b[size_t(i)]);
      ASSERT_TRUE(same_bits(together.recurrent_state(a[size_t(i)]), alone.recurrent_state(b[size_t(i)])));
    }
  });
}

TEST_P(ClosedForm, SingleRowsAndTreesAreThoseOfTheExactForm) {
  for_cases(3, 63000, [&](Rng& rng) {
    const DeltaShape shape = random_delta_shape(rng);
    SCOPED_TRACE(text(shape));
    DeltaSequence a(*backend_, shape, 16, 0), b(*exact_, shape, 16, 2);
    for (int round = 0; round < 6; ++round) {
      const int n = round % 2 == 0 ? 1 : rng.uniform(3, 16);
      const Tokens t = random_tokens(rng, shape, n, 0.1f);
      std::vector<int8_t> parents;
      if (n > 1) parents = random_tree(rng, n);
      ASSERT_TRUE(same_bits(a.delta(Path::decode, t, parents), b.delta(Path::decode, t, parents)));
      a.commit(1);
      b.commit(1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, ClosedForm, testing::ValuesIn(closed_form_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
