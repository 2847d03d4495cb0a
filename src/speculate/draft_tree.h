// Trees of drafts from one block: the most probable prefixes under a block drafter's marginals.
//
// A node is a prefix of slots 1 .. depth, worth the product of its tokens' probabilities; the tree of M nodes
// that maximises the expected number of accepted tokens, sum over nodes, is the M most probable prefixes.
// Best-first search finds them in M steps (DDTree).
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "speculate/draft_cost.h"

namespace tandem {

// The best tokens of every slot of a block, in lists by falling probability: one list a slot, or, where the
// probabilities depend on the token before, one for each candidate of the slot before.
struct SlotCandidates {
  int n_slots = 0;               // slot 0 follows the anchor
  int top_k = 0;                 // candidates per slot
  std::span<const TokenId> ids;  // [n_slots, n_lists, top_k], no token twice in a list
  std::span<const float>
      log_probs;    // [n_slots, n_lists, top_k], <= 0; from -infinity or NaN on a list has no more
  int n_lists = 1;  // 1, or top_k; slot 0 uses its list 0
  // n_lists > 1: [n_slots, n_lists, top_k] number of the candidate in its slot, which is the number of the
  // list that follows it; < n_lists.
  std::span<const uint8_t> next_list = {};
};

struct DraftTreeSize {
  int n = 0;                     // nodes, the anchor not counted
  double expected_accepted = 0;  // of them, by the drafter's own probabilities
};

// Writes a tree of at most max_nodes nodes (1 .. 31), depth first: parents before their children, a node's
// subtree right behind it, its likelier children first. So a walk in this order needs one recurrent state per
// depth.
//   tokens, parents  [max_nodes] at least; parents[i] < i is a node, or -1: the anchor
// Ties: the shallower prefix, then the one whose parent came first, then the lower rank. No allocation.
DraftTreeSize build_draft_tree(const SlotCandidates& slots, int max_nodes, std::span<TokenId> tokens,
                               std::span<int8_t> parents);

// The node that continues `node` (-1: the anchor) with `token`; -1 if there is none.
int child_with_token(std::span<const TokenId> tokens, std::span<const int8_t> parents, int node,
                     TokenId token);

}  // namespace tandem
