#include "format/draft_vocab.h"

#include <gtest/gtest.h>

#include "base/temp_folder.h"

namespace tandem {
namespace {

TEST(DraftVocab, WhatIsWrittenIsRead) {
  const DraftVocab vocab{.vocab_size = 100, .coverage = 0.985, .ids = {0, 3, 4, 99}};
  const auto read = parse_draft_vocab(as_byte_span(draft_vocab_text(vocab)), "v.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->vocab_size, 100);
  EXPECT_EQ(read->coverage, 0.985);
  EXPECT_EQ(read->ids, vocab.ids);
}

TEST(DraftVocab, WhatIsWrongIsNamed) {
  const struct {
    const char *text, *error;
  } cases[] = {
      {R"({"coverage": 0.98, "ids": [1]})", "v.json: vocab_size: expected an integer"},
      {R"({"vocab_size": 10, "ids": [1]})", "v.json: coverage: expected a number"},
      {R"({"vocab_size": 10, "coverage": 0.98})", "v.json: ids: expected token ids, found none"},
      {R"({"vocab_size": 10, "coverage": 0.98, "ids": [1, 10]})", "v.json: ids: expected integers in [0, 9]"},
      {R"({"vocab_size": 10, "coverage": 0.98, "ids": [-1]})", "v.json: ids: expected"},
      {R"({"vocab_size": 10, "coverage": 0.98, "ids": [2, 2]})",
       "ids: expected ascending ids, found 2 after 2"},
      {R"({"vocab_size": 10, "coverage": 0.96, "ids": [1]})", "coverage: expected at least 0.97, found 0.96"},
      {"[1]", "v.json"},
  };
  for (const auto& c : cases) {
    const auto read = parse_draft_vocab(as_byte_span(c.text), "v.json");
    ASSERT_FALSE(read.ok()) << c.text;
    EXPECT_NE(read.error().message.find(c.error), std::string::npos) << read.error().message;
  }
}

}  // namespace
}  // namespace tandem
