// What the reader makes of tokenizer.json files that are unusual, wrong or hostile.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>

#include "text/tokenizer.h"
#include "tiny_tokenizer.h"

namespace tandem {
namespace {

std::string error_of(const std::string& json, std::string_view config = {}) {
  const auto tokenizer = Tokenizer::parse(json, config);
  return tokenizer.ok() ? "" : tokenizer.error().message;
}

#define EXPECT_REFUSED(json, part)                                                                 \
  do {                                                                                             \
    const std::string message = error_of(json);                                                    \
    EXPECT_NE(message.find(part), std::string::npos) << "the message is: \"" << message << '"';    \
    EXPECT_EQ(message.rfind("tokenizer.json: ", 0), 0u) << "the message is: \"" << message << '"'; \
  } while (0)

std::string added(const std::string& fields) { return tiny_json({.added = "{" + fields + "}"}); }

TEST(TokenizerReader, AcceptsMergesAsTextOrPairs) {
  const std::string vocab = R"(,"ab":256,"Ġa":257)";
  const Tokenizer text = tiny_tokenizer({.vocab = vocab, .merges = R"("a b","Ġ a")"});
  const Tokenizer pairs = tiny_tokenizer({.vocab = vocab, .merges = R"(["a","b"],["Ġ","a"])"});
  for (const char* s : {"ab", " ab a", "a b"}) {
    EXPECT_EQ(*text.encode(s, SpecialTokens::plain), *pairs.encode(s, SpecialTokens::plain)) << s;
  }
  EXPECT_EQ(*pairs.encode("ab", SpecialTokens::plain), (std::vector<TokenId>{256}));
}

TEST(TokenizerReader, RefusesWhatWouldChangeTheIdsWithoutBeingImplemented) {
  EXPECT_REFUSED(tiny_json({.normalizer = R"({"type":"Lowercase"})"}), "normalizer.type: \"Lowercase\"");
  EXPECT_REFUSED(tiny_json({.normalizer = R"({"type":"Sequence","normalizers":[{"type":"NFKC"}]})"}),
                 "normalizer.normalizers[0].type: \"NFKC\"");
  EXPECT_REFUSED(tiny_json({.pre_tokenizer = "null"}), "pre_tokenizer: expected a ByteLevel step");
  EXPECT_REFUSED(tiny_json({.pre_tokenizer = R"({"type":"Metaspace"})"}),
                 "pre_tokenizer.type: \"Metaspace\"");
  EXPECT_REFUSED(tiny_json({.pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":true})"}),
                 "pre_tokenizer.add_prefix_space: true is not supported");
  EXPECT_REFUSED(tiny_json({.pre_tokenizer = R"({"type":"Sequence","pretokenizers":[{"type":"Split",
      "pattern":{"Regex":"\\bx"},"behavior":"Isolated"},{"type":"ByteLevel"}]})"}),
                 "pre_tokenizer.pretokenizers[0].pattern.Regex: not supported: at byte 0");
  EXPECT_REFUSED(tiny_json({.pre_tokenizer = R"({"type":"Sequence","pretokenizers":[{"type":"Split",
      "pattern":{"Regex":"x"},"behavior":"MergedWithNext"},{"type":"ByteLevel"}]})"}),
                 "behavior: \"MergedWithNext\"");
  EXPECT_REFUSED(tiny_json({.pre_tokenizer = R"({"type":"Sequence","pretokenizers":[{"type":"Split",
      "pattern":{"String":"x"},"behavior":"Isolated"},{"type":"ByteLevel"}]})"}),
                 "pattern.Regex: expected a string, found nothing");
  EXPECT_REFUSED(tiny_json({.model = R"("byte_fallback":true,)"}), "model.byte_fallback: true");
  EXPECT_REFUSED(tiny_json({.model = R"("dropout":0.1,)"}), "model.dropout: 0.1");
  EXPECT_REFUSED(tiny_json({.model = R"("end_of_word_suffix":"</w>",)"}),
                 "model.end_of_word_suffix: \"</w>\"");
  EXPECT_REFUSED(R"({"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"WordPiece"},"model":{}})",
                 "decoder.type: \"WordPiece\"");
  EXPECT_REFUSED(R"({"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},
                     "post_processor":{"type":"Mystery"},"model":{}})",
                 "post_processor.type: \"Mystery\"");
  EXPECT_REFUSED(R"({"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},
                     "model":{"type":"Unigram"}})",
                 "model.type: \"Unigram\"");
  EXPECT_EQ(error_of(tiny_json({.model = R"("dropout":null,"fuse_unk":false,"end_of_word_suffix":"",)"})),
            "");
}

