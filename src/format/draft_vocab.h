// The part of a vocabulary that a drafter's head computes, as a file that `tandem draft-vocab` makes:
//   {"vocab_size": 151936, "coverage": 0.985, "ids": [0, 1, 5, ...]}
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace tandem {

// Of the tokens that the target would choose, this share must be among a draft vocabulary's.
constexpr double kLeastDraftCoverage = 0.97;

struct DraftVocab {
  int vocab_size = 0;        // of the model it was made for
  double coverage = 0;       // measured on text that was not used to choose the ids
  std::vector<TokenId> ids;  // ascending, unique, in the vocabulary
};

// Errors: not such a file; ids that are not ascending or outside the vocabulary; too small a coverage.
Result<DraftVocab> parse_draft_vocab(std::span<const std::byte> text, const std::string& path);
Result<DraftVocab> load_draft_vocab(const std::string& path);
std::string draft_vocab_text(const DraftVocab& vocab);

}  // namespace tandem
