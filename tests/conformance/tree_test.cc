// Trees of drafts, bit for bit: a row of a tree is the row that the same path decoded as a chain gives,
// whatever else is in the tree and in the step, and a committed path leaves what plain decoding of it leaves.
#include <algorithm>

#include "conformance/delta_sequence.h"
#include "conformance/harness.h"
#include "conformance/stack.h"

namespace tandem::conformance {
namespace {

class Trees : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam());
};

TEST_P(Trees, RowsOfARaggedBatchEqualTheirPathsAndCommittedPathsEqualPlainSteps) {
  for_cases(2, 50000, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack stack(*backend_, shape, 20);
    const auto inputs = [&](int n) { return normal_rows(rng, n, shape.hidden); };
    // Sequences of a step, the last a chain; each with a copy of where it stood before.
    constexpr int kSequences = 3;
    std::vector<Sequence> sequences, before;
    for (int i = 0; i < kSequences; ++i) {
      const int prompt = rng.pick({0, 1, 3, 40, 50, 62, 63, 64, 127}), pending = rng.uniform(0, 4);
      sequences.push_back(stack.new_sequence(256));
      before.push_back(stack.new_sequence(256));
      if (prompt > 0) stack.prefill({{&sequences.back(), inputs(prompt)}});
      if (pending > 0) {
        stack.decode(sequences.back(), inputs(pending));
        stack.commit(sequences.back(), pending);
      }
    }
    Sequence chain = stack.new_sequence(256);
    for (int round = 0; round < 2; ++round) {
      std::vector<Part> parts;
      for (int i = 0; i < kSequences; ++i) {
        stack.copy(sequences[size_t(i)], before[size_t(i)]);
        const int n = rng.uniform(2, shape.tape_rows);
        parts.push_back({&sequences[size_t(i)], inputs(n)});
        if (i + 1 < kSequences) parts.back().parents = random_tree(rng, n);
      }
      std::rotate(parts.begin(), parts.begin() + round, parts.end());
      std::rotate(before.begin(), before.begin() + round, before.end());
      const Rows all = stack.decode(parts);
      if (backend_->name() != "reference") {
        ASSERT_EQ(stack.allocations_of_last_step(), 0);
      }
      for (int i = 0, row = 0; i < kSequences; row += parts[size_t(i)].x.rows, ++i) {
        const Part& part = parts[size_t(i)];
        const int n = part.x.rows;
        const Rows got = all.slice(row, n);
        std::vector<int8_t> parents = part.parents;
        for (int r = 0; parents.size() < size_t(n); ++r) parents.push_back(int8_t(r - 1));
        SCOPED_TRACE("sequence " + std::to_string(i) + " at " + std::to_string(part.sequence->length) + ", " +
                     text(parents));
        for (int leaf = 0; leaf < n; ++leaf) {
          if (!is_leaf(parents, leaf)) continue;
          const std::vector<int> path = path_to(parents, leaf);
          stack.copy(before[size_t(i)], chain);
          ASSERT_TRUE(same_bits(stack.decode(chain, part.x.gather(path)), got.gather(path)))
              << "path to row " << leaf;
        }
        const std::vector<int> kept =
            rng.uniform(0, 9) == 0 ? std::vector<int>{} : path_to(parents, rng.uniform(0, n - 1));
        stack.commit_path(part, kept);
        stack.copy(before[size_t(i)], chain);
        for (const int r : kept) {
          stack.decode(chain, part.x.slice(r, 1));
          stack.commit(chain, 1);
        }
        // Keys and values show in what comes next.
        stack.copy(*part.sequence, before[size_t(i)]);
        const Rows next = inputs(2);
        ASSERT_TRUE(same_bits(stack.decode(chain, next), stack.decode(before[size_t(i)], next)));
        stack.flush(chain);
        ASSERT_TRUE(same_bits(stack.recurrent_state(chain), stack.recurrent_state(before[size_t(i)])));
      }
      std::rotate(before.begin(), before.end() - round, before.end());
    }
  });
}

