// Bit for bit, within one backend: what a row computes depends on that row and its own sequence alone, and
// the tape leaves what plain decoding leaves. Every claim runs through all operations of a random hybrid
// stack.
#include <algorithm>
#include <numeric>

#include "conformance/harness.h"
#include "conformance/stack.h"

namespace tandem::conformance {
namespace {

class Exactness : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam());
};

// Random rows for a step of one sequence.
Rows inputs(Rng& rng, const Stack& stack, int n) { return normal_rows(rng, n, stack.shape().hidden); }

// Prefills n random rows.
Sequence started(Stack& stack, const Rows& prompt, int room = 64) {
  Sequence seq = stack.new_sequence(prompt.rows + room);
  if (prompt.rows > 0) stack.prefill({{&seq, prompt}});
  return seq;
}

// Feeds rows one step at a time.
Rows plain_steps(Stack& stack, Sequence& seq, const Rows& x) {
  Rows out;
  for (int i = 0; i < x.rows; ++i) {
    out.append(stack.decode(seq, x.slice(i, 1)));
    stack.commit(seq, 1);
  }
  return out;
}

TEST_P(Exactness, ASequenceInABatchOfEightEqualsItselfAlone) {
  for_cases(2, 100, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack together(*backend_, shape, 7), alone(*backend_, shape, 7);
    std::vector<Sequence> a, b;
    std::vector<Part> parts;
    std::vector<Rows> prompts;
    for (int i = 0; i < 8; ++i) {
      a.push_back(together.new_sequence(120));
      prompts.push_back(inputs(rng, together, rng.uniform(1, 62)));
    }
    for (int i = 7; i >= 0; --i) b.push_back(alone.new_sequence(120));
    std::reverse(b.begin(), b.end());  // other slots, other pages
    for (int i = 0; i < 8; ++i) parts.push_back({&a[size_t(i)], prompts[size_t(i)]});
    Rows out = together.prefill(parts);
    for (int i = 0, row = 0; i < 8; row += prompts[size_t(i)].rows, ++i) {
      ASSERT_TRUE(same_bits(out.slice(row, prompts[size_t(i)].rows),
                            alone.prefill({{&b[size_t(i)], prompts[size_t(i)]}})))
          << "prefill of sequence " << i;
    }
    for (int round = 0; round < 3; ++round) {
      // More than 32 rows together: a step of several blocks.
      for (int i = 0; i < 8; ++i) parts[size_t(i)].x = inputs(rng, together, rng.uniform(1, 6));
      out = together.decode(parts);
      for (int i = 0, row = 0; i < 8; row += parts[size_t(i)].x.rows, ++i) {
        const Part& part = parts[size_t(i)];
        ASSERT_TRUE(same_bits(out.slice(row, part.x.rows), alone.decode(b[size_t(i)], part.x)))
            << "round " << round << ", sequence " << i << ", rows from " << row;
        const int keep = rng.uniform(0, part.x.rows);
        together.commit(a[size_t(i)], keep);
        alone.commit(b[size_t(i)], keep);
      }
    }
    for (int i = 0; i < 8; ++i) {
      together.flush(a[size_t(i)]);
      alone.flush(b[size_t(i)]);
      ASSERT_TRUE(same_bits(together.recurrent_state(a[size_t(i)]), alone.recurrent_state(b[size_t(i)])))
          << i;
    }
  });
}

TEST_P(Exactness, RowsOfAVerifyStepEqualPlainStepsAndSoDoesTheCommittedPrefix) {
  for_cases(3, 200, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack stack(*backend_, shape, 8);
    const Rows prompt = inputs(rng, stack, rng.uniform(0, 140));
    const int n = rng.uniform(0, 3) == 0 ? shape.tape_rows : rng.uniform(2, shape.tape_rows),
              keep = rng.uniform(0, n);
    SCOPED_TRACE(std::to_string(prompt.rows) + " prompt rows, " + std::to_string(n) + " verified, " +
                 std::to_string(keep) + " kept");
    const Rows x = inputs(rng, stack, n), next = inputs(rng, stack, 3);
    Sequence verified = started(stack, prompt), flushed = started(stack, prompt),
             plain = started(stack, prompt), kept = started(stack, prompt);

    const Rows rows = stack.decode(verified, x);
    ASSERT_TRUE(same_bits(rows, plain_steps(stack, plain, x)));
    stack.commit(verified, keep);
    ASSERT_TRUE(same_bits(rows, stack.decode(flushed, x)));
    stack.commit(flushed, keep);
    stack.flush(flushed);
    plain_steps(stack, kept, x.slice(0, keep));

    // Whether the tape is folded by the next step, by a flush, or one row at a time.
    const Rows after = stack.decode(kept, next);
    ASSERT_TRUE(same_bits(after, stack.decode(verified, next)));
    ASSERT_TRUE(same_bits(after, stack.decode(flushed, next)));
    for (Sequence* s : {&verified, &flushed, &kept}) {
      stack.commit(*s, 2);
      stack.flush(*s);
    }
    ASSERT_TRUE(same_bits(stack.recurrent_state(kept), stack.recurrent_state(verified)));
    ASSERT_TRUE(same_bits(stack.recurrent_state(kept), stack.recurrent_state(flushed)));
  });
}

