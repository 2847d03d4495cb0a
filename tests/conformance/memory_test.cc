// Memory of a backend: refusals, copies, and steps that allocate nothing.
#include <algorithm>

#include "conformance/harness.h"
#include "conformance/stack.h"

namespace tandem::conformance {
namespace {

class BackendMemory : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam());
};

TEST_P(BackendMemory, MoreThanThereIsIsRefusedByNameWithBothNumbers) {
  const size_t wanted = size_t{1} << 52;
  ASSERT_LT(backend_->available_bytes(), wanted);
  const auto buffer = backend_->allocate(wanted, "KV pages for 8 sequences");
  ASSERT_FALSE(buffer.ok());
  EXPECT_NE(buffer.error().message.find("KV pages for 8 sequences"), std::string::npos)
      << buffer.error().message;
  EXPECT_NE(buffer.error().message.find(std::to_string(wanted)), std::string::npos) << buffer.error().message;
  EXPECT_NE(buffer.error().message.find("available"), std::string::npos) << buffer.error().message;
}

TEST_P(BackendMemory, AWeightThatDoesNotFitIsRefusedBeforeItIsRead) {
  // Runs may list the same rows again and again: far more bytes than the matrix has.
  Rng rng(1);
  const RandomMatrix m(rng, 1024, 1024, {.dtype = DType::f32});
  const std::vector<RowRun> runs(1 << 20, RowRun{&m.host(), 0, 1024});
  const auto weight = backend_->pack({.name = "embed_tokens", .rows = runs});
  ASSERT_FALSE(weight.ok());
  EXPECT_NE(weight.error().message.find("embed_tokens"), std::string::npos) << weight.error().message;
}

TEST_P(BackendMemory, BytesComeBackAsTheyWereCopiedIn) {
  Rng rng(2);
  const Rows rows = normal_rows(rng, 17, 33);
  const OnDevice there(*backend_, rows, 4);
  EXPECT_TRUE(same_bits(rows, there.read()));
  const Memory zeroed(*backend_, 1000);
  EXPECT_EQ(zeroed.read(0, 1000), std::vector<std::byte>(1000));
}

// Recurrent slots and KV pages are all a sequence is: copied whole to other places, it goes on the same.
TEST_P(BackendMemory, ASequenceGoesOnFromCopiedPagesAndSlots) {
  for_cases(2, 50000, [&](Rng& rng) {
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack stack(*backend_, shape, 16);
    Sequence a = stack.new_sequence(200), b = stack.new_sequence(200);
    stack.prefill({{&a, normal_rows(rng, 100, shape.hidden)}});
    stack.copy(a, b);
    const Rows x = normal_rows(rng, 4, shape.hidden);
    EXPECT_TRUE(same_bits(stack.decode(a, x), stack.decode(b, x)));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, BackendMemory, testing::ValuesIn(all_backends()), test_name);

class Allocations : public testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Allocations);

TEST_P(Allocations, NoStepAllocatesAfterReserve) {
  for_cases(3, 51000, [&](Rng& rng) {
    const auto backend = make(GetParam());
    const StackShape shape = random_shape(rng);
    SCOPED_TRACE(shape.text());
    Stack stack(*backend, shape, 17);
    Sequence a = stack.new_sequence(600), b = stack.new_sequence(600);
    const Rows prompt = normal_rows(rng, kMaxRows / 2, shape.hidden);
    stack.prefill({{&a, prompt}, {&b, prompt}});
    EXPECT_EQ(stack.allocations_of_last_step(), 0) << "prefill of the largest step";
    for (const int n : {1, 2, shape.tape_rows}) {
      stack.decode({{&a, normal_rows(rng, n, shape.hidden)}, {&b, normal_rows(rng, 1, shape.hidden)}});
      EXPECT_EQ(stack.allocations_of_last_step(), 0) << "decode of " << n << " rows";
      stack.commit(a, n);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Allocations, testing::ValuesIn(fast_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
