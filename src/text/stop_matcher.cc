#include "text/stop_matcher.h"

#include <fmt/format.h>

#include "base/check.h"
#include "text/unicode.h"

namespace tandem {

Result<StopMatcher> StopMatcher::create(const std::vector<std::string>& stops, StopText stop_text) {
  StopMatcher m;
  m.stop_text_ = stop_text;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) return Error{fmt::format("stop[{}]: expected a non-empty string, found \"\"", i)};
    if (const auto bad = first_invalid_utf8(stops[i])) {
      return Error{fmt::format("stop[{}]: not valid UTF-8 at byte {}", i, *bad)};
    }
    int node = 0;
    for (const char byte : stops[i]) {
      int next = m.child(node, byte);
      if (next < 0) {
        next = int(m.nodes_.size());
        const int depth = m.nodes_[size_t(node)].depth + 1;
        m.nodes_[size_t(node)].children.emplace_back(byte, next);
        m.nodes_.push_back(Node{.children = {}, .fail = 0, .depth = depth, .longest = -1});
      }
      node = next;
    }
    if (m.nodes_[size_t(node)].longest < 0) m.nodes_[size_t(node)].longest = int(i);
    m.lengths_.push_back(stops[i].size());
  }
  m.link();
  return m;
}

int StopMatcher::child(int node, char byte) const {
  for (const auto& [b, next] : nodes_[size_t(node)].children) {
    if (b == byte) return next;
  }
  return -1;
}

// From a node, by one byte, to the longest suffix that is still in the tree.
int StopMatcher::step(int node, char byte) const {
  while (true) {
    if (const int next = child(node, byte); next >= 0) return next;
    if (node == 0) return 0;
    node = nodes_[size_t(node)].fail;
  }
}

// Failure links, breadth first: a node's link is shallower than the node, so it is ready when needed.
void StopMatcher::link() {
  std::vector<int> queue{0};
  for (size_t q = 0; q < queue.size(); ++q) {
    const int node = queue[q];
    for (const auto& [byte, next] : nodes_[size_t(node)].children) {
      Node& n = nodes_[size_t(next)];
      n.fail = node == 0 ? 0 : step(nodes_[size_t(node)].fail, byte);
      if (n.longest < 0)
        n.longest = nodes_[size_t(n.fail)].longest;  // its own string is longer than any suffix
      queue.push_back(next);
    }
  }
}

// All that was held and `piece`, but for the last n_kept bytes, which are held from now on.
void StopMatcher::give(std::string_view piece, size_t n_kept, std::string& out) {
  if (n_kept <= piece.size()) {
    out += held_;
    out += piece.substr(0, piece.size() - n_kept);
    held_.assign(piece.substr(piece.size() - n_kept));
  } else {
    const size_t free = held_.size() + piece.size() - n_kept;
    out.append(held_, 0, free);
    held_.erase(0, free);
    held_ += piece;
  }
}

std::optional<StopMatcher::Match> StopMatcher::feed(std::string_view piece, std::string& out) {
  TD_CHECK(!ended_, "text fed behind a stop string (%zu bytes)\n", piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    state_ = step(state_, piece[i]);
    const int longest = nodes_[size_t(state_)].longest;
    if (longest < 0) continue;
    give(piece.substr(0, i + 1), stop_text_ == StopText::include ? 0 : lengths_[size_t(longest)], out);
    held_.clear();
    ended_ = true;
    return Match{size_t(longest), i + 1};
  }
  give(piece, size_t(nodes_[size_t(state_)].depth), out);
  return std::nullopt;
}

StopMatcher::Output StopMatcher::feed(std::string_view piece) {
  Output out;
  if (const auto match = feed(piece, out.text)) out.matched = match->stop;
  return out;
}

std::string StopMatcher::finish() {
  state_ = 0;
  ended_ = false;
  return std::exchange(held_, {});
}

}  // namespace tandem
