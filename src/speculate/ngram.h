// Lookup: what followed the last few tokens when they occurred before, in the prompt or in the output. Needs
// no model; good where text repeats itself (code, quotations, tables).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace tandem {

struct NgramOptions {
  int min_match = 2;         // shorter matches propose nothing
  int max_match = 8;         // longer ones count as this long
  int max_tokens = 1 << 15;  // remembered; beyond, the older half is forgotten
};

struct NgramProposal {
  int n_tokens = 0;
  int match = 0;  // tokens that matched; 0 if nothing was found
};

// Index of one sequence. Memory is taken once, in the constructor: (1 + 2 (max_match - min_match + 1)) 4
// bytes per token, about doubled by rounding up to a power of two.
class NgramIndex {
 public:
  // Needs 1 <= min_match <= max_match <= 16 and max_tokens >= 2 max_match.
  explicit NgramIndex(const NgramOptions& options);

  // O(max_match), amortised; any id.
  void append(TokenId token);
  void append(std::span<const TokenId> tokens);

  // The continuation of the longest earlier occurrence of the last tokens; of several the most recent. Where
  // it runs into the end of the text it goes on with what it proposed itself: a loop is continued.
  NgramProposal propose(std::span<TokenId> out) const;

  void clear();
  int n_tokens() const { return int(tokens_.size()); }  // remembered

 private:
  using Table = std::vector<uint32_t>;  // open addressing: 1 + index of the token behind a match, or 0

  int n_levels() const { return options_.max_match - options_.min_match + 1; }
  // The slot of the `length` tokens before `end`: theirs, or an empty one.
  size_t slot(const Table& table, int length, uint32_t hash, size_t end) const;
  // Enters all matches that end before token `end`.
  void enter(size_t end);
  void forget_older_half();

  NgramOptions options_;
  std::vector<TokenId> tokens_;
  std::vector<Table> tables_;  // by length of match, shortest first
};

}  // namespace tandem
