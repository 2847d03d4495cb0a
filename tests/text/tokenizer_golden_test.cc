// The demo model's tokenizer against ids and texts written down with the Hugging Face tokenizers library.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <fstream>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tandem {
namespace {

const Tokenizer& demo() {
  static const Tokenizer tokenizer = *Tokenizer::load(TANDEM_MODELS "/tandem-demo");
  return tokenizer;
}

const nlohmann::json& goldens() {
  static const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(TANDEM_TEST_DATA "/goldens/tokenizer.json"));
  return json;
}

std::string streamed(const std::vector<TokenId>& ids, SpecialText special) {
  Detokenizer stream(demo(), special);
  std::string text;
  for (const TokenId id : ids) text += stream.feed(id);
  return text + stream.finish();
}

TEST(TokenizerGolden, EncodesAndDecodesTheStringsAsTheReference) {
  ASSERT_EQ(goldens()["encode"].size(), 200u);
  for (const auto& c : goldens()["encode"]) {
    const std::string text = c["text"];
    const auto ids = demo().encode(text, SpecialTokens::recognise);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, c["ids"].get<std::vector<TokenId>>()) << text;
    EXPECT_EQ(demo().decode(*ids, SpecialText::keep), c["decoded"]) << text;
    EXPECT_EQ(demo().decode(*ids, SpecialText::skip), c["decoded_skip_special"]) << text;
    EXPECT_EQ(streamed(*ids, SpecialText::skip), c["decoded_skip_special"]) << text;
  }
}

TEST(TokenizerGolden, DecodesAnyIdsAsTheReference) {
  ASSERT_EQ(goldens()["decode"].size(), 60u);
  for (const auto& c : goldens()["decode"]) {
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(demo().decode(ids, SpecialText::keep), c["decoded"]) << c["ids"];
    EXPECT_EQ(streamed(ids, SpecialText::keep), c["decoded"]) << c["ids"];
  }
}

TEST(TokenizerGolden, EncodesRenderedChatTemplatesAsTheReference) {
  ASSERT_FALSE(goldens()["chat"].empty());
  for (const auto& c : goldens()["chat"]) {
    const auto ids = demo().encode(c["text"].get<std::string>(), SpecialTokens::recognise);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, c["ids"].get<std::vector<TokenId>>()) << c["text"];
  }
}

TEST(TokenizerGolden, KnowsTheDemoModelsNamedTokens) {
  EXPECT_EQ(demo().n_tokens(), 8192);
  EXPECT_EQ(demo().id_of("<|im_end|>"), 8188);
  EXPECT_EQ(demo().eos(), 8188);
  EXPECT_EQ(demo().pad(), 8186);
  EXPECT_EQ(demo().bos(), std::nullopt);
  EXPECT_TRUE(demo().is_special(8191));
  EXPECT_FALSE(demo().is_special(8189)) << "<think> is an added token, not a special one";
  EXPECT_FALSE(demo().is_special(8192));
  EXPECT_FALSE(demo().is_special(-1));
  EXPECT_EQ(demo().token_bytes(8189), "<think>");
  EXPECT_EQ(demo().token_bytes(*demo().id_of("Ġ")), " ");
  EXPECT_EQ(demo().id_of("no such token"), std::nullopt);
}

}  // namespace
}  // namespace tandem
