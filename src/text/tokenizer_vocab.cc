#include "text/tokenizer_vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

namespace tandem {
namespace {

uint32_t hash_of(std::string_view key) { return uint32_t(std::hash<std::string_view>{}(key)); }

}  // namespace

void Vocab::reserve(size_t n_entries) {
  by_id_.reserve(n_entries);
  keys_.reserve(8 * n_entries);  // published vocabularies have 7 to 8 bytes a token
  bytes_.reserve(8 * n_entries);
  grow(n_entries);
}

void Vocab::grow(size_t n_entries) {
  std::vector<Slot> old(std::bit_ceil(2 * n_entries + 2));
  slots_.swap(old);
  for (const Slot& slot : old) {
    if (slot.id >= 0) slots_[slot_of(text(keys_, slot.key), slot.hash)] = slot;
  }
}

size_t Vocab::slot_of(std::string_view key, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t i = hash & mask;
  while (slots_[i].id >= 0 && (slots_[i].hash != hash || text(keys_, slots_[i].key) != key))
    i = (i + 1) & mask;
  return i;
}

Status Vocab::add(std::string_view key, TokenId id, std::string_view bytes) {
  if (id < 0 || id >= kMaxIds) return Error{fmt::format("id {} is not in 0..{}", id, kMaxIds - 1)};
  if (has(id)) return Error{fmt::format("id {} is given twice", id)};
  if (2 * (n_entries_ + 1) > slots_.size()) grow(2 * (n_entries_ + 1));
  const uint32_t hash = hash_of(key);
  Slot& slot = slots_[slot_of(key, hash)];
  if (slot.id >= 0) return Error{fmt::format("the token of id {} is also id {}", id, slot.id)};
  if (keys_.size() + key.size() > UINT32_MAX || bytes_.size() + bytes.size() > UINT32_MAX) {
    return Error{"more than 4 GiB of token strings"};
  }
  if (size_t(id) >= by_id_.size()) by_id_.resize(size_t(id) + 1);
  slot = {id, hash, {uint32_t(keys_.size()), uint32_t(key.size())}};
  by_id_[size_t(id)] = {slot.key, {uint32_t(bytes_.size()), uint32_t(bytes.size())}, true};
  keys_ += key;
  bytes_ += bytes;
  ++n_entries_;
  return {};
}

std::optional<TokenId> Vocab::find(std::string_view key) const {
  if (slots_.empty()) return std::nullopt;
  const TokenId id = slots_[slot_of(key, hash_of(key))].id;
  return id < 0 ? std::nullopt : std::optional(id);
}

void Vocab::set_bytes(TokenId id, std::string_view bytes) {
  by_id_[size_t(id)].bytes = {uint32_t(bytes_.size()), uint32_t(bytes.size())};
  bytes_ += bytes;
}

}  // namespace tandem
