#include "text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

namespace tandem {
namespace {

TEST(ByteAlphabet, MapsAllBytesToDifferentPrintableCharactersAndBack) {
  std::set<char32_t> seen;
  for (int b = 0; b < 256; ++b) {
    const char32_t c = printable_of_byte(uint8_t(b));
    EXPECT_GT(c, U' ');
    EXPECT_TRUE(seen.insert(c).second) << b;
    EXPECT_EQ(byte_of_printable(c), uint8_t(b));
  }
  EXPECT_EQ(printable_of_byte(' '), U'Ġ');
  EXPECT_EQ(printable_of_byte('\n'), U'Ċ');
  EXPECT_EQ(printable_of_byte(0xAD), U'\u0143');
  EXPECT_EQ(byte_of_printable(U' '), std::nullopt);
  EXPECT_EQ(byte_of_printable(U'\u0144'), std::nullopt);
}

TEST(ByteAlphabet, KeysAndBytesTranslateBothWays) {
  EXPECT_EQ(to_printable(" é"), "ĠÃ©");
  std::string bytes;
  EXPECT_TRUE(from_printable("ĠÃ©", bytes));
  EXPECT_EQ(bytes, " é");
  EXPECT_FALSE(from_printable("has space", bytes));
}

using Table =
    std::map<std::pair<TokenId, TokenId>, std::pair<int, TokenId>>;  // (left, right) -> (rank, merged)

// The definition: find the lowest rank, merge its leftmost pair, start again.
std::vector<TokenId> merge_by_definition(const Table& table, std::vector<TokenId> ids) {
  while (true) {
    int best_rank = INT32_MAX;
    size_t best = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = table.find({ids[i], ids[i + 1]});
      if (it != table.end() && it->second.first < best_rank) {
        best_rank = it->second.first;
        best = i;
      }
    }
    if (best_rank == INT32_MAX) return ids;
    ids[best] = table.at({ids[best], ids[best + 1]}).second;
    ids.erase(ids.begin() + long(best) + 1);
  }
}

// Merges over an alphabet of 4 symbols in which, as in every vocabulary, an id is the string that it stands
// for.
RC_GTEST_PROP(BpeMerger, MergesAsTheDefinitionSays, ()) {
  std::map<std::string, TokenId> vocab{{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}};
  Table table;
  MergeTable fast;
  fast.reserve(64);
  const int n_merges = *rc::gen::inRange(0, 40);
  for (int rank = 0; rank < n_merges; ++rank) {
    const auto left =
        *rc::gen::elementOf(std::vector<std::pair<std::string, TokenId>>(vocab.begin(), vocab.end()));
    const auto right =
        *rc::gen::elementOf(std::vector<std::pair<std::string, TokenId>>(vocab.begin(), vocab.end()));
    if (left.first.size() + right.first.size() > 8) continue;
    const auto merged = vocab.emplace(left.first + right.first, TokenId(vocab.size())).first;
    table[{left.second, right.second}] = {rank, merged->second};
    fast.add(left.second, right.second, {rank, merged->second});
  }
  const auto symbols = *rc::gen::container<std::vector<TokenId>>(rc::gen::inRange<TokenId>(0, 4));
  std::vector<TokenId> out;
  BpeMerger merger;
  merger.merge(fast, symbols, out);
  RC_ASSERT(out == merge_by_definition(table, symbols));
  out.clear();
  merger.merge(fast, symbols, out);
  RC_ASSERT(out == merge_by_definition(table, symbols));  // nothing is left over from the piece before
}

TEST(MergeTable, KeepsTheLaterRankOfAPairGivenTwice) {
  MergeTable table;
  table.reserve(2);
  table.add(1, 2, {5, 7});
  table.add(1, 2, {9, 7});
  EXPECT_EQ(table.find(1, 2).rank, 9);
  EXPECT_EQ(table.find(2, 1).rank, -1);
}

}  // namespace
}  // namespace tandem
