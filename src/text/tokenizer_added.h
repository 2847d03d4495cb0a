// Added tokens: strings of a tokenizer.json that are found in the text before anything else is done to it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "text/unicode.h"

namespace tandem {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;      // left out of decoded text on request
  bool single_word = false;  // only between characters that are no word characters
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space behind it along
  bool normalized = false;   // looked for after normalisation (in normal form), not before
};

// Finds added tokens, leftmost first and the longest of those that start together. Immutable after add().
class AddedTokenMatcher {
 public:
  // `pattern` is what to look for; not empty. A pattern added twice keeps the first token.
  void add(const AddedToken& token, std::string_view pattern);
  bool empty() const { return tokens_.empty(); }

  struct Found {
    TokenId id = -1;  // -1: text between added tokens
    ByteRange range;  // bytes of the text, never empty for id -1
  };
  // The text cut at its added tokens, in order. Tokens are looked for inside the `recognised` ranges
  // (ascending) only; the stripping and single-word rules look at the whole text. The reference does the same
  // with one range.
  std::vector<Found> split(std::string_view text, const std::vector<ByteRange>& recognised) const;

 private:
  struct Node {
    int token = -1;                              // index into tokens_ of the pattern that ends here
    std::vector<std::pair<char, int>> children;  // ascending by byte
  };
  struct Rules {
    TokenId id;
    bool single_word, lstrip, rstrip;
  };
  int child(int node, char byte) const;
  // Length of the longest pattern at text[at..end) and its index into tokens_; {0, -1} for none.
  std::pair<size_t, int> longest(std::string_view text, size_t at, size_t end) const;

  std::vector<Node> nodes_{1};
  std::vector<Rules> tokens_;
  bool starts_[256] = {};  // bytes that some pattern starts with
};

}  // namespace tandem
