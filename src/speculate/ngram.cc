#include "speculate/ngram.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tandem {
namespace {

constexpr uint32_t kNoTokens = 0x9E3779B9;

// Hash of one more token before those of `hash`.
uint32_t with_earlier(uint32_t hash, TokenId token) {
  uint32_t h = (hash ^ uint32_t(token)) * 0x85EBCA6Bu;
  h ^= h >> 15;
  h *= 0xC2B2AE35u;
  return h ^ (h >> 13);
}

}  // namespace

NgramIndex::NgramIndex(const NgramOptions& options) : options_(options) {
  TD_CHECK(options.min_match >= 1 && options.min_match <= options.max_match && options.max_match <= 16 &&
               options.max_tokens >= 2 * options.max_match && options.max_tokens <= 1 << 28,
           "lookup of matches of %d to %d tokens among %d", options.min_match, options.max_match,
           options.max_tokens);
  tokens_.reserve(size_t(options.max_tokens));
  tables_.assign(size_t(n_levels()), Table(std::bit_ceil(size_t(options.max_tokens) * 2)));
}

void NgramIndex::clear() {
  tokens_.clear();
  for (Table& table : tables_) std::fill(table.begin(), table.end(), 0);
}

size_t NgramIndex::slot(const Table& table, int length, uint32_t hash, size_t end) const {
  const size_t mask = table.size() - 1;
  const auto last = tokens_.begin() + std::ptrdiff_t(end);
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const uint32_t behind = table[i];
    if (behind == 0) return i;
    const auto other = tokens_.begin() + std::ptrdiff_t(behind - 1);
    if (std::equal(last - length, last, other - length)) return i;
  }
}

void NgramIndex::enter(size_t end) {
  uint32_t hash = kNoTokens;
  for (int length = 1; length <= options_.max_match && size_t(length) <= end; ++length) {
    hash = with_earlier(hash, tokens_[end - size_t(length)]);
    if (length < options_.min_match) continue;
    Table& table = tables_[size_t(length - options_.min_match)];
    table[slot(table, length, hash, end)] = uint32_t(end + 1);
  }
}

void NgramIndex::forget_older_half() {
  const size_t kept = tokens_.size() / 2;
  tokens_.erase(tokens_.begin(), tokens_.end() - std::ptrdiff_t(kept));
  for (Table& table : tables_) std::fill(table.begin(), table.end(), 0);
  for (size_t end = 1; end < kept; ++end) enter(end);
}

void NgramIndex::append(TokenId token) {
  if (tokens_.size() == size_t(options_.max_tokens)) forget_older_half();
  tokens_.push_back(token);
  enter(tokens_.size() - 1);
}

void NgramIndex::append(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) append(token);
}

NgramProposal NgramIndex::propose(std::span<TokenId> out) const {
  const size_t end = tokens_.size();
  uint32_t behind = 0;
  int match = 0;
  uint32_t hash = kNoTokens;
  for (int length = 1; length <= options_.max_match && size_t(length) <= end; ++length) {
    hash = with_earlier(hash, tokens_[end - size_t(length)]);
    if (length < options_.min_match) continue;
    const Table& table = tables_[size_t(length - options_.min_match)];
    const uint32_t found = table[slot(table, length, hash, end)];
    if (found == 0) break;  // what has not occurred has not occurred with more before it
    behind = found;
    match = length;
  }
  if (match == 0) return {};
  const size_t from = behind - 1;
  for (size_t i = 0; i < out.size(); ++i) out[i] = from + i < end ? tokens_[from + i] : out[from + i - end];
  return {int(out.size()), match};
}

}  // namespace tandem
