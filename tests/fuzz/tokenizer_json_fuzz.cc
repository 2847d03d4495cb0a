// Any bytes as tokenizer.json: an error or a tokenizer that encodes and decodes without fault.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = tandem::Tokenizer::parse(bytes);
  if (!tokenizer.ok()) return 0;
  const std::string_view text =
      "it'S  a\n\n<|im_end|> e\xCC\x81 \xE2\x84\xAB 123 <think>\r\n \xF0\x9F\x98\x80 ab aab";
  for (const auto mode : {tandem::SpecialTokens::recognise, tandem::SpecialTokens::plain}) {
    const auto ids = tokenizer->encode(text, mode);
    if (ids.ok()) (void)tokenizer->decode(*ids, tandem::SpecialText::keep);
  }
  tandem::Detokenizer stream(*tokenizer, tandem::SpecialText::skip);
  for (tandem::TokenId id = -1; id < 300; ++id) (void)stream.feed(id);
  (void)stream.finish();
  return 0;
}
