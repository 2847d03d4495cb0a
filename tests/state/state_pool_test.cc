#include "state/state_pool.h"

#include <gtest/gtest.h>

#include "backend/reference/reference_backend.h"

namespace tandem {
namespace {

class StatePoolTest : public testing::Test {
 protected:
  static StateShape shape() {
    return {.n_delta_layers = 2,
            .delta = {.n_k_heads = 1, .n_v_heads = 2, .d_k = 8, .d_v = 8},
            .n_attention_layers = 1,
            .attention = {.n_heads = 2, .n_kv_heads = 1, .d_head = 8, .rotary_dims = 8}};
  }
  StatePool pool(int sequences, int positions) {
    return *StatePool::create(*backend_, shape(),
                              {.max_sequences = sequences, .max_positions = positions, .tape_rows = 4});
  }
  std::unique_ptr<Backend> backend_ = make_reference_backend();
};

TEST_F(StatePoolTest, PagesAndSlotsComeBackWhenASequenceDies) {
  StatePool p = pool(2, 256);
  const int pages = p.free_pages();
  {
    SequenceState a = *SequenceState::create(p);
    ASSERT_TRUE(a.begin_prefill(130).ok());
    EXPECT_EQ(p.free_pages(), pages - 3);
    EXPECT_EQ(p.free_slots(), 1);
    SequenceState b = std::move(a);
    EXPECT_EQ(b.pages().size(), 3u);
  }
  EXPECT_EQ(p.free_pages(), pages);
  EXPECT_EQ(p.free_slots(), 2);
}

TEST_F(StatePoolTest, AFullCacheIsAnErrorThatSaysHowMuchIsMissing) {
  StatePool p = pool(1, 64);
  SequenceState a = *SequenceState::create(p);
  const Status status = a.begin_prefill(64 * 5);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("320 positions need 5 more pages"), std::string::npos)
      << status.error().message;
  EXPECT_FALSE(SequenceState::create(p).ok());
  EXPECT_TRUE(a.begin_prefill(64).ok()) << "a refused step must leave the sequence usable";
}

TEST_F(StatePoolTest, CommitKeepsAPrefixAndFlipsTheTape) {
  StatePool p = pool(1, 64);
  SequenceState a = *SequenceState::create(p);
  ASSERT_TRUE(a.begin_prefill(5).ok());
  a.end_prefill();
  ASSERT_TRUE(a.begin_verify(4).ok());
  EXPECT_EQ(a.rows(7).first_row, 7);
  EXPECT_EQ(a.rows(0).start, 5);
  EXPECT_TRUE(a.rows(0).pending.empty());
  const int tape = a.rows(0).tape;
  a.commit(2);
  EXPECT_EQ(a.length(), 7);
  ASSERT_TRUE(a.begin_verify(1).ok());
  EXPECT_EQ(a.rows(0).tape, 1 - tape);
  ASSERT_EQ(a.rows(0).pending.size(), 2u);
  EXPECT_EQ(a.rows(0).pending[1], 1);
  a.commit(0);
  EXPECT_EQ(a.length(), 7);
  ASSERT_TRUE(a.begin_verify(1).ok());
  EXPECT_TRUE(a.rows(0).pending.empty()) << "rows folded by the step must not be folded again";
}

TEST_F(StatePoolTest, CommitKeepsAPathOfATree) {
  StatePool p = pool(1, 64);
  SequenceState a = *SequenceState::create(p);
  ASSERT_TRUE(a.begin_prefill(5).ok());
  a.end_prefill();
  const std::vector<int8_t> parents = {-1, 0, 1, 0};
  ASSERT_TRUE(a.begin_verify(parents).ok());
  const SeqStep step = a.rows(0);
  EXPECT_EQ(std::vector<int8_t>(step.parents.begin(), step.parents.end()), parents);
  EXPECT_EQ(step.depth(2), 2);
  EXPECT_EQ(step.depth(3), 1);
  EXPECT_DEATH(a.commit(std::vector<int>{0, 1, 3}), "row 3 after row 1, of 4 rows: not a path");
  EXPECT_DEATH(a.commit(std::vector<int>{1}), "row 1 after row -1, of 4 rows: not a path");
  a.commit(std::vector<int>{0, 3});
  EXPECT_EQ(a.length(), 7);
  ASSERT_TRUE(a.begin_verify(2).ok());
  EXPECT_TRUE(a.rows(0).parents.empty());
  ASSERT_EQ(a.rows(0).pending.size(), 2u);
  EXPECT_EQ(a.rows(0).pending[1], 3);
  a.commit(std::vector<int>{});
  EXPECT_EQ(a.length(), 7);
}

TEST_F(StatePoolTest, BytesAreKnownBeforeAnythingIsAllocated) {
  const StateLimits limits{.max_sequences = 3, .max_positions = 1000, .tape_rows = 4};
  EXPECT_GT(StatePool::bytes(*backend_, shape(), limits), 0u);
  const StateLimits absurd{.max_sequences = 1 << 20, .max_positions = 1 << 30, .tape_rows = 4};
  const Result<StatePool> p = StatePool::create(*backend_, shape(), absurd);
  ASSERT_FALSE(p.ok());
  EXPECT_NE(p.error().message.find("are available"), std::string::npos) << p.error().message;
}

}  // namespace
}  // namespace tandem
