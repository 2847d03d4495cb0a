// What a sequence has said so far, counted for the penalties. Draft tokens may be pushed as if they were
// output and popped again, so that row i of a verify step sees the drafts before it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "sample/params.h"

namespace tandem {

// How often each token occurs in the last `window` tokens pushed (0: in all). pop() undoes the latest push()
// exactly. Memory and time follow the number of tokens, not the vocabulary.
class TokenCounts {
 public:
  struct Entry {
    TokenId token = kFree;
    uint32_t count = 0;  // > 0 unless free
  };
  static constexpr TokenId kFree = -1;

  explicit TokenCounts(int window) : window_(size_t(window)) {}

  void reserve(size_t n_tokens);  // no allocation while at most that many tokens are held
  void push(TokenId token);
  void pop();
  size_t size() const { return tokens_.size(); }
  // A hash table: entries in no particular order, free ones among them.
  std::span<const Entry> entries() const { return table_; }

 private:
  size_t slot_of(TokenId token) const;  // where it is, or the free slot where it would go
  void add(TokenId token);
  void drop(TokenId token);
  void grow(size_t n_slots);

  size_t window_;
  size_t n_used_ = 0;            // entries that are not free
  std::vector<TokenId> tokens_;  // everything pushed
  std::vector<Entry> table_;     // open addressing, linear probing; a power of two, at most half full
};

// Prompt and output of one sequence.
class TokenHistory {
 public:
  // Counts with the windows of `params`. n_output_max: outputs (drafts included) that need no allocation.
  TokenHistory(std::span<const TokenId> prompt, const SamplingParams& params, int n_output_max = 0);

  // One output token, chosen or hypothetical.
  void push(TokenId token);
  // Takes back the last n outputs.
  void pop(int n = 1);

  int n_output() const { return int(output_.size()); }
  const TokenCounts& prompt_and_output() const { return all_; }
  const TokenCounts& output() const { return output_; }

 private:
  TokenCounts all_;
  TokenCounts output_;
};

}  // namespace tandem
