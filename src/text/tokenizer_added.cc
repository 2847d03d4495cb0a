#include "text/tokenizer_added.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {
namespace {

// Start of the white space that ends `text`.
size_t trailing_white(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    const CodePoint c = code_point_before(text, begin);
    if (!is_white_space(c.value)) break;
    begin -= c.n_bytes;
  }
  return begin;
}

// Length of the white space that starts `text`.
size_t leading_white(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const CodePoint c = code_point_at(text, end);
    if (!is_white_space(c.value)) break;
    end += c.n_bytes;
  }
  return end;
}

bool stands_alone(std::string_view text, ByteRange range) {
  return (range.begin == 0 || !is_word(code_point_before(text, range.begin).value)) &&
         (range.end == text.size() || !is_word(code_point_at(text, range.end).value));
}

}  // namespace

int AddedTokenMatcher::child(int node, char byte) const {
  const auto& children = nodes_[size_t(node)].children;
  const auto it = std::lower_bound(children.begin(), children.end(), byte,
                                   [](const std::pair<char, int>& entry, char b) { return entry.first < b; });
  return it != children.end() && it->first == byte ? it->second : -1;
}

void AddedTokenMatcher::add(const AddedToken& token, std::string_view pattern) {
  TD_CHECK(!pattern.empty(), "added token %d has an empty pattern\n", token.id);
  int node = 0;
  for (const char byte : pattern) {
    int next = child(node, byte);
    if (next < 0) {
      next = int(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[size_t(node)].children;
      const auto place = std::lower_bound(children.begin(), children.end(), std::pair{byte, 0});
      children.insert(place, {byte, next});
    }
    node = next;
  }
  if (nodes_[size_t(node)].token >= 0) return;
  nodes_[size_t(node)].token = int(tokens_.size());
  tokens_.push_back({token.id, token.single_word, token.lstrip, token.rstrip});
  starts_[uint8_t(pattern[0])] = true;
}

std::pair<size_t, int> AddedTokenMatcher::longest(std::string_view text, size_t at, size_t end) const {
  std::pair<size_t, int> best{0, -1};
  int node = 0;
  for (size_t i = at; i < end; ++i) {
    node = child(node, text[i]);
    if (node < 0) break;
    if (nodes_[size_t(node)].token >= 0) best = {i + 1 - at, nodes_[size_t(node)].token};
  }
  return best;
}

std::vector<AddedTokenMatcher::Found> AddedTokenMatcher::split(
    std::string_view text, const std::vector<ByteRange>& recognised) const {
  std::vector<Found> found;
  size_t done = 0, white_end = 0;
  for (const ByteRange& range : recognised) {
    for (size_t at = range.begin; at < range.end;) {
      if (!starts_[uint8_t(text[at])]) {
        ++at;
        continue;
      }
      const auto [length, index] = longest(text, at, range.end);
      if (index < 0) {
        ++at;
        continue;
      }
      ByteRange match{at, at + length};
      at = match.end;
      const Rules& rules = tokens_[size_t(index)];
      if (rules.single_word && !stands_alone(text, match)) continue;
      if (rules.lstrip) {
        match.begin =
            match.begin <= done ? done : done + trailing_white(text.substr(done, match.begin - done));
      }
      if (rules.rstrip) {  // white space is measured once, however many tokens match inside it
        if (match.end >= white_end) white_end = match.end + leading_white(text.substr(match.end));
        match.end = white_end;
      }
      if (done < match.begin) found.push_back({-1, {done, match.begin}});
      found.push_back({rules.id, match});
      done = match.end;
    }
  }
  if (done < text.size()) found.push_back({-1, {done, text.size()}});
  return found;
}

}  // namespace tandem
