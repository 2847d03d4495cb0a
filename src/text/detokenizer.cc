#include "text/detokenizer.h"

namespace tandem {

std::string Detokenizer::feed(TokenId id) {
  std::string text;
  if (special_ == SpecialText::skip && tokenizer_->is_special(id)) return text;
  utf8_.feed(tokenizer_->token_bytes(id), text);
  return text;
}

std::string Detokenizer::finish() {
  std::string text;
  utf8_.finish(text);
  return text;
}

}  // namespace tandem
