// Properties of encoding and decoding, with the demo model's vocabulary.
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "random_text.h"
#include "text/detokenizer.h"
#include "tiny_tokenizer.h"

namespace tandem {
namespace {

const Tokenizer& demo() {
  static const Tokenizer tokenizer = *Tokenizer::load(TANDEM_MODELS "/tandem-demo");
  return tokenizer;
}

std::vector<TokenId> encoded(const Tokenizer& tokenizer, std::string_view text, SpecialTokens mode) {
  const auto ids = tokenizer.encode(text, mode);
  EXPECT_TRUE(ids.ok()) << ids.error().message;
  return ids.ok() ? *ids : std::vector<TokenId>{};
}

RC_GTEST_PROP(Tokenizer, DecodingWhatWasEncodedGivesTheTextInNormalForm, ()) {
  const std::string text = *any_text();
  std::string normal;
  if (!normalize_nfc(text, normal, nullptr)) normal = text;
  // Added tokens stand for themselves before normalisation, so both readings give the same text back.
  RC_ASSERT(demo().decode(encoded(demo(), text, SpecialTokens::plain), SpecialText::keep) == normal);
  const std::string recognised =
      demo().decode(encoded(demo(), text, SpecialTokens::recognise), SpecialText::keep);
  std::string again;
  if (!normalize_nfc(recognised, again, nullptr)) again = recognised;
  RC_ASSERT(again == normal);
}

RC_GTEST_PROP(Detokenizer, StreamedTextIsTheDecodedTextAndNeverHalfACharacter, ()) {
  const auto ids = *rc::gen::container<std::vector<TokenId>>(
      rc::gen::oneOf(rc::gen::inRange<TokenId>(-2, 8200), rc::gen::inRange<TokenId>(0, 260)));
  for (const SpecialText special : {SpecialText::keep, SpecialText::skip}) {
    Detokenizer stream(demo(), special);
    std::string text;
    for (const TokenId id : ids) {
      const std::string piece = stream.feed(id);
      RC_ASSERT(!first_invalid_utf8(piece));
      text += piece;
    }
    text += stream.finish();
    RC_ASSERT(text == demo().decode(ids, special));
  }
}

RC_GTEST_PROP(Tokenizer, PlainTextNeverBecomesAnAddedToken, ()) {
  const std::string text = *any_text();
  for (const TokenId id : encoded(demo(), text, SpecialTokens::plain)) RC_ASSERT(id < 8186);
}

RC_GTEST_PROP(Tokenizer, PartsOfOneModeAreOneText, ()) {
  const std::string a = *any_text(), b = *any_text(), c = *any_text();
  for (const SpecialTokens mode : {SpecialTokens::recognise, SpecialTokens::plain}) {
    const TextPart parts[] = {{a, mode}, {b, mode}, {c, mode}};
    const auto ids = demo().encode(parts);
    RC_ASSERT(ids.ok());
    RC_ASSERT(*ids == encoded(demo(), a + b + c, mode));
  }
}

TEST(Tokenizer, PartsKeepTheUsersSpecialStringsPlainAndTheTemplatesSpecial) {
  const TextPart parts[] = {{"<|im_start|>user\n", SpecialTokens::recognise},
                            {"\n<|im_end|> x", SpecialTokens::plain},
                            {"<|im_end|>", SpecialTokens::recognise}};
  const auto ids = demo().encode(parts);
  ASSERT_TRUE(ids.ok()) << ids.error().message;
  EXPECT_EQ(ids->front(), 8187);
  EXPECT_EQ(ids->back(), 8188);
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 8188), 1);
  EXPECT_EQ(demo().decode(*ids, SpecialText::keep), "<|im_start|>user\n\n<|im_end|> x<|im_end|>");
  // A piece may span the seam, as in the joined text: "\n" + "\n" is one token.
  EXPECT_EQ(std::count(ids->begin(), ids->end(), *demo().id_of("ĊĊ")), 1);
}

TEST(Tokenizer, AStringSpanningPartsIsNoAddedToken) {
  const TextPart parts[] = {{"<|im_", SpecialTokens::recognise}, {"end|>", SpecialTokens::plain}};
  const auto ids = demo().encode(parts);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 8188), 0);
}

TEST(Tokenizer, NamesTheByteWhereTextStopsBeingUtf8) {
  const auto ids = demo().encode("abc \xC3( d", SpecialTokens::recognise);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().message, "text is not valid UTF-8 at byte 4 (0xc3)");
  EXPECT_FALSE(demo().encode("ends inside \xE2\x82", SpecialTokens::plain).ok());
}

TEST(Tokenizer, EmptyTextHasNoTokens) {
  EXPECT_TRUE(encoded(demo(), "", SpecialTokens::recognise).empty());
  EXPECT_TRUE(demo().encode(std::span<const TextPart>{})->empty());
  EXPECT_EQ(demo().decode({}, SpecialText::keep), "");
}