TEST_P(Exactness, AnAbandonedVerifyStepLeavesNoTrace) {
  for_cases(3, 300, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack stack(*backend_, shape, 9);
    const Rows prompt = inputs(rng, stack, rng.uniform(1, 100));
    Sequence seq = started(stack, prompt), untouched = started(stack, prompt);
    const Rows before = stack.recurrent_state(seq);
    for (int i = 0; i < 2; ++i) {
      stack.decode(seq, inputs(rng, stack, rng.uniform(1, shape.tape_rows)));
      stack.commit(seq, 0);
      ASSERT_TRUE(same_bits(before, stack.recurrent_state(seq)));
    }
    const Rows x = inputs(rng, stack, 5);
    ASSERT_TRUE(same_bits(stack.decode(seq, x), stack.decode(untouched, x)));
    stack.commit(seq, 5);
    stack.commit(untouched, 5);
    // Now rows are pending: the step folds them into the state, and still leaves out its own.
    stack.decode(seq, inputs(rng, stack, 7));
    stack.flush(untouched);
    ASSERT_TRUE(same_bits(stack.recurrent_state(seq), stack.recurrent_state(untouched)));
  });
}

TEST_P(Exactness, AnyPathOfRowsFoldsTheSameInAStepAndInAFlush) {
  for_cases(3, 400, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack stack(*backend_, shape, 10);
    const Rows prompt = inputs(rng, stack, rng.uniform(1, 70));
    Sequence a = started(stack, prompt), b = started(stack, prompt);
    const Rows x = inputs(rng, stack, 12), next = inputs(rng, stack, 2);
    std::vector<uint8_t> path;
    for (uint8_t i = 0; i < 12; ++i) {
      if (rng.uniform(0, 1) == 0) path.push_back(i);
    }
    for (Sequence* s : {&a, &b}) {
      stack.decode(*s, x);
      stack.commit(*s, path);
    }
    stack.flush(a);
    stack.decode(a, next);
    stack.decode(b, next);
    ASSERT_TRUE(same_bits(stack.recurrent_state(a), stack.recurrent_state(b)));
  });
}

TEST_P(Exactness, APromptCutAtMultiplesOf64GivesTheSameRowsStateAndCache) {
  for_cases(2, 500, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack whole(*backend_, shape, 11), cut(*backend_, shape, 11);
    const Rows prompt = inputs(rng, whole, rng.uniform(65, 330));
    SCOPED_TRACE(std::to_string(prompt.rows) + " rows");
    Sequence a = whole.new_sequence(prompt.rows + 8), b = cut.new_sequence(prompt.rows + 8);
    const Rows expected = whole.prefill({{&a, prompt}});
    Rows got;
    while (b.length < prompt.rows) {
      const int left = prompt.rows - b.length;
      const int n = std::min(left, 64 * rng.uniform(1, std::max(1, left / 64)));
      // Beside another sequence, before or behind it: the rows lie elsewhere in the step.
      Sequence other = cut.new_sequence(64);
      const Rows beside = inputs(rng, cut, rng.uniform(1, 63));
      if (rng.uniform(0, 2) == 0) {
        got.append(cut.prefill({{&b, prompt.slice(b.length, n)}}));
      } else if (rng.uniform(0, 1) == 0) {
        got.append(cut.prefill({{&b, prompt.slice(b.length, n)}, {&other, beside}}).slice(0, n));
      } else {
        got.append(cut.prefill({{&other, beside}, {&b, prompt.slice(b.length, n)}}).slice(beside.rows, n));
      }
    }
    ASSERT_TRUE(same_bits(expected, got));
    ASSERT_TRUE(same_bits(whole.recurrent_state(a), cut.recurrent_state(b)));
    ASSERT_TRUE(same_bits(whole.kv(a), cut.kv(b)));
  });
}

