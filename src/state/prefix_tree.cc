#include "state/prefix_tree.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem {

PrefixTree::PrefixTree(StatePool& pool) : pool_(&pool), nodes_(size_t(pool.total_pages())) {
  for (int i = pool.n_checkpoints() - 1; i >= 0; --i) free_checkpoints_.push_back(i);
  path_.reserve(nodes_.size());
}

int32_t PrefixTree::child(int32_t parent, std::span<const TokenId> tokens, std::string_view salt) {
  for (int32_t c = first_of(parent); c >= 0; c = node(c).next) {
    if (!std::equal(tokens.begin(), tokens.end(), node(c).tokens.begin())) continue;
    if (parent >= 0 || node(c).salt == salt) return c;
  }
  return -1;
}

PrefixTree::Match PrefixTree::find(std::span<const TokenId> prompt, std::string_view salt) {
  ++clock_;
  path_.clear();
  const size_t most = prompt.empty() ? 0 : (prompt.size() - 1) / kPageTokens;
  int32_t at = -1;
  while (path_.size() < most) {
    at = child(at, prompt.subspan(path_.size() * kPageTokens, kPageTokens), salt);
    if (at < 0) break;
    path_.push_back(at);
  }
  Match match{.n_matched = int(path_.size()) * kPageTokens};
  if (is_hybrid()) {
    while (!path_.empty() && node(path_.back()).checkpoint < 0) path_.pop_back();
    if (!path_.empty()) match.checkpoint = node(path_.back()).checkpoint;
  }
  for (const int32_t page : path_) node(page).last_use = clock_;
  match.pages = path_;
  return match;
}

void PrefixTree::insert(SequenceState& state, std::span<const TokenId> prompt, std::string_view salt,
                        bool with_checkpoint) {
  TD_CHECK(size_t(state.length()) <= prompt.size(), "%d positions of a prompt of %zu", state.length(),
           prompt.size());
  ++clock_;
  const size_t n = size_t(state.length()) / kPageTokens;
  int32_t at = -1;
  for (size_t i = 0; i < n; ++i) {
    const auto tokens = prompt.subspan(i * kPageTokens, kPageTokens);
    const int32_t own = state.pages()[i];
    int32_t page = child(at, tokens, salt);
    if (page < 0) {
      page = own;
      Node& fresh = node(page);
      TD_CHECK(!fresh.used, "page %d is in the tree at another place", page);
      fresh.used = true;
      fresh.parent = at;
      fresh.next = std::exchange(first_of(at), page);
      std::copy(tokens.begin(), tokens.end(), fresh.tokens.begin());
      if (at < 0) fresh.salt = salt;
      pool_->hold(page);
      ++n_pages_;
    } else if (page != own) {
      state.share_page(i, page);
    }
    node(page).last_use = clock_;
    at = page;
  }
  if (!with_checkpoint || !is_hybrid() || at < 0 || node(at).checkpoint >= 0) return;
  TD_CHECK(state.length() % kPageTokens == 0, "a checkpoint after %d positions", state.length());
  const int checkpoint = take_checkpoint(at);
  if (checkpoint < 0) return;
  pool_->save_recurrent(state.slot(), checkpoint);
  node(at).checkpoint = checkpoint;
}

int PrefixTree::pages_held_alone() const {
  int n = 0;
  for (size_t page = 0; page < nodes_.size(); ++page) {
    n += nodes_[page].used && pool_->holders(int32_t(page)) == 1;
  }
  return n;
}

// With recurrent layers everything back to the checkpoint before must be computed again; pages behind the
// last checkpoint are of no use until a request parts there.
int PrefixTree::saved_tokens(int32_t page) const {
  if (!is_hybrid()) return kPageTokens;
  if (node(page).checkpoint < 0) return 0;
  int tokens = kPageTokens;
  for (int32_t above = node(page).parent; above >= 0 && node(above).checkpoint < 0;
       above = node(above).parent) {
    tokens += kPageTokens;
  }
  return tokens;
}

double PrefixTree::value(int32_t page) const {
  return double(saved_tokens(page)) / double(clock_ - node(page).last_use + 1);
}

void PrefixTree::evict_pages(int n) {
  for (; n > 0; --n) {
    int32_t worst = -1;
    for (int32_t page = 0; page < int32_t(nodes_.size()); ++page) {
      if (!node(page).used || node(page).first_child >= 0 || pool_->holders(page) != 1) continue;
      if (worst < 0 || value(page) < value(worst) ||
          (value(page) == value(worst) && node(page).last_use < node(worst).last_use)) {
        worst = page;
      }
    }
    if (worst < 0) return;
    remove(worst);
    ++evicted_pages_;
  }
}

void PrefixTree::remove(int32_t page) {
  Node& gone = node(page);
  int32_t* link = &first_of(gone.parent);
  while (*link != page) link = &node(*link).next;
  *link = gone.next;
  if (gone.checkpoint >= 0) free_checkpoints_.push_back(gone.checkpoint);
  gone = Node{};
  --n_pages_;
  pool_->drop(page);
}

// A free one, or the least valuable of those that are taken.
int PrefixTree::take_checkpoint(int32_t keep) {
  if (free_checkpoints_.empty()) {
    int32_t worst = -1;
    for (int32_t page = 0; page < int32_t(nodes_.size()); ++page) {
      if (!node(page).used || node(page).checkpoint < 0 || page == keep) continue;
      if (worst < 0 || value(page) < value(worst)) worst = page;
    }
    if (worst < 0) return -1;
    free_checkpoints_.push_back(std::exchange(node(worst).checkpoint, -1));
    ++evicted_checkpoints_;
  }
  const int checkpoint = free_checkpoints_.back();
  free_checkpoints_.pop_back();
  return checkpoint;
}

void PrefixTree::clear() {
  for (int32_t page = 0; page < int32_t(nodes_.size()); ++page) {
    if (!node(page).used) continue;
    if (node(page).checkpoint >= 0) free_checkpoints_.push_back(node(page).checkpoint);
    node(page) = Node{};
    pool_->drop(page);
  }
  root_ = -1;
  n_pages_ = 0;
}

}  // namespace tandem