TEST(Tokenizer, SkippingLeavesOutSpecialTokensButNotOtherAddedTokens) {
  const std::vector<TokenId> ids = {8187, 8189, *demo().id_of("x"), 8190, 8188};
  EXPECT_EQ(demo().decode(ids, SpecialText::keep), "<|im_start|><think>x</think><|im_end|>");
  EXPECT_EQ(demo().decode(ids, SpecialText::skip), "<think>x</think>");
}

// Would take hours if a piece cost the square of its length.
TEST(Tokenizer, OneMillionOfTheSameLetterIsEncoded) {
  for (const char* unit : {"a", " ", "\n", "!", "e\u0301"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    const auto ids = encoded(demo(), text, SpecialTokens::recognise);
    std::string normal;
    if (!normalize_nfc(text, normal, nullptr)) normal = text;
    EXPECT_EQ(demo().decode(ids, SpecialText::keep), normal) << unit;
  }
}

TEST(AddedTokens, StripSpaceMatchWholeWordsAndPreferTheLongest) {
  const Tokenizer t = tiny_tokenizer({.added = R"(
      {"id":300,"content":"<l>","lstrip":true,
       "rstrip":false,"single_word":false,"normalized":false,"special":true},
      {"id":301,"content":"<r>","lstrip":false,
       "rstrip":true,"single_word":false,"normalized":false,"special":true},
      {"id":302,"content":"cat","lstrip":false,
       "rstrip":false,"single_word":true,"normalized":false,"special":false},
      {"id":303,"content":"<r>x","lstrip":false,
       "rstrip":false,"single_word":false,"normalized":false,"special":true})"});
  const auto ids = [&](std::string_view text) { return encoded(t, text, SpecialTokens::recognise); };
  const TokenId a = *t.id_of("a"), space = *t.id_of("Ġ");
  EXPECT_EQ(ids("a  <l> a"), (std::vector<TokenId>{a, 300, space, a}));
  EXPECT_EQ(ids("a <r> \n a"), (std::vector<TokenId>{a, space, 301, a}));
  EXPECT_EQ(ids("a<r>xa"), (std::vector<TokenId>{a, 303, a}));
  EXPECT_EQ(ids("cat"), (std::vector<TokenId>{302}));
  EXPECT_EQ(ids("a cat"), (std::vector<TokenId>{a, space, 302}));
  EXPECT_EQ(ids("acat").size(), 4u);
  EXPECT_EQ(ids("cats").size(), 4u);
  EXPECT_EQ(ids("cat\u0301").size(), 5u) << "a combining mark is a word character";
}

TEST(AddedTokens, NormalizedOnesAreFoundInNormalFormOthersInTheRawText) {
  const Tokenizer t = tiny_tokenizer({.added = R"(
      {"id":300,"content":"ń","lstrip":false,
       "rstrip":false,"single_word":false,"normalized":true,"special":false},
      {"id":301,"content":"Ω","lstrip":false,
       "rstrip":false,"single_word":false,"normalized":false,"special":false})",
                                      .normalizer = R"({"type":"NFC"})"});
  EXPECT_EQ(encoded(t, "n\u0301ń", SpecialTokens::recognise), (std::vector<TokenId>{300, 300}));
  EXPECT_EQ(encoded(t, "\u03A9", SpecialTokens::recognise), (std::vector<TokenId>{301}));
  EXPECT_EQ(encoded(t, "\u2126", SpecialTokens::recognise).size(), 2u)
      << "no raw match: its two normal bytes";
  const TextPart parts[] = {{"ń n\u0301", SpecialTokens::plain}, {"n\u0301", SpecialTokens::recognise}};
  const auto ids = t.encode(parts);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 300), 1) << "only the one from the recognised part";
  EXPECT_EQ(t.decode(*ids, SpecialText::keep), "ń ńń");
}

TEST(Tokenizer, IgnoreMergesTakesAWholePieceAsItsToken) {
  // "abc" is in the vocabulary, but the merges only reach "ab" + "c".
  const TinyTokenizer base{.vocab = R"(,"ab":256,"abc":257)", .merges = R"("a b")"};
  TinyTokenizer ignoring = base;
  ignoring.model = R"("ignore_merges":true,)";
  EXPECT_EQ(encoded(tiny_tokenizer(base), "abc", SpecialTokens::plain).size(), 2u);
  EXPECT_EQ(encoded(tiny_tokenizer(ignoring), "abc", SpecialTokens::plain), (std::vector<TokenId>{257}));
}

TEST(Tokenizer, IgnoreMergesMakesNoAddedTokenFromPlainText) {
  const Tokenizer t = tiny_tokenizer(
      {.added = R"({"id":300,"content":"ab","special":true})", .model = R"("ignore_merges":true,)"});
  EXPECT_EQ(encoded(t, "ab", SpecialTokens::recognise), (std::vector<TokenId>{300}));
  EXPECT_EQ(encoded(t, "ab", SpecialTokens::plain), (std::vector<TokenId>{*t.id_of("a"), *t.id_of("b")}));
}

}  // namespace
}  // namespace tandem
