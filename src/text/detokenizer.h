// Token ids to text, one at a time: what comes out is always whole characters, and all of it joined is
// Tokenizer::decode of all ids.
#pragma once

#include <string>

#include "base/ids.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tandem {

class Detokenizer {
 public:
  // Borrows the tokenizer, which must outlive this object.
  Detokenizer(const Tokenizer& tokenizer, SpecialText special) : tokenizer_(&tokenizer), special_(special) {}

  // The text that `id` completes; empty while a character is still incomplete, and for what decodes to
  // nothing. Bytes that cannot become a character come out as one U+FFFD per maximal invalid part as soon as
  // that is certain.
  std::string feed(TokenId id);
  // What was held back: U+FFFD for an incomplete character at the end, else nothing. The object is then as
  // new.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  SpecialText special_;
  Utf8Stream utf8_;
};

}  // namespace tandem
