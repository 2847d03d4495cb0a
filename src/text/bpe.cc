#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"
#include "text/unicode.h"

namespace tandem {
namespace {

struct Alphabet {
  std::array<char32_t, 256> printable{};
  std::array<int16_t, 0x144> byte{};  // -1: not in the alphabet

  constexpr Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      printable[size_t(b)] = itself ? char32_t(b) : next++;
      byte[printable[size_t(b)]] = int16_t(b);
    }
  }
};
constexpr Alphabet kAlphabet;

uint64_t pair_key(TokenId left, TokenId right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

}  // namespace

char32_t printable_of_byte(uint8_t byte) { return kAlphabet.printable[byte]; }

std::optional<uint8_t> byte_of_printable(char32_t code_point) {
  if (code_point >= kAlphabet.byte.size() || kAlphabet.byte[code_point] < 0) return std::nullopt;
  return uint8_t(kAlphabet.byte[code_point]);
}

std::string to_printable(std::string_view bytes) {
  std::string key;
  for (const char b : bytes) append_utf8(printable_of_byte(uint8_t(b)), key);
  return key;
}

bool from_printable(std::string_view key, std::string& bytes) {
  bytes.clear();
  for (size_t i = 0; i < key.size();) {
    const CodePoint c = code_point_at(key, i);
    const std::optional<uint8_t> byte = byte_of_printable(c.value);
    if (!byte) return false;
    bytes += char(*byte);
    i += c.n_bytes;
  }
  return true;
}

void MergeTable::reserve(size_t n_merges) {
  TD_CHECK(n_used_ == 0, "reserve() after %zu merges\n", n_used_);
  slots_.assign(std::bit_ceil(2 * n_merges + 1), Slot{});
}

size_t MergeTable::slot_of(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t i = size_t((key * 0x9E3779B97F4A7C15u) >> 32) & mask;
  while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & mask;
  return i;
}

void MergeTable::add(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = pair_key(left, right);
  Slot& slot = slots_[slot_of(key)];
  if (slot.key == kEmpty) {
    ++n_used_;
    TD_CHECK(2 * n_used_ <= slots_.size(), "%zu merges, room for %zu\n", n_used_, slots_.size() / 2);
  }
  slot = {key, merge};
}

MergeTable::Merge MergeTable::find(TokenId left, TokenId right) const {
  return slots_[slot_of(pair_key(left, right))].merge;
}

void BpeMerger::propose(const MergeTable& table, int32_t left) {
  const Symbol& a = symbols_[size_t(left)];
  if (a.next < 0) return;
  const MergeTable::Merge m = table.find(a.id, symbols_[size_t(a.next)].id);
  if (m.rank < 0) return;
  heap_.push_back({uint64_t(uint32_t(m.rank)) << 32 | uint32_t(left), m.merged});
  std::push_heap(heap_.begin(), heap_.end(),
                 [](const Candidate& x, const Candidate& y) { return x.order > y.order; });
}

void BpeMerger::merge(const MergeTable& table, const std::vector<TokenId>& symbols,
                      std::vector<TokenId>& out) {
  TD_CHECK(symbols.size() <= size_t(INT32_MAX), "piece of %zu bytes\n", symbols.size());
  const int32_t n = int32_t(symbols.size());
  symbols_.resize(symbols.size());
  heap_.clear();
  for (int32_t i = 0; i < n; ++i) symbols_[size_t(i)] = {symbols[size_t(i)], i - 1, i + 1 < n ? i + 1 : -1};
  for (int32_t i = 0; i + 1 < n; ++i) propose(table, i);

  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(),
                  [](const Candidate& x, const Candidate& y) { return x.order > y.order; });
    const Candidate top = heap_.back();
    heap_.pop_back();
    const int32_t left = int32_t(uint32_t(top.order));
    Symbol& a = symbols_[size_t(left)];
    if (a.id < 0 || a.next < 0) continue;
    Symbol& b = symbols_[size_t(a.next)];
    // A neighbour may have merged since: the pair that was proposed is then gone.
    if (table.find(a.id, b.id).merged != top.merged) continue;
    a.id = top.merged;
    a.next = b.next;
    b.id = -1;
    if (a.next >= 0) symbols_[size_t(a.next)].previous = left;
    if (a.previous >= 0) propose(table, a.previous);
    propose(table, left);
  }
  for (int32_t i = 0; i >= 0 && i < n; i = symbols_[size_t(i)].next) out.push_back(symbols_[size_t(i)].id);
}

}  // namespace tandem
