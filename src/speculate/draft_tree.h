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

// The best tokens of every slot of a block, by falling probability.
struct SlotCandidates {
  int n_slots = 0;                   // slot 0 follows the anchor
  int top_k = 0;                     // candidates per slot
  std::span<const TokenId> ids;      // [n_slots, top_k], no token twice in a slot
  std::span<const float> log_probs;  // [n_slots, top_k], <= 0; from -infinity or NaN on a slot has no more
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
