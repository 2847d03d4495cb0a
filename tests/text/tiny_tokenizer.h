// A tokenizer.json with the 256 single bytes as ids 0..255, to which a test adds what it is about.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "text/bpe.h"
#include "text/tokenizer.h"

namespace tandem {

struct TinyTokenizer {
  std::string vocab = "";   // further entries: ,"ab":256
  std::string merges = "";  // "a b", ["a","b"]
  std::string added = "";   // objects of added_tokens
  std::string normalizer = "null";
  std::string model = "";  // further fields of model, each followed by a comma
  std::string pre_tokenizer =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
};

inline std::string tiny_json(const TinyTokenizer& t) {
  std::string vocab;
  for (int b = 0; b < 256; ++b) {
    const char byte = char(b);
    std::string key = to_printable({&byte, 1});
    if (key == "\"" || key == "\\") key.insert(0, "\\");
    vocab += (b ? ",\"" : "\"") + key + "\":" + std::to_string(b);
  }
  return R"({"version":"1.0","normalizer":)" + t.normalizer + R"(,"pre_tokenizer":)" + t.pre_tokenizer +
         R"(,"decoder":{"type":"ByteLevel"},"added_tokens":[)" + t.added + R"(],"model":{"type":"BPE",)" +
         t.model + R"("vocab":{)" + vocab + t.vocab + R"(},"merges":[)" + t.merges + "]}}";
}

inline Tokenizer tiny_tokenizer(const TinyTokenizer& t) {
  auto tokenizer = Tokenizer::parse(tiny_json(t));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return *std::move(tokenizer);
}

}  // namespace tandem
