// Byte-pair encoding over byte-level symbols: the printable alphabet for bytes and the merge procedure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace tandem {

// The printable stand-in of a byte, from GPT-2: 33..126, 161..172 and 174..255 stand for themselves, the
// other 68 bytes in ascending order are U+0100..U+0143.
char32_t printable_of_byte(uint8_t byte);
// The byte that a code point stands for; nothing for a code point outside the alphabet.
std::optional<uint8_t> byte_of_printable(char32_t code_point);

// Bytes in the printable alphabet, as the keys of a vocabulary are written.
std::string to_printable(std::string_view bytes);
// Replaces `bytes` by what a vocabulary key (valid UTF-8) stands for; false when it has a character outside
// the alphabet.
bool from_printable(std::string_view key, std::string& bytes);

// Ranked merges: (left, right) -> (rank, merged). Filled once at load, then only read, from any thread.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;  // -1: the pair does not merge
    TokenId merged = -1;
  };

  void reserve(size_t n_merges);
  // A pair given twice keeps the later rank, as the reference does. Ids must be >= 0.
  void add(TokenId left, TokenId right, Merge merge);
  Merge find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  size_t slot_of(uint64_t key) const;

  std::vector<Slot> slots_;  // a power of two, at most half full; linear probing
  size_t n_used_ = 0;
};

// Merges one piece at a time; holds scratch memory, so one per call or thread.
// Applies the pair of lowest rank first, the leftmost of equals, until no pair merges. O(n log n) for n
// symbols.
class BpeMerger {
 public:
  // `symbols` are the ids of the piece's bytes; the ids after merging are appended to `out`.
  void merge(const MergeTable& table, const std::vector<TokenId>& symbols, std::vector<TokenId>& out);

 private:
  struct Symbol {
    TokenId id;  // -1: swallowed by its left neighbour
    int32_t previous, next;
  };
  struct Candidate {
    uint64_t order;  // rank in the high half, position in the low half
    TokenId merged;
  };
  void propose(const MergeTable& table, int32_t left);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace tandem
