// A tokenizer of the 256 single bytes and the tags of an answer, and texts as its tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tiny_tokenizer.h"

namespace tandem {

constexpr TokenId kEndId = 256, kThinkId = 257, kThinkEndId = 258, kCallId = 259, kCallEndId = 260;

inline const Tokenizer& tag_tokenizer() {
  static const Tokenizer tokenizer = [] {
    std::string added;
    const std::pair<const char*, bool> tags[] = {{"<|im_end|>", true},
                                                 {"<think>", false},
                                                 {"</think>", false},
                                                 {"<tool_call>", false},
                                                 {"</tool_call>", false}};
    int id = kEndId;
    for (const auto& [text, special] : tags) {
      added += std::string(added.empty() ? "" : ",") + R"({"id":)" + std::to_string(id++) +
               R"(,"content":")" + text +
               R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":)" +
               (special ? "true" : "false") + "}";
    }
    return tiny_tokenizer({.vocab = R"(,"ab":261,"the":262)", .merges = R"("a b")", .added = added});
  }();
  return tokenizer;
}

// Tags as their tokens, all else as single bytes (or "ab").
inline std::vector<TokenId> tag_tokens(std::string_view text) {
  const auto ids = tag_tokenizer().encode(text, SpecialTokens::recognise);
  EXPECT_TRUE(ids.ok()) << ids.error().message;
  return *ids;
}

}  // namespace tandem
