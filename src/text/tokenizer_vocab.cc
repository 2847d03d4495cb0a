#include "text/tokenizer_vocab.h"

#include <fmt/format.h>

#include <bit>
#include <functional>

namespace tandem {

void Vocab::reserve(size_t n_entries) { grow(n_entries); }

void Vocab::grow(size_t n_entries) {
  slots_.assign(std::bit_ceil(2 * n_entries + 2), -1);
  for (TokenId id = 0; id < n_ids(); ++id) {
    if (has(id)) slots_[slot_of(key(id))] = id;
  }
}

size_t Vocab::slot_of(std::string_view key) const {
  const size_t mask = slots_.size() - 1;
  size_t i = std::hash<std::string_view>{}(key)&mask;
  while (slots_[i] >= 0 && this->key(slots_[i]) != key) i = (i + 1) & mask;
  return i;
}

Status Vocab::add(std::string_view key, TokenId id, std::string_view bytes) {
  if (id < 0 || id >= kMaxIds) return Error{fmt::format("id {} is not in 0..{}", id, kMaxIds - 1)};
  if (has(id)) return Error{fmt::format("id {} is given twice", id)};
  if (2 * (n_entries_ + 1) > slots_.size()) grow(2 * (n_entries_ + 1));
  const size_t slot = slot_of(key);
  if (slots_[slot] >= 0) return Error{fmt::format("the token of id {} is also id {}", id, slots_[slot])};
  if (keys_.size() + key.size() > UINT32_MAX || bytes_.size() + bytes.size() > UINT32_MAX) {
    return Error{"more than 4 GiB of token strings"};
  }
  if (size_t(id) >= by_id_.size()) by_id_.resize(size_t(id) + 1);
  by_id_[size_t(id)] = {uint32_t(keys_.size()), uint32_t(key.size()), uint32_t(bytes_.size()),
                        uint32_t(bytes.size()), true};
  keys_ += key;
  bytes_ += bytes;
  slots_[slot] = id;
  ++n_entries_;
  return {};
}

std::optional<TokenId> Vocab::find(std::string_view key) const {
  if (slots_.empty()) return std::nullopt;
  const TokenId id = slots_[slot_of(key)];
  return id < 0 ? std::nullopt : std::optional(id);
}

void Vocab::set_bytes(TokenId id, std::string_view bytes) {
  Entry& e = by_id_[size_t(id)];
  e.bytes_at = uint32_t(bytes_.size());
  e.n_bytes = uint32_t(bytes.size());
  bytes_ += bytes;
}

}  // namespace tandem
