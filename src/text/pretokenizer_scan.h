// Hand-written matcher for the pre-tokenizer patterns of Qwen2/3, Qwen3.5 and Llama-3. They are one pattern
// with two parameters (M: marks count as letters, k: digits per piece):
//   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}M]+|\p{N}{1,k}|
//   ?[^\s\p{L}M\p{N}]+[\r\n]*|\s*[\r\n]+| \s+(?!\S)|\s+
// Every character starts a match, so there are no gaps. Linear: a character is looked at no more than three
// times.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace tandem {

struct ScanRules {
  bool marks_are_letters = false;  // Qwen3.5
  int max_digits = 1;              // Llama-3: 3
};

// The rules for a pattern, compared as text; nothing for any other pattern.
std::optional<ScanRules> known_pattern(std::string_view pattern);

// End of the match that starts at text[at]; `text` is valid UTF-8, `at` a boundary < text.size().
size_t scan_piece(std::string_view text, size_t at, const ScanRules& rules);

}  // namespace tandem
