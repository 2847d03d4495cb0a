// From tokens to what a client sees, for one answer: characters, stop strings, thinking and content, tool
// calls.
//
// A pure state machine. It is fed one token at a time, whatever the size of the rounds that made them, and so
// gives the same pieces for every way of cutting the same tokens into rounds. Never throws.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "sample/logprobs.h"
#include "serve/text/tool_parser.h"
#include "serve/text/tool_set.h"
#include "text/chat_template.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tandem::serve {

// A tag that divides an answer. Where the vocabulary has it as one token it is looked for by its id only, so
// that the same characters written as text stay text.
struct Marker {
  std::string text = {};
  std::optional<TokenId> id = {};
};

struct Markers {
  Marker think_open, think_close, tool_open, tool_close;
  // <think>, </think>, <tool_call>, </tool_call>.
  static Markers of(const Tokenizer& tokenizer);
};

// Whether an answer to this prompt begins inside thinking: the last opening tag stands behind the last
// closing one. `pieces` are only looked at for tags that are no tokens.
bool starts_thinking(const Markers& markers, std::span<const TokenId> prompt,
                     std::span<const PromptPiece> pieces);

enum class PieceKind : uint8_t { content, reasoning, tool_call, tool_arguments };

struct Piece {
  PieceKind kind = PieceKind::content;
  int call = 0;           // of tool pieces: which call of the answer, from 0
  std::string_view text;  // the text, the tool's name (always whole), or a piece of the arguments' JSON
};

// A token's log-probabilities, given out with the first of its text, or in its turn when it has none.
struct TokenEntry {
  TokenId id = 0;
  size_t text_offset = 0;  // where its text begins, in characters
  Logprobs logprobs;
};

// What one token brought.
struct TextStep {
  std::vector<Piece> pieces;  // in order; the views are good until the next call
  std::vector<TokenEntry> entries;
  bool ended = false;          // generation ends with this token: a stop string, or the only call allowed
  std::optional<size_t> stop;  // which stop string
};

struct PipelineOptions {
  const Tokenizer* tokenizer = nullptr;  // borrowed
  Markers markers = {};
  bool split_thinking = true;  // false: thinking and its tags are content
  bool starts_thinking = false;
  std::vector<std::string> stops = {};
  bool include_stop = false;
  bool stop_in_thinking = true;
  int min_tokens = 0;                         // stop strings are text before this many tokens
  std::shared_ptr<const ToolSet> tools = {};  // none: tool markup is content
  bool one_call = false;                      // ends with the first call
};

enum class EndReason : uint8_t { stop, length };

class TextPipeline : private ToolSink {
 public:
  // Errors: a stop string that is empty or not UTF-8.
  static Result<std::unique_ptr<TextPipeline>> create(PipelineOptions options);

  // The next token. After a step that ended only finish() may be called.
  const TextStep& feed(TokenId id, const Logprobs* logprobs = nullptr);
  // A token that ends the sequence: it counts, and has no text.
  const TextStep& feed_end(TokenId id, const Logprobs* logprobs = nullptr);
  // The end of the answer: what was held back.
  const TextStep& finish(EndReason reason);

  // "stop", "length" or "tool_calls"; after finish().
  std::string_view finish_reason() const { return finish_reason_; }
  int n_tokens() const { return n_tokens_; }                      // fed so far
  int n_reasoning_tokens() const { return n_reasoning_tokens_; }  // of these, thinking and its tags

 private:
  enum class Section : uint8_t { content, reasoning, tool };
  struct Part {  // a piece whose text is arena_[begin, end)
    PieceKind kind;
    int call;
    size_t begin, end;
  };
  struct Waiting {  // an entry whose text is held back
    TokenEntry entry;
    size_t release_at;  // bytes of the decoded text that must have been given out
  };

  // What a pattern of a matcher means: a stop string, or a tag.
  enum class Tag : uint8_t { stop, think_open, think_close, tool_open };

  TextPipeline(PipelineOptions options, StopMatcher content, StopMatcher reasoning);
  const TextStep& one_token(TokenId id, const Logprobs* logprobs, bool has_text);
  void begin_step();
  const TextStep& end_step();
  bool take_tag_token(TokenId id);
  bool take_stop_token(TokenId id);
  void take_text(std::string_view text);
  void enter(Tag tag);
  void flush();
  void stop_at(size_t stop, size_t end);
  void add(PieceKind kind, int call, std::string_view text);
  void add_text(std::string_view text);
  bool stops_count() const { return section_ != Section::reasoning || options_.stop_in_thinking; }
  StopMatcher& matcher() { return section_ == Section::reasoning ? reasoning_ : content_; }

  void tool_name(std::string_view name) override;
  void tool_arguments(std::string_view json) override;
  void tool_done() override;
  void not_a_call(std::string_view text) override;

  PipelineOptions options_;
  bool tools_on_ = false;
  std::vector<Tag> content_tags_, reasoning_tags_;  // behind the stop strings
  StopMatcher content_, reasoning_;
  ToolParser tool_parser_;
  Utf8Stream utf8_;
  Section section_ = Section::content;
  std::string decoded_, passed_, leftover_;
  std::string gap_;        // white space that a call would swallow
  bool gap_open_ = false;  // only white space since thinking or a call ended
  std::string arena_;
  std::vector<Part> parts_;
  TextStep step_;
  std::vector<Waiting> waiting_;
  size_t n_decoded_ = 0, n_given_ = 0, n_characters_ = 0;  // of the decoded text
  int n_tokens_ = 0, n_reasoning_tokens_ = 0, n_calls_ = 0, n_whole_calls_ = 0;
  bool ended_ = false;
  std::string_view finish_reason_ = "stop";
};

}  // namespace tandem::serve
