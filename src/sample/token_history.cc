#include "sample/token_history.h"

#include <bit>

#include "base/check.h"

namespace tandem {
namespace {

size_t home_of(TokenId token) { return size_t(uint64_t(uint32_t(token)) * 0x9E3779B97F4A7C15u >> 32); }

}  // namespace

void TokenCounts::reserve(size_t n_tokens) {
  tokens_.reserve(n_tokens);
  const size_t n_slots = std::bit_ceil(2 * n_tokens + 2);
  if (n_slots > table_.size()) grow(n_slots);
}

void TokenCounts::push(TokenId token) {
  TD_CHECK(token >= 0, "token id %d in a history", int(token));
  tokens_.push_back(token);
  add(token);
  if (window_ != 0 && tokens_.size() > window_) drop(tokens_[tokens_.size() - 1 - window_]);
}

void TokenCounts::pop() {
  TD_CHECK(!tokens_.empty(), "pop() of an empty history");
  drop(tokens_.back());
  if (window_ != 0 && tokens_.size() > window_) add(tokens_[tokens_.size() - 1 - window_]);
  tokens_.pop_back();
}

size_t TokenCounts::slot_of(TokenId token) const {
  const size_t mask = table_.size() - 1;
  size_t i = home_of(token) & mask;
  while (table_[i].token != token && table_[i].token != kFree) i = (i + 1) & mask;
  return i;
}

void TokenCounts::add(TokenId token) {
  if (2 * (n_used_ + 1) > table_.size()) grow(table_.empty() ? 64 : 2 * table_.size());
  Entry& e = table_[slot_of(token)];
  if (e.token == kFree) {
    e.token = token;
    ++n_used_;
  }
  ++e.count;
}

void TokenCounts::drop(TokenId token) {
  size_t hole = slot_of(token);
  if (--table_[hole].count > 0) return;
  --n_used_;
  // Close the gap: whatever a probe from its home would reach only across the hole moves into it.
  const size_t mask = table_.size() - 1;
  for (size_t i = (hole + 1) & mask; table_[i].token != kFree; i = (i + 1) & mask) {
    if (((i - home_of(table_[i].token)) & mask) >= ((i - hole) & mask)) {
      table_[hole] = table_[i];
      hole = i;
    }
  }
  table_[hole] = Entry{};
}

void TokenCounts::grow(size_t n_slots) {
  std::vector<Entry> old(n_slots);
  old.swap(table_);
  for (const Entry& e : old) {
    if (e.token != kFree) table_[slot_of(e.token)] = e;
  }
}

TokenHistory::TokenHistory(std::span<const TokenId> prompt, const SamplingParams& params, int n_output_max)
    : all_(params.repetition_window), output_(params.output_window) {
  all_.reserve(prompt.size() + size_t(n_output_max));
  output_.reserve(size_t(n_output_max));
  for (const TokenId token : prompt) all_.push(token);
}

void TokenHistory::push(TokenId token) {
  all_.push(token);
  output_.push(token);
}

void TokenHistory::pop(int n) {
  for (int i = 0; i < n; ++i) {
    all_.pop();
    output_.pop();
  }
}

}  // namespace tandem
