// Generators of texts and byte strings for the property tests.
#pragma once

#include <rapidcheck.h>

#include <string>
#include <vector>

#include "text/unicode.h"

namespace tandem {

// Any code point but a surrogate, small ones more often.
inline rc::Gen<char32_t> any_code_point() {
  const auto below = [](uint32_t end) { return rc::gen::cast<char32_t>(rc::gen::inRange<uint32_t>(0, end)); };
  return rc::gen::suchThat(
      rc::gen::oneOf(below(0x80), below(0x300), below(0x3100), below(0x10000), below(0x110000)),
      [](char32_t c) { return c < 0xD800 || c > 0xDFFF; });
}

// Valid UTF-8 made of what tokenizers treat specially and of any characters.
inline rc::Gen<std::string> any_text() {
  const auto special = rc::gen::elementOf(std::vector<std::string>{" ",
                                                                   "  ",
                                                                   "\n",
                                                                   "\r\n",
                                                                   "\r",
                                                                   "\t",
                                                                   "\u00A0",
                                                                   "\u3000",
                                                                   "\u0085",
                                                                   "\u180E",
                                                                   "a",
                                                                   "the",
                                                                   "É",
                                                                   "漢",
                                                                   "ع",
                                                                   "ſ",
                                                                   "'",
                                                                   "'s",
                                                                   "'S",
                                                                   "'ſ",
                                                                   "'Ll",
                                                                   "'re",
                                                                   "'T",
                                                                   "'x",
                                                                   "'",
                                                                   "0",
                                                                   "123",
                                                                   "٣",
                                                                   "½",
                                                                   "Ⅻ",
                                                                   ".",
                                                                   "!?",
                                                                   "((",
                                                                   "\u200D",
                                                                   "\U0001F469",
                                                                   "e\u0301",
                                                                   "\u0301",
                                                                   "\u094D",
                                                                   "\u0323\u0307",
                                                                   "\u1100\u1161",
                                                                   "\u212B",
                                                                   "<|im_end|>",
                                                                   "<think>",
                                                                   "<|im_",
                                                                   "\U00011380",
                                                                   "\u0C3C\u0300"});
  const auto one = rc::gen::map(any_code_point(), [](char32_t c) {
    std::string s;
    append_utf8(c, s);
    return s;
  });
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::oneOf(special, special, one)),
                      [](const std::vector<std::string>& parts) {
                        std::string text;
                        for (const std::string& part : parts) text += part;
                        return text;
                      });
}

// Bytes that are seldom valid UTF-8, but often nearly so.
inline rc::Gen<std::string> any_bytes() {
  const auto byte = rc::gen::map(rc::gen::inRange(0, 256), [](int b) { return std::string(1, char(b)); });
  const auto lead =
      rc::gen::elementOf(std::vector<std::string>{"\xC3", "\xE0", "\xE2\x82", "\xED", "\xF0\x9F", "\xF4",
                                                  "\xF0\x90\x80", "\xE2\x82\xAC", "\xBF", "\x80", "a"});
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::oneOf(byte, lead, lead)),
                      [](const std::vector<std::string>& parts) {
                        std::string bytes;
                        for (const std::string& part : parts) bytes += part;
                        return bytes;
                      });
}

}  // namespace tandem