TEST(TokenizerReader, NamesTheFieldOfAWrongTypeOrValue) {
  EXPECT_REFUSED("", "the file is empty");
  EXPECT_REFUSED("{", "not valid JSON");
  EXPECT_REFUSED("[]", "expected a JSON object, found a list");
  EXPECT_REFUSED(R"({"version":"2.0"})", "version: expected \"1.0\", found \"2.0\"");
  EXPECT_REFUSED(tiny_json({.vocab = R"(,"x y":-1)"}), "model.vocab: \"x y\": expected an id");
  EXPECT_REFUSED(tiny_json({.vocab = R"(,"xy":2097152)"}), "expected an id in [0, 2097151], found 2097152");
  EXPECT_REFUSED(tiny_json({.vocab = R"(,"xy":1.5)"}), "found 1.5");
  EXPECT_REFUSED(tiny_json({.vocab = R"(,"xy":97)"}), "model.vocab: \"xy\": id 97 is given twice");
  EXPECT_REFUSED(tiny_json({.vocab = R"(,"a":300)"}), "the token of id 300 is also id 97");
  EXPECT_REFUSED(tiny_json({.merges = R"("ab")"}), "model.merges[0]: expected");
  EXPECT_REFUSED(tiny_json({.merges = R"("a b c")"}), "model.merges[0]: expected");
  EXPECT_REFUSED(tiny_json({.merges = R"(["a"])"}), "model.merges[0]: expected");
  EXPECT_REFUSED(tiny_json({.vocab = R"(,"ab":256)", .merges = R"("a b",["a","c"])"}),
                 "model.merges[1]: \"ac\" is not in the vocabulary");
  EXPECT_REFUSED(tiny_json({.merges = "7"}), "model.merges[0]: expected");
  EXPECT_REFUSED(added(R"("content":"x")"), "added_tokens[0].id: expected an integer");
  EXPECT_REFUSED(added(R"("id":300)"), "added_tokens[0].content: expected a string");
  EXPECT_REFUSED(added(R"("id":300,"content":"<x>","special":"yes")"),
                 "added_tokens[0].special: expected true or false");
  EXPECT_REFUSED(added(R"("id":97,"content":"<x>")"), "\"<x>\": id 97 is given twice");
  EXPECT_REFUSED(added(R"("id":300,"content":"a")"), "the token of id 300 is also id 97");
  EXPECT_REFUSED(added(R"("id":300,"content":")" + std::string(5000, 'x') + "\""), "5000 bytes long");
  EXPECT_REFUSED(R"({"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},
                     "model":{"vocab":{},"merges":[]}})",
                 "model.vocab: has no entries");
  EXPECT_REFUSED(std::string(40, '[') + std::string(40, ']'), "nested deeper than 32");
}

TEST(TokenizerReader, AnErrorShowsNoControlCharactersOfTheFile) {
  const std::string message = error_of(tiny_json({.normalizer = R"({"type":"\u001b[31mred\u0000"})"}));
  EXPECT_EQ(message.find('\x1b'), std::string::npos) << message;
  EXPECT_EQ(message.find('\0'), std::string::npos);
}

TEST(TokenizerReader, AByteWithoutTokenIsAnErrorOfTheTextThatHasIt) {
  const auto tokenizer =
      Tokenizer::parse(R"({"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},
      "model":{"vocab":{"a":0,"b":1,"ab":5},"merges":["a b"]}})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(*tokenizer->encode("ab", SpecialTokens::plain), (std::vector<TokenId>{5}));
  EXPECT_EQ(tokenizer->n_tokens(), 6);
  EXPECT_FALSE(tokenizer->has_token(3));
  EXPECT_EQ(tokenizer->token_bytes(3), "");
  const auto ids = tokenizer->encode("abc", SpecialTokens::plain);
  ASSERT_FALSE(ids.ok());
  EXPECT_NE(ids.error().message.find("no token for the byte 0x63"), std::string::npos) << ids.error().message;
}

TEST(TokenizerReader, ReadsTheNamedTokensAsStringsOrObjects) {
  const std::string json = added(R"("id":300,"content":"<s>","special":true)");
  const auto t = Tokenizer::parse(json, R"({"bos_token":{"content":"<s>","lstrip":false},"eos_token":"<s>",
      "pad_token":null,"chat_template":"{{ x }}"})");
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_EQ(t->bos(), 300);
  EXPECT_EQ(t->eos(), 300);
  EXPECT_EQ(t->pad(), std::nullopt);
  EXPECT_EQ(Tokenizer::parse(json, R"({"eos_token":"<unknown>"})")->eos(), std::nullopt);
  EXPECT_EQ(error_of(json, R"({"eos_token":7})"),
            "tokenizer_config.json: eos_token: expected a string, found 7");
}

TEST(TokenizerReader, NamesTheFileThatItCannotRead) {
  const auto missing = Tokenizer::load("no/such/folder");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("no/such/folder/tokenizer.json"), std::string::npos);
  const std::string folder = testing::TempDir() + "/tandem_tokenizer_reader";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.json") << tiny_json({});
  std::ofstream(folder + "/tokenizer_config.json") << "{";
  const auto broken = Tokenizer::load(folder);
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find(folder + "/tokenizer_config.json"), std::string::npos);
  std::filesystem::remove(folder + "/tokenizer_config.json");
  EXPECT_TRUE(Tokenizer::load(folder).ok());
  std::filesystem::remove_all(folder);
}

// One byte of a good file changed, or its end cut off: an error or a working tokenizer, never a crash.
RC_GTEST_PROP(TokenizerReader, DamagedFilesGiveAnErrorOrAWorkingTokenizer, ()) {
  std::string json = tiny_json({.vocab = R"(,"ab":256,"Ġab":257)",
                                .merges = R"("a b",["Ġ","ab"])",
                                .added = R"({"id":300,"content":"<x>","special":true,"lstrip":true})",
                                .normalizer = R"({"type":"NFC"})"});
  const size_t at = *rc::gen::inRange<size_t>(0, json.size());
  if (*rc::gen::arbitrary<bool>()) {
    json[at] = *rc::gen::elementOf(std::string("{}[]\",:0a\\\x01\xff"));
  } else {
    json.resize(at);
  }
  const auto tokenizer = Tokenizer::parse(json);
  if (!tokenizer.ok()) {
    RC_ASSERT(!tokenizer.error().message.empty());
    return;
  }
  const auto ids = tokenizer->encode(" ab <x>e\u0301\n", SpecialTokens::recognise);
  if (ids.ok()) (void)tokenizer->decode(*ids, SpecialText::keep);
}

}  // namespace
}  // namespace tandem
