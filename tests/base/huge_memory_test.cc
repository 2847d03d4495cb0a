// Pieces of a huge-page arena: aligned, zero, apart from each other, and alive as long as they are held.
#include "base/huge_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace tandem {
namespace {

TEST(HugeArena, PiecesAreAlignedZeroAndDisjoint) {
  HugeArena arena;
  std::vector<HugeBuffer> pieces;
  for (const size_t bytes : {1u, 127u, 128u, 4097u, 3000000u}) {
    Result<HugeBuffer> piece = arena.allocate(bytes);
    ASSERT_TRUE(piece.ok()) << piece.error().message;
    EXPECT_EQ(piece->size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece->data()) % 128, 0u);
    EXPECT_TRUE(std::all_of(piece->bytes().begin(), piece->bytes().end(),
                            [](std::byte b) { return b == std::byte{0}; }));
    std::fill(piece->bytes().begin(), piece->bytes().end(), std::byte(pieces.size() + 1));
    pieces.push_back(*std::move(piece));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(std::all_of(pieces[i].bytes().begin(), pieces[i].bytes().end(),
                            [&](std::byte b) { return b == std::byte(i + 1); }));
  }
}

TEST(HugeArena, PiecesOutliveTheArena) {
  auto arena = std::make_optional<HugeArena>();
  HugeBuffer piece = *arena->allocate(1000);
  arena.reset();
  piece.bytes()[999] = std::byte{7};
  EXPECT_EQ(piece.bytes()[999], std::byte{7});
}

TEST(HugeArena, LargerThanAChunk) {
  HugeArena arena;
  Result<HugeBuffer> piece = arena.allocate(size_t{300} << 20);
  ASSERT_TRUE(piece.ok());
  piece->bytes().back() = std::byte{1};
}

TEST(HugeArena, ImpossibleSizeIsAnErrorWithTheSize) {
  HugeArena arena;
  Result<HugeBuffer> piece = arena.allocate(size_t{1} << 60);
  ASSERT_FALSE(piece.ok());
  EXPECT_NE(piece.error().message.find("1152921504"), std::string::npos) << piece.error().message;
}

}  // namespace
}  // namespace tandem
