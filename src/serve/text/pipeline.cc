#include "serve/text/pipeline.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::serve {
namespace {

Marker marker_of(const Tokenizer& tokenizer, std::string_view text) {
  Marker marker{std::string(text), std::nullopt};
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (token.content == text) marker.id = token.id;
  }
  return marker;
}

size_t white_run(std::string_view text) { return std::min(text.find_first_not_of(" \n\r\t"), text.size()); }

size_t n_characters(std::string_view text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

Markers Markers::of(const Tokenizer& tokenizer) {
  return {marker_of(tokenizer, "<think>"), marker_of(tokenizer, "</think>"),
          marker_of(tokenizer, "<tool_call>"), marker_of(tokenizer, "</tool_call>")};
}

bool starts_thinking(const Markers& markers, std::span<const TokenId> prompt,
                     std::span<const PromptPiece> pieces) {
  const Marker& open = markers.think_open;
  const Marker& close = markers.think_close;
  if (open.id && close.id) {
    for (size_t i = prompt.size(); i-- > 0;) {
      if (prompt[i] == *open.id || prompt[i] == *close.id) return prompt[i] == *open.id;
    }
    return false;
  }
  for (size_t i = pieces.size(); i-- > 0;) {
    if (!pieces[i].from_template) continue;
    const size_t opened = pieces[i].text.rfind(open.text), closed = pieces[i].text.rfind(close.text);
    if (opened == closed) continue;  // neither
    return closed == std::string::npos || (opened != std::string::npos && opened > closed);
  }
  return false;
}

TextPipeline::TextPipeline(PipelineOptions options, StopMatcher content, StopMatcher reasoning)
    : options_(std::move(options)),
      tools_on_(options_.tools != nullptr),
      content_(std::move(content)),
      reasoning_(std::move(reasoning)),
      tool_parser_(tools_on_ ? *options_.tools : ToolSet::none(), options_.markers.tool_open.text,
                   options_.markers.tool_close.text) {
  if (options_.split_thinking && options_.starts_thinking) section_ = Section::reasoning;
  gap_open_ = tools_on_;
}

Result<std::unique_ptr<TextPipeline>> TextPipeline::create(PipelineOptions options) {
  std::vector<std::string> content = options.stops, reasoning = options.stops;
  std::vector<Tag> content_tags, reasoning_tags;
  const auto add_tag = [](const Marker& marker, Tag tag, auto& patterns, auto& tags) {
    if (marker.id || marker.text.empty()) return;
    patterns.push_back(marker.text);
    tags.push_back(tag);
  };
  if (options.split_thinking) {
    add_tag(options.markers.think_open, Tag::think_open, content, content_tags);
    add_tag(options.markers.think_close, Tag::think_close, reasoning, reasoning_tags);
  }
  if (options.tools) add_tag(options.markers.tool_open, Tag::tool_open, content, content_tags);
  if (!options.stop_in_thinking) reasoning.erase(reasoning.begin(), reasoning.begin() + options.stops.size());
  TD_ASSIGN_OR_RETURN(StopMatcher content_matcher, StopMatcher::create(content));
  TD_ASSIGN_OR_RETURN(StopMatcher reasoning_matcher, StopMatcher::create(reasoning));
  std::unique_ptr<TextPipeline> pipeline(
      new TextPipeline(std::move(options), std::move(content_matcher), std::move(reasoning_matcher)));
  pipeline->content_tags_ = std::move(content_tags);
  pipeline->reasoning_tags_ = std::move(reasoning_tags);
  return pipeline;
}

void TextPipeline::begin_step() {
  arena_.clear();
  parts_.clear();
  step_.pieces.clear();
  step_.entries.clear();
  step_.stop.reset();
}

const TextStep& TextPipeline::end_step() {
  for (const Part& part : parts_) {
    step_.pieces.push_back(
        {part.kind, part.call, std::string_view(arena_).substr(part.begin, part.end - part.begin)});
  }
  if (!step_.stop) n_given_ = n_decoded_ - (section_ == Section::tool ? 0 : matcher().n_held());
  size_t n = 0;
  for (; n < waiting_.size() && waiting_[n].release_at <= n_given_; ++n) {
    step_.entries.push_back(std::move(waiting_[n].entry));
  }
  if (n > 0) waiting_.erase(waiting_.begin(), waiting_.begin() + ptrdiff_t(n));
  step_.ended = ended_;
  return step_;
}

const TextStep& TextPipeline::feed(TokenId id, const Logprobs* logprobs) {
  return one_token(id, logprobs, true);
}

const TextStep& TextPipeline::feed_end(TokenId id, const Logprobs* logprobs) {
  return one_token(id, logprobs, false);
}

const TextStep& TextPipeline::one_token(TokenId id, const Logprobs* logprobs, bool has_text) {
  TD_CHECK(!ended_, "token %d fed behind the end of the answer\n", id);
  begin_step();
  ++n_tokens_;
  const bool was_reasoning = section_ == Section::reasoning;
  const size_t begin = n_decoded_, first_character = n_characters_;
  if (has_text && !take_tag_token(id) && !take_stop_token(id) && !options_.tokenizer->is_special(id)) {
    decoded_.clear();
    utf8_.feed(options_.tokenizer->token_bytes(id), decoded_);
    n_decoded_ += decoded_.size();
    if (logprobs != nullptr) n_characters_ += n_characters(decoded_);
    take_text(decoded_);
  }
  if (was_reasoning || section_ == Section::reasoning) ++n_reasoning_tokens_;
  if (logprobs != nullptr) {
    // Without text of its own yet a token waits for the character that it began, or for the text before it.
    const bool text = n_decoded_ > begin || utf8_.n_held() > 0;
    waiting_.push_back({{id, first_character, *logprobs}, begin + (text ? 1 : 0)});
  }
  return end_step();
}

// Tags are tokens of their own: they end what was held back, and have no text.
bool TextPipeline::take_tag_token(TokenId id) {
  if (section_ == Section::tool) return false;
  const Markers& m = options_.markers;
  const bool think_open = options_.split_thinking && m.think_open.id == id;
  const bool think_close = options_.split_thinking && m.think_close.id == id;
  const bool tool_open = tools_on_ && section_ == Section::content && m.tool_open.id == id;
  if (!think_open && !think_close && !tool_open) return false;
  flush();
  if (take_stop_token(id)) return true;
  enter(think_open ? Tag::think_open : think_close ? Tag::think_close : Tag::tool_open);
  return true;
}

// A token whose text is never given out may still be named as a stop string.
bool TextPipeline::take_stop_token(TokenId id) {
  if (options_.stops.empty() || section_ == Section::tool || !stops_count()) return false;
  const Markers& m = options_.markers;
  const bool silent = options_.tokenizer->is_special(id) || m.think_open.id == id || m.think_close.id == id ||
                      m.tool_open.id == id;
  if (!silent || n_tokens_ < options_.min_tokens) return false;
  const auto stop =
      std::find(options_.stops.begin(), options_.stops.end(), options_.tokenizer->token_bytes(id));
  if (stop == options_.stops.end()) return false;
  flush();
  stop_at(size_t(stop - options_.stops.begin()), n_decoded_);
  return true;
}

// `end`: where the text given out ends in the decoded text.
void TextPipeline::stop_at(size_t stop, size_t end) {
  step_.stop = stop;
  ended_ = true;
  n_given_ = end;
  if (options_.include_stop) add_text(options_.stops[stop]);
}

void TextPipeline::take_text(std::string_view text) {
  std::string tool_text;  // only when text goes on behind a call
  while (!text.empty() && !ended_) {
    if (section_ == Section::tool) {
      leftover_.clear();
      tool_parser_.feed(text, *this, leftover_);
      if (!tool_parser_.active()) {
        section_ = Section::content;
        gap_open_ = true;
      }
      tool_text = leftover_;
      text = tool_text;
      continue;
    }
    passed_.clear();
    const bool reasoning = section_ == Section::reasoning;
    const auto match = matcher().feed(text, passed_);
    add_text(passed_);
    if (!match) return;
    text.remove_prefix(match->used);
    const size_t length = matcher().stop_length(match->stop);
    (void)matcher().finish();
    const size_t n_stops = stops_count() ? options_.stops.size() : 0;
    if (match->stop >= n_stops) {
      enter((reasoning ? reasoning_tags_ : content_tags_)[match->stop - n_stops]);
    } else if (n_tokens_ < options_.min_tokens) {
      add_text(options_.stops[match->stop]);
    } else {
      stop_at(match->stop, n_decoded_ - text.size() - (options_.include_stop ? 0 : length));
    }
  }
}

void TextPipeline::enter(Tag tag) {
  switch (tag) {
    case Tag::stop:
      break;
    case Tag::think_open:
      section_ = Section::reasoning;
      break;
    case Tag::think_close:
      if (section_ == Section::reasoning) gap_open_ = tools_on_;
      section_ = Section::content;
      break;
    case Tag::tool_open:
      gap_.clear();
      gap_open_ = false;
      section_ = Section::tool;
      tool_parser_.open();
      break;
  }
}

// No more text joins what is held back: an incomplete character, and the beginning of a stop string.
void TextPipeline::flush() {
  decoded_.clear();
  utf8_.finish(decoded_);
  if (!decoded_.empty()) {
    n_decoded_ += decoded_.size();
    ++n_characters_;
    take_text(decoded_);
  }
  if (section_ != Section::tool && !ended_) add_text(matcher().finish());
}

void TextPipeline::add(PieceKind kind, int call, std::string_view text) {
  if (text.empty()) return;
  const bool joins = !parts_.empty() && parts_.back().kind == kind && parts_.back().call == call &&
                     kind != PieceKind::tool_call;
  if (!joins) parts_.push_back({kind, call, arena_.size(), arena_.size()});
  arena_ += text;
  parts_.back().end = arena_.size();
}

void TextPipeline::add_text(std::string_view text) {
  if (section_ == Section::reasoning) {
    add(PieceKind::reasoning, 0, text);
    return;
  }
  if (gap_open_) {
    if (white_run(text) == text.size()) {
      gap_ += text;
      return;
    }
    gap_open_ = false;
    add(PieceKind::content, 0, gap_);
    gap_.clear();
  }
  add(PieceKind::content, 0, text);
}

void TextPipeline::tool_name(std::string_view name) { add(PieceKind::tool_call, n_calls_++, name); }

void TextPipeline::tool_arguments(std::string_view json) {
  add(PieceKind::tool_arguments, n_calls_ - 1, json);
}

void TextPipeline::tool_done() {
  ++n_whole_calls_;
  if (options_.one_call) ended_ = true;
}

void TextPipeline::not_a_call(std::string_view text) {
  add(PieceKind::content, 0, gap_);
  gap_.clear();
  add(PieceKind::content, 0, text);
}

const TextStep& TextPipeline::finish(EndReason reason) {
  begin_step();
  bool cut = false;
  if (!ended_) {
    flush();
    if (section_ == Section::tool && !ended_) cut = tool_parser_.finish(*this);
    if (n_calls_ == 0) add(PieceKind::content, 0, gap_);
    n_given_ = n_decoded_;
  } else {
    waiting_.clear();
    step_.stop = 0;  // what was given out stays as it is
  }
  finish_reason_ = reason == EndReason::length || cut ? "length" : n_whole_calls_ > 0 ? "tool_calls" : "stop";
  const TextStep& step = end_step();
  step_.stop.reset();
  return step;
}

}  // namespace tandem::serve
