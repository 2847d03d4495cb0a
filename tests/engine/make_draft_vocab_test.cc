#include "engine/make_draft_vocab.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/temp_folder.h"
#include "golden/model_under_test.h"

namespace tandem {
namespace {

TEST(MakeDraftVocab, HoldsWhatNoTextMayLackAndWhatIsSaid) {
  const LoadedModel model = value_or_throw(load_model(
      {.model = std::string(TANDEM_MODELS) + "/tandem-demo", .backend = {.name = "cpu", .threads = 2}}));
  const auto encode = [&](const std::string& text) {
    return value_or_throw(model.tokenizer->encode(text, SpecialTokens::plain));
  };
  const std::vector<TokenId> once = encode(read_file(std::string(TANDEM_TEST_DATA) + "/text/held_out.py"));
  EXPECT_NE(make_draft_vocab(model, once, 4000).error().message.find("expected at least 2048"),
            std::string::npos);
  std::vector<TokenId> text = once;
  text.insert(text.end(), once.begin(), once.end());  // coverage is good: the last quarter was seen before
  const DraftVocab vocab = value_or_throw(make_draft_vocab(model, text, 4000));
  EXPECT_EQ(vocab.vocab_size, model.config.vocab_size);
  EXPECT_EQ(vocab.ids.size(), 4000u);
  EXPECT_TRUE(std::is_sorted(vocab.ids.begin(), vocab.ids.end()));
  EXPECT_EQ(std::adjacent_find(vocab.ids.begin(), vocab.ids.end()), vocab.ids.end());
  EXPECT_GE(vocab.coverage, kLeastDraftCoverage);
  const auto has = [&](TokenId id) { return std::binary_search(vocab.ids.begin(), vocab.ids.end(), id); };
  for (const TokenId id : model.stop_ids) EXPECT_TRUE(has(id)) << id;
  for (const TokenId id : encode("0 1 2 3 4 5 6 7 8 9\n\n\t")) EXPECT_TRUE(has(id)) << id;
  for (size_t i = 0; i < once.size() / 2; ++i) EXPECT_TRUE(has(once[i])) << "a token of the text";

  const auto too_few = make_draft_vocab(model, text, 300);
  ASSERT_FALSE(too_few.ok());
  EXPECT_NE(too_few.error().message.find("300 tokens"), std::string::npos) << too_few.error().message;
  EXPECT_EQ(make_draft_vocab(model, text, 4000, [] { return true; }).error().message, "interrupted");
}

}  // namespace
}  // namespace tandem
