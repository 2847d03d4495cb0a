// Stop strings in generated text that arrives in pieces.
//
// Text is given out as soon as it can no longer be part of a stop string, and never earlier: exactly the
// longest suffix that is a proper prefix of some stop string is held back. The match that completes first
// wins, of matches that complete together the longest. Linear in the text (Aho-Corasick).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tandem {

class StopMatcher {
 public:
  // Whether the stop string itself is part of the text that is given out.
  enum class StopText { leave_out, include };

  // Errors: a stop string that is empty or not UTF-8. No stop strings is fine: then nothing is ever held
  // back.
  static Result<StopMatcher> create(const std::vector<std::string>& stops,
                                    StopText stop_text = StopText::leave_out);

  struct Output {
    std::string text;               // what can be given out now
    std::optional<size_t> matched;  // index into `stops`: generation ends here
  };
  // The next piece of text. After a match the rest of the piece is dropped, and nothing more may be fed.
  Output feed(std::string_view piece);

  struct Match {
    size_t stop = 0;  // index into `stops`
    size_t used = 0;  // bytes of the piece up to the end of the match
  };
  // The same, appending to `out`. To go on behind a match, call finish() and feed the rest of the piece.
  std::optional<Match> feed(std::string_view piece, std::string& out);

  // What was held back, at the end of the text without a match (end of sequence, length).
  std::string finish();

  // Bytes held back at the moment: the last n_held() bytes that were fed.
  size_t n_held() const { return held_.size(); }
  size_t stop_length(size_t stop) const { return lengths_[stop]; }

 private:
  struct Node {
    std::vector<std::pair<char, int>> children;
    int fail = 0;      // the longest proper suffix of this node's string that is in the tree
    int depth = 0;     // length of this node's string
    int longest = -1;  // the longest stop string that ends here
  };
  StopMatcher() : nodes_(1) {}
  void give(std::string_view piece, size_t n_kept, std::string& out);
  int child(int node, char byte) const;
  int step(int node, char byte) const;
  void link();

  std::vector<Node> nodes_;
  std::vector<size_t> lengths_;  // of the stop strings
  StopText stop_text_ = StopText::leave_out;
  int state_ = 0;
  bool ended_ = false;
  std::string held_;  // always the string of state_
};

}  // namespace tandem
