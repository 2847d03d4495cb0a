// Pre-tokenizer patterns on PCRE2, with the meaning they have for Oniguruma (which the reference uses).
//
// PCRE2 knows an older Unicode than ICU and takes U+180E for white space, so \s, \d, \p{..} and their
// negations are written out as code point ranges from ICU. Accepted: literals, escapes of punctuation, \r \n
// \t \f \v \a \e \xHH \x{H..} \uHHHH, \s \S \d \D \p{..} \P{..} \p{^..}, classes with ranges and negation, .
// ( ) | ? * + {n,m} with lazy and possessive ? * +, groups (?: (?i: (?> and look-around (?= (?! (?<= (?<!.
// Everything else is refused by name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

class SplitRegex {
 public:
  // Error: what in the pattern is not accepted, or PCRE2's own reason.
  static Result<std::shared_ptr<const SplitRegex>> compile(const std::string& pattern);
  ~SplitRegex();
  SplitRegex(const SplitRegex&) = delete;
  SplitRegex& operator=(const SplitRegex&) = delete;

  // Calls `match(begin, end)` for all matches in `text` (valid UTF-8) from left to right; they do not
  // overlap, and an empty match never stands at the end of the match before it. Error: PCRE2's match or stack
  // limit was reached.
  Status for_each(std::string_view text, const std::function<void(size_t begin, size_t end)>& match) const;

 private:
  SplitRegex() = default;
  void* code_ = nullptr;  // pcre2_code, read-only after compile(); void keeps pcre2.h out of this header
};

// The pattern as PCRE2 should read it. For SplitRegex and its test.
Result<std::string> translate_pattern(std::string_view pattern);

}  // namespace tandem