TEST_P(Exactness, AStepAtPositionZeroIgnoresWhatItsSlotHolds) {
  for_cases(3, 600, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack stack(*backend_, shape, 12);
    for (const Path path : {Path::prefill, Path::decode}) {
      const Rows x = inputs(rng, stack, rng.uniform(1, shape.tape_rows));
      Sequence used = started(stack, inputs(rng, stack, 30)), fresh = stack.new_sequence(64);
      used.length = 0;  // the slot passes to another sequence
      std::vector<Rows> out, state;
      for (Sequence* s : {&used, &fresh}) {
        if (path == Path::prefill) {
          out.push_back(stack.prefill({{s, x}}));
        } else {
          out.push_back(stack.decode(*s, x));
          stack.commit(*s, x.rows);
          stack.flush(*s);
        }
        state.push_back(stack.recurrent_state(*s));
      }
      ASSERT_TRUE(same_bits(out[0], out[1])) << "path " << int(path);
      ASSERT_TRUE(same_bits(state[0], state[1])) << "path " << int(path);
    }
  });
}

TEST_P(Exactness, PrefillAfterDecodingEqualsPrefillAfterAFlush) {
  for_cases(2, 700, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack stack(*backend_, shape, 13);
    // Generated up to a multiple of 64, then prompt again: a second turn of a conversation.
    const Rows prompt = inputs(rng, stack, 60), x = inputs(rng, stack, 4), turn = inputs(rng, stack, 75);
    Sequence tape = started(stack, prompt, 100), plain = started(stack, prompt, 100);
    stack.decode(tape, x);
    stack.commit(tape, 4);
    plain_steps(stack, plain, x);
    ASSERT_TRUE(same_bits(stack.prefill({{&tape, turn}}), stack.prefill({{&plain, turn}})));
    ASSERT_TRUE(same_bits(stack.recurrent_state(tape), stack.recurrent_state(plain)));
  });
}

// A fused block may do less work than the primitives that define it, but not other arithmetic.
TEST_P(Exactness, BlocksEqualThePrimitivesTheyAreComposedOf) {
  for_cases(2, 900, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack blocks(*backend_, shape, 15), primitives(*backend_, shape, 15);
    primitives.compose_blocks();
    const Rows prompt = inputs(rng, blocks, rng.uniform(1, 100));
    Sequence a = blocks.new_sequence(200), b = primitives.new_sequence(200);
    ASSERT_TRUE(same_bits(blocks.prefill({{&a, prompt}}), primitives.prefill({{&b, prompt}})));
    for (int i = 0; i < 3; ++i) {
      const Rows x = inputs(rng, blocks, rng.uniform(1, shape.tape_rows));
      ASSERT_TRUE(same_bits(blocks.decode(a, x), primitives.decode(b, x)));
      blocks.commit(a, 1);
      primitives.commit(b, 1);
    }
    ASSERT_TRUE(same_bits(blocks.recurrent_state(a), primitives.recurrent_state(b)));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Exactness, testing::ValuesIn(all_backends()), test_name);

class ThreadIndependence : public testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ThreadIndependence);

TEST_P(ThreadIndependence, OneTwoAndThreeThreadsGiveTheSameBits) {
  for_cases(2, 800, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    const Rng start = rng;
    Rows expected;
    for (const int threads : {1, 2, 3}) {
      const auto backend = make(GetParam(), threads);
      ASSERT_LE(backend->threads(), threads);
      Rng again = start;
      Stack stack(*backend, shape, 14);
      Sequence a = stack.new_sequence(300), b = stack.new_sequence(100);
      Rows all;
      const auto add = [&](const Rows& rows) {  // rows of any width, as one column
        all.append({rows.rows * rows.cols, 1, rows.v});
      };
      add(stack.prefill({{&a, inputs(again, stack, again.uniform(1, 200))}, {&b, inputs(again, stack, 50)}}));
      for (int step = 0; step < 2; ++step) {
        add(stack.decode(
            {{&a, inputs(again, stack, again.uniform(1, shape.tape_rows))}, {&b, inputs(again, stack, 3)}}));
        stack.commit(a, 1);
        stack.commit(b, 2);
      }
      stack.flush(a);
      add(stack.recurrent_state(a));
      if (threads == 1) expected = all;
      ASSERT_TRUE(same_bits(expected, all)) << threads << " threads";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, ThreadIndependence, testing::ValuesIn(fast_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