// Shapes that a stack of layers does not have; the tape holds what a chain's holds.
TEST_P(Trees, ConvolutionAndDeltaRuleRecordWhatAChainRecords) {
  for_cases(6, 51000, [&](Rng& rng) {
    const DeltaShape shape = random_delta_shape(rng);
    const int n = rng.uniform(2, 32), prompt = rng.pick({0, 1, 2, 5, 70}), pending = rng.uniform(0, 4);
    const std::vector<int8_t> parents = random_tree(rng, n);
    SCOPED_TRACE(text(shape) + ", " + std::to_string(prompt) + " + " + std::to_string(pending) + " tokens, " +
                 text(parents));
    const Rows weight = normal_rows(rng, shape.conv_dim(), kConvTaps),
               a_log = normal_rows(rng, 1, shape.n_v_heads), dt_bias = normal_rows(rng, 1, shape.n_v_heads),
               before = normal_rows(rng, prompt, shape.projection_dim()),
               then = normal_rows(rng, pending, shape.projection_dim()),
               rows = normal_rows(rng, n, shape.projection_dim());
    struct Result {
      Tokens tokens;
      Rows y;
      std::vector<Rows> tape;
      Rows state, window;
    };
    const auto run = [&](const Rows& x, const std::vector<int8_t>& tree, const std::vector<int>& keep) {
      DeltaSequence seq(*backend_, shape, kMaxDecodeRows, 1);
      const auto step = [&](Path path, const Rows& p, const std::vector<int8_t>& above, Result& result) {
        result.tokens = seq.conv(path, p, weight, a_log, dt_bias, above);
        result.y = seq.delta(path, result.tokens, above);
      };
      Result result;
      if (prompt > 0) {
        step(Path::prefill, before, {}, result);
        seq.prefilled(prompt);
      }
      if (pending > 0) {
        step(Path::decode, then, {}, result);
        seq.commit(pending);
      }
      step(Path::decode, x, tree, result);
      seq.commit(keep);
      result.tape = seq.tape_rows(x.rows);
      seq.flush();
      result.state = seq.state_rows();
      result.window = seq.window();
      return result;
    };
    for (int row = 0; row < n; ++row) {
      if (!is_leaf(parents, row) || (row + 1 < n && rng.uniform(0, 2) > 0)) continue;
      SCOPED_TRACE("path to row " + std::to_string(row));
      const std::vector<int> path = path_to(parents, row);
      std::vector<int> all;
      for (size_t i = 0; i < path.size(); ++i) all.push_back(int(i));
      const Result tree = run(rows, parents, path), chain = run(rows.gather(path), {}, all);
      ASSERT_TRUE(same_bits(tree.tokens.qkv.gather(path), chain.tokens.qkv));
      ASSERT_TRUE(same_bits(tree.y.gather(path), chain.y));
      for (size_t i = 0; i < tree.tape.size(); ++i) {
        ASSERT_TRUE(same_bits(tree.tape[i].gather(path), chain.tape[i])) << "tape array " << i;
      }
      ASSERT_TRUE(same_bits(tree.state, chain.state));
      ASSERT_TRUE(same_bits(tree.window, chain.window));
    }
  });
}

TEST(TreeChecks, RowsMustComeInDepthFirstOrderBelowOneRoot) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a driver's threads do not survive a fork
  const auto backend = make("reference");
  const DeltaShape shape{.n_k_heads = 1, .n_v_heads = 1, .d_k = 8, .d_v = 8};
  DeltaSequence seq(*backend, shape, kMaxDecodeRows, 0);
  Rng rng(52000);
  const Tokens t = random_tokens(rng, shape, 4, 0.1f);
  EXPECT_DEATH(seq.delta(Path::decode, t, {-1, 0, 0, 1}), "row 3 of a tree follows row 1");
  EXPECT_DEATH(seq.delta(Path::decode, t, {-1, 0, -1, 2}), "row 2 of a tree follows row -1");
  EXPECT_DEATH(seq.delta(Path::decode, t, {-1, 0, 3, 2}), "row 2 of a tree follows row 3");
  EXPECT_DEATH(seq.delta(Path::decode, t, {-1, 0, 1}), "a tree of 3 parents");
  EXPECT_DEATH(seq.delta(Path::prefill, t, {-1, 0, 1, 2}), "for 4 rows of path 1");
}

INSTANTIATE_TEST_SUITE_P(Backends, Trees, testing::ValuesIn(all_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
