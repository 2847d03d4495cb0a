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

StopMatcher::Output StopMatcher::feed(std::string_view piece) {
  TD_CHECK(!ended_, "text fed behind a stop string (%zu bytes)\n", piece.size());
  Output out;
  for (const char byte : piece) {
    held_ += byte;
    state_ = step(state_, byte);
    const Node& node = nodes_[size_t(state_)];
    if (node.longest >= 0) {
      const size_t length = lengths_[size_t(node.longest)];
      out.text += held_.substr(0, held_.size() - (stop_text_ == StopText::include ? 0 : length));
      out.matched = size_t(node.longest);
      held_.clear();
      ended_ = true;
      return out;
    }
  }
  const size_t free = held_.size() - size_t(nodes_[size_t(state_)].depth);
  out.text = held_.substr(0, free);
  held_.erase(0, free);
  return out;
}

std::string StopMatcher::finish() {
  state_ = 0;
  ended_ = false;
  return std::exchange(held_, {});
}

}  // namespace tandem
