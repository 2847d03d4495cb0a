// The two directions of a vocabulary: token string -> id, id -> bytes. Two blocks of characters and two flat
// tables, so that 150,000 entries load in a few milliseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace tandem {

class Vocab {
 public:
  // Room for entries with ids < kMaxIds; several times the largest published vocabulary.
  static constexpr int64_t kMaxIds = int64_t{1} << 21;

  void reserve(size_t n_entries);
  // Adds a token written as `key` that stands for `bytes`. Errors: id out of range; a key or id that is
  // already taken.
  Status add(std::string_view key, TokenId id, std::string_view bytes);

  std::optional<TokenId> find(std::string_view key) const;
  bool has(TokenId id) const { return id >= 0 && size_t(id) < by_id_.size() && by_id_[size_t(id)].present; }
  std::string_view bytes(TokenId id) const {
    return has(id) ? text(bytes_, by_id_[size_t(id)].bytes) : std::string_view{};
  }
  std::string_view key(TokenId id) const {
    return has(id) ? text(keys_, by_id_[size_t(id)].key) : std::string_view{};
  }
  // Highest id + 1.
  int n_ids() const { return int(by_id_.size()); }
  size_t n_entries() const { return n_entries_; }
  // Replaces the bytes of a present id (an added token whose content is also a vocabulary entry).
  void set_bytes(TokenId id, std::string_view bytes);

 private:
  struct Span {
    uint32_t at = 0, n = 0;  // of keys_ or bytes_
  };
  struct Entry {
    Span key, bytes;
    bool present = false;
  };
  struct Slot {
    TokenId id = -1;  // -1: free
    uint32_t hash = 0;
    Span key;  // beside the hash, so that a look-up need not read the entry
  };
  std::string_view text(const std::string& block, Span span) const {
    return std::string_view(block).substr(span.at, span.n);
  }
  size_t slot_of(std::string_view key, uint32_t hash) const;
  void grow(size_t n_entries);

  std::string keys_, bytes_;
  std::vector<Entry> by_id_;
  std::vector<Slot> slots_;  // a power of two, at most half full; linear probing
  size_t n_entries_ = 0;
};

}  // namespace tandem
