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
    if (!has(id)) return {};
    const Entry& e = by_id_[size_t(id)];
    return std::string_view(bytes_).substr(e.bytes_at, e.n_bytes);
  }
  std::string_view key(TokenId id) const {
    if (!has(id)) return {};
    const Entry& e = by_id_[size_t(id)];
    return std::string_view(keys_).substr(e.key_at, e.n_key);
  }
  // Highest id + 1.
  int n_ids() const { return int(by_id_.size()); }
  size_t n_entries() const { return n_entries_; }
  // Replaces the bytes of a present id (an added token whose content is also a vocabulary entry).
  void set_bytes(TokenId id, std::string_view bytes);

 private:
  struct Entry {
    uint32_t key_at = 0, n_key = 0, bytes_at = 0, n_bytes = 0;
    bool present = false;
  };
  size_t slot_of(std::string_view key) const;
  void grow(size_t n_entries);

  std::string keys_, bytes_;
  std::vector<Entry> by_id_;
  std::vector<TokenId>
      slots_;  // -1: free; a power of two, at most half full; linear probing by hash of the key
  size_t n_entries_ = 0;
};

}  // namespace tandem
