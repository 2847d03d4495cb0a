#include "speculate/draft_tree.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace tandem {
namespace {

// A prefix that may come next: a node's further sibling, or the first child of one.
struct Prefix {
  double log_prob = 0;
  int depth = 0;    // slot of its last token
  int parent = -1;  // in order of finding
  int list = 0;     // of its slot, that its last token is in
  int rank = 0;     // of its last token in the list

  size_t entry(const SlotCandidates& slots) const {
    return (size_t(depth) * size_t(slots.n_lists) + size_t(list)) * size_t(slots.top_k) + size_t(rank);
  }
};

// True if `a` comes after `b`.
bool after(const Prefix& a, const Prefix& b) {
  if (a.log_prob != b.log_prob) return a.log_prob < b.log_prob;
  if (a.depth != b.depth) return a.depth > b.depth;
  if (a.parent != b.parent) return a.parent > b.parent;  // else of one list
  return a.rank > b.rank;
}

class Frontier {
 public:
  bool empty() const { return n_ == 0; }
  void push(const Prefix& prefix) {
    heap_[size_t(n_++)] = prefix;
    std::push_heap(heap_.begin(), heap_.begin() + n_, after);
  }
  Prefix pop() {
    std::pop_heap(heap_.begin(), heap_.begin() + n_, after);
    return heap_[size_t(--n_)];
  }

 private:
  std::array<Prefix, kMaxDraft + 2> heap_;  // each step takes one and adds two at most
  int n_ = 0;
};

}  // namespace

DraftTreeSize build_draft_tree(const SlotCandidates& slots, int max_nodes, std::span<TokenId> tokens,
                               std::span<int8_t> parents) {
  const size_t n_candidates =
      size_t(std::max(slots.n_slots, 0)) * size_t(slots.n_lists) * size_t(std::max(slots.top_k, 0));
  TD_CHECK(slots.ids.size() == n_candidates && slots.log_probs.size() == n_candidates,
           "%d slots of %d candidates in %d lists, but %zu ids and %zu log-probabilities", slots.n_slots,
           slots.top_k, slots.n_lists, slots.ids.size(), slots.log_probs.size());
  TD_CHECK(slots.n_lists == 1 || (slots.n_lists == slots.top_k && slots.next_list.size() == n_candidates),
           "%d lists of %d candidates, %zu next lists", slots.n_lists, slots.top_k, slots.next_list.size());
  TD_CHECK(max_nodes >= 1 && max_nodes <= kMaxDraft && tokens.size() >= size_t(max_nodes) &&
               parents.size() >= size_t(max_nodes),
           "a tree of %d nodes into %zu tokens and %zu parents; at most %d", max_nodes, tokens.size(),
           parents.size(), kMaxDraft);

  Frontier frontier;
  const auto offer = [&](double before, Prefix prefix) {
    if (prefix.depth >= slots.n_slots || prefix.rank >= slots.top_k) return;
    const double last = slots.log_probs[prefix.entry(slots)];
    if (!(last >= -1e30)) return;  // impossible, or not a number
    prefix.log_prob = before + std::min(last, 0.0);
    frontier.push(prefix);
  };

  // In order of finding; children of a node are found likeliest first.
  std::array<Prefix, kMaxDraft> found;
  std::array<int, kMaxDraft> next_sibling, first_child, last_child;
  int first_root = -1, last_root = -1, n = 0;
  DraftTreeSize size;
  offer(0, {});
  while (n < max_nodes && !frontier.empty()) {
    const Prefix p = frontier.pop();
    const int node = n++;
    found[size_t(node)] = p;
    next_sibling[size_t(node)] = first_child[size_t(node)] = last_child[size_t(node)] = -1;
    int& first = p.parent < 0 ? first_root : first_child[size_t(p.parent)];
    int& last = p.parent < 0 ? last_root : last_child[size_t(p.parent)];
    (last < 0 ? first : next_sibling[size_t(last)]) = node;
    last = node;
    size.expected_accepted += std::exp(p.log_prob);
    const double before = p.parent < 0 ? 0 : found[size_t(p.parent)].log_prob;
    offer(before, {.depth = p.depth, .parent = p.parent, .list = p.list, .rank = p.rank + 1});
    const int next_list = slots.n_lists == 1 ? 0 : slots.next_list[p.entry(slots)];
    offer(p.log_prob, {.depth = p.depth + 1, .parent = node, .list = next_list});
  }

  // Depth first.
  std::array<int, kMaxDraft> place;
  int at = first_root;
  while (at >= 0) {
    const Prefix& p = found[size_t(at)];
    place[size_t(at)] = size.n;
    tokens[size_t(size.n)] = slots.ids[p.entry(slots)];
    parents[size_t(size.n)] = int8_t(p.parent < 0 ? -1 : place[size_t(p.parent)]);
    ++size.n;
    int next = first_child[size_t(at)];
    for (; next < 0 && at >= 0; at = found[size_t(at)].parent) next = next_sibling[size_t(at)];
    at = next;
  }
  return size;
}

int child_with_token(std::span<const TokenId> tokens, std::span<const int8_t> parents, int node,
                     TokenId token) {
  TD_CHECK(tokens.size() == parents.size() && node >= -1 && node < int(tokens.size()),
           "node %d of a tree of %zu tokens and %zu parents", node, tokens.size(), parents.size());
  for (size_t i = size_t(node + 1); i < tokens.size(); ++i) {
    if (parents[i] == node && tokens[i] == token) return int(i);
  }
  return -1;
}

}  // namespace tandem
