// Cuts normalised text into the pieces within which byte pairs may merge.
//
// The three patterns that published checkpoints of the supported families carry (Qwen2/3, Qwen3.5, Llama-3)
// run on a hand-written scanner. Any other pattern is translated for PCRE2 with its Unicode classes written
// out, or refused with the construct that cannot be translated (pretokenizer_regex.h lists what can).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/pretokenizer_scan.h"

namespace tandem {

class SplitRegex;

class PreTokenizer {
 public:
  // What a split keeps as pieces: matches and the gaps between them, or only one of the two.
  enum class Keep { all, matches, gaps };

  // Appends a step that cuts each piece of the step before it. Error: a construct of the pattern that is not
  // supported.
  Status add_split(const std::string& pattern, Keep keep);

  // The pieces of `text` (valid UTF-8), in order; views into it. Without steps the whole text is one piece.
  // Error: a pattern needed more steps or memory than allowed (never one of the three known patterns).
  Status cut(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Step {
    std::optional<ScanRules> rules;           // a known pattern; else
    std::shared_ptr<const SplitRegex> regex;  // immutable, shared by copies of the tokenizer
    Keep keep = Keep::all;
  };
  static Status cut_one(const Step& step, std::string_view text, std::vector<std::string_view>& pieces);

  std::vector<Step> steps_;
};

}  // namespace tandem
