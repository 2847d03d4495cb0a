// Prefixes of earlier prompts, kept for prompts that begin alike: a tree of full KV pages, which sequences
// and tree share by count, and checkpoints of the recurrent state after some of them. Only what the prefill
// path computed may enter, so that a prompt that begins with a cached prefix has the bits of one computed
// whole.
//
//   find(prompt) -> SequenceState::begin_with(pages, checkpoint) -> prefill the rest, insert() after each
//   chunk
//
// A sequence that holds a page of the tree holds all pages above it too: insert() gives it the tree's own.
// One thread calls. After construction nothing allocates but insert(), and that only for the first page of a
// prefix whose salt is longer than a std::string holds in itself.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "state/state_pool.h"

namespace tandem {

class PrefixTree {
 public:
  // `pool` must outlive the tree and not move.
  explicit PrefixTree(StatePool& pool);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  ~PrefixTree() { clear(); }

  struct Match {
    std::span<const int32_t> pages = {};  // to begin with; until the next find()
    int checkpoint = -1;                  // after the last of them, in models with recurrent layers
    int n_matched = 0;                    // tokens that are in the tree, not all of which may be of use
  };
  // The longest cached prefix of `prompt` that leaves at least one token to compute. Prefixes under another
  // salt are not seen.
  Match find(std::span<const TokenId> prompt, std::string_view salt);

  // Keeps the full pages of `prompt` that `state`, still in its prompt, has computed; and its recurrent state
  // as it stands, if `with_checkpoint`, at a multiple of kPageTokens.
  void insert(SequenceState& state, std::span<const TokenId> prompt, std::string_view salt,
              bool with_checkpoint);

  // Pages that nobody but the tree holds, all of which evict_pages() can free.
  int pages_held_alone() const;
  // Frees that many of them, the least valuable first, from the ends of branches inward: tokens that would
  // have to be computed again, divided by the age, in calls of find() and insert() since the last use.
  void evict_pages(int n);
  void clear();

  int n_pages() const { return n_pages_; }
  int n_checkpoints() const { return pool_->n_checkpoints() - int(free_checkpoints_.size()); }
  uint64_t evicted_pages() const { return evicted_pages_; }
  uint64_t evicted_checkpoints() const { return evicted_checkpoints_; }

 private:
  // A page of the tree; the node's index is the page's.
  struct Node {
    bool used = false;
    int32_t parent = -1, first_child = -1, next = -1;  // -1: none; next: of the same parent
    int32_t checkpoint = -1;                           // after this page
    uint64_t last_use = 0;
    std::array<TokenId, kPageTokens> tokens = {};
    std::string salt = {};  // of a first page
  };

  Node& node(int32_t page) { return nodes_[size_t(page)]; }
  const Node& node(int32_t page) const { return nodes_[size_t(page)]; }
  int32_t& first_of(int32_t parent) { return parent < 0 ? root_ : node(parent).first_child; }
  int32_t child(int32_t parent, std::span<const TokenId> tokens, std::string_view salt);
  bool is_hybrid() const { return pool_->shape().n_delta_layers > 0; }
  // Tokens to compute again, without this node's page (or its checkpoint).
  int saved_tokens(int32_t page) const;
  double value(int32_t page) const;
  void remove(int32_t page);
  int take_checkpoint(int32_t keep);

  StatePool* pool_;
  std::vector<Node> nodes_;
  std::vector<int> free_checkpoints_;
  std::vector<int32_t> path_;
  int32_t root_ = -1;
  int n_pages_ = 0;
  uint64_t clock_ = 0;
  uint64_t evicted_pages_ = 0, evicted_checkpoints_ = 0;
};

}  // namespace tandem
