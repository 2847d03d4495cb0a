// UTF-8 and the Unicode properties that a byte-level tokenizer needs. Properties and NFC come from ICU
// (Unicode 15).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

// One code point and the bytes it takes.
struct CodePoint {
  char32_t value = 0;
  uint32_t n_bytes = 0;
};

// Offset of the first byte that starts no well-formed UTF-8 sequence; nothing when all of `text` is valid.
std::optional<size_t> first_invalid_utf8(std::string_view text);

// The code point that starts at text[at]. `text` must be valid UTF-8 and `at` a boundary inside it.
CodePoint code_point_at(std::string_view text, size_t at);

// The code point that ends just before text[end]. `text` must be valid UTF-8 and `end` a boundary > 0.
CodePoint code_point_before(std::string_view text, size_t end);

void append_utf8(char32_t code_point, std::string& out);

// UTF-8 decoder for bytes that arrive in pieces, as in the WHATWG encoding standard: only whole code points
// come out, each maximal part that cannot become valid is replaced by one U+FFFD, at most 3 bytes are held
// back.
class Utf8Stream {
 public:
  void feed(std::string_view bytes, std::string& out);
  // An incomplete sequence at the end becomes one U+FFFD. The stream is then as new.
  void finish(std::string& out);
  size_t n_held() const { return n_held_; }

 private:
  char held_[4] = {};
  size_t n_held_ = 0;
  int n_missing_ = 0;                       // continuation bytes still to come
  uint8_t lowest_ = 0x80, highest_ = 0xBF;  // range allowed for the next one
};

// What the pre-tokenizer patterns tell apart. `newline` is CR and LF only; `space` is U+0020 only; `white`
// the rest of White_Space. Everything that is no letter (L), mark (M), number (N) or white space is `other`,
// unassigned included.
enum class CharClass : uint8_t { letter, mark, number, newline, space, white, other };

CharClass char_class(char32_t code_point);
bool is_white_space(char32_t code_point);
// \w of the reference's added-token rule: Alphabetic, M, Nd, Pc or Join_Control.
bool is_word(char32_t code_point);

// Inclusive range of code points.
struct CodePointRange {
  char32_t first = 0, last = 0;
};

// The code points with a property as it is written between the braces of \p{..} ("L", "Lu", "Han",
// "White_Space"), in ascending order; nothing when ICU does not know the name.
std::optional<std::vector<CodePointRange>> code_points_with(std::string_view property);

// Byte ranges [begin, end) of a text that must stay recognisable after normalisation.
struct ByteRange {
  size_t begin = 0, end = 0;
};

// NFC of `text` (valid UTF-8) as Unicode 9 defines it: younger characters stay where they are. When the text
// is already normalised nothing is written and false is returned. `ranges` (ascending) are moved to where
// their bytes end up; a change that touches a range counts wholly to it.
bool normalize_nfc(std::string_view text, std::string& out, std::vector<ByteRange>* ranges);

}  // namespace tandem
