#include "serve/text/tool_parser.h"

#include <algorithm>

namespace tandem::serve {
namespace {

constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
// No name or key is longer, nor the white space that may stand between two tags.
constexpr size_t kLongestName = 256, kLongestGap = 64;

bool is_white(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

size_t white_run(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && is_white(text[n])) ++n;
  return n;
}

// Whether `text` begins with `tag`, or could once more text has come.
bool may_begin(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

}  // namespace

void ToolParser::open() {
  state_ = State::start;
  streamed_ = garbage_ = false;
  text_.clear();
  at_ = 0;
}

void ToolParser::feed(std::string_view text, ToolSink& sink, std::string& leftover) {
  text_ += text;
  while (state_ != State::idle && step(sink)) {
  }
  if (state_ == State::idle) {
    leftover += rest();
    text_.clear();
    at_ = 0;
  } else if (streamed_) {
    text_.erase(0, at_);
    at_ = 0;
  }
}

bool ToolParser::step(ToolSink& sink) {
  switch (state_) {
    case State::idle:
      return false;
    case State::start:
      return step_start(sink);
    case State::name:
      return step_name(sink);
    case State::between:
      return step_between(sink);
    case State::key:
      return step_key(sink);
    case State::value:
      return step_value(sink);
    case State::json:
      return step_json(sink);
    case State::arguments:
      return step_arguments(sink);
    case State::json_rest:
      return step_json_rest(sink);
    case State::end:
      return step_end(sink);
  }
  return false;
}

// Nothing was given out yet: the markup is text.
bool ToolParser::malformed(ToolSink& sink) {
  sink.not_a_call(opening_);
  sink.not_a_call(std::string_view(text_).substr(0, at_));
  state_ = State::idle;
  return true;
}

// Something was given out, and the rest cannot be read: all up to the closing tag is dropped.
bool ToolParser::broken(ToolSink&) {
  garbage_ = true;
  state_ = State::end;
  return true;
}

bool ToolParser::step_start(ToolSink& sink) {
  const size_t white = white_run(rest());
  if (white > kLongestGap) return malformed(sink);
  const std::string_view tag = rest().substr(white);
  if (tag.empty() || may_begin(tag, kFunction)) return false;
  if (tag.starts_with(kFunction)) {
    at_ += white + kFunction.size();
    state_ = State::name;
    return true;
  }
  if (tag[0] != '{') return malformed(sink);
  at_ += white;
  field_at_ = at_;
  json_ = JsonCursor();
  name_.clear();
  key_.clear();
  state_ = State::json;
  return true;
}

// What stands before '>' in a tag.
ToolParser::TagName ToolParser::tag_name(std::string& name) {
  const std::string_view text = rest().substr(0, kLongestName + 1);
  const size_t end = text.find_first_of("><\n");
  if (end == std::string_view::npos) return text.size() > kLongestName ? TagName::bad : TagName::partial;
  if (end == 0 || text[end] != '>') return TagName::bad;
  name = text.substr(0, end);
  at_ += end + 1;
  return TagName::full;
}

bool ToolParser::step_name(ToolSink& sink) {
  const TagName found = tag_name(name_);
  if (found == TagName::bad) return malformed(sink);
  if (found == TagName::partial) return false;
  sink.tool_name(name_);
  sink.tool_arguments("{");
  streamed_ = true;
  first_parameter_ = true;
  state_ = State::between;
  return true;
}

bool ToolParser::step_between(ToolSink& sink) {
  at_ += white_run(rest());
  const std::string_view tag = rest();
  if (tag.empty()) return false;
  if (tag.starts_with(kParameter)) {
    at_ += kParameter.size();
    state_ = State::key;
    return true;
  }
  if (tag.starts_with(kFunctionEnd) || tag.starts_with(closing_)) {
    if (tag.starts_with(kFunctionEnd)) at_ += kFunctionEnd.size();
    sink.tool_arguments("}");
    state_ = State::end;
    return true;
  }
  if (may_begin(tag, kParameter) || may_begin(tag, kFunctionEnd) || may_begin(tag, closing_)) return false;
  ++at_;  // nothing that belongs here
  return true;
}

bool ToolParser::step_key(ToolSink& sink) {
  const TagName found = tag_name(key_);
  if (found == TagName::partial) return false;
  state_ = State::between;
  if (found == TagName::bad) return true;
  piece_ = first_parameter_ ? "" : ",";
  append_json_string(key_, piece_);
  piece_ += ':';
  const std::vector<ValueType>& types = tools_->types(name_, key_);
  value_streams_ = types.size() == 1 && types[0] == ValueType::string;
  if (value_streams_) piece_ += '"';
  sink.tool_arguments(piece_);
  first_parameter_ = value_began_ = false;
  value_.clear();
  state_ = State::value;
  return true;
}

void ToolParser::value_text(std::string_view text, ToolSink& sink) {
  if (text.empty()) return;
  if (!value_streams_) {
    value_ += text;
    return;
  }
  piece_.clear();
  append_json_escaped(text, piece_);
  sink.tool_arguments(piece_);
}

void ToolParser::end_value(ToolSink& sink) {
  sink.tool_arguments(value_streams_ ? "\"" : typed_value(value_, tools_->types(name_, key_)));
}

// Whether the value ends at text_[at]: a newline perhaps, the closing tag, and then what continues the call.
// `length`: of newline and tag.
ToolParser::Match ToolParser::value_end_at(size_t at, size_t* length) const {
  std::string_view text = std::string_view(text_).substr(at);
  *length = kParameterEnd.size();
  if (text[0] == '\n') {
    text.remove_prefix(1);
    ++*length;
  }
  if (may_begin(text, kParameterEnd)) return Match::partial;
  if (!text.starts_with(kParameterEnd)) return Match::no;
  text.remove_prefix(kParameterEnd.size());
  const size_t white = white_run(text.substr(0, kLongestGap + 1));
  if (white > kLongestGap) return Match::no;
  text.remove_prefix(white);
  if (text.starts_with(kParameter) || text.starts_with(kFunctionEnd)) return Match::full;
  return may_begin(text, kParameter) || may_begin(text, kFunctionEnd) ? Match::partial : Match::no;
}

bool ToolParser::step_value(ToolSink& sink) {
  if (!value_began_) {
    if (rest().empty()) return false;
    if (rest()[0] == '\n') ++at_;
    value_began_ = true;
  }
  size_t i = at_;
  while (true) {
    i = text_.find_first_of("\n<", i);
    if (i == std::string::npos) i = text_.size();
    size_t length = 0;
    const Match match = i == text_.size() ? Match::partial : value_end_at(i, &length);
    if (match == Match::no) {
      ++i;
      continue;
    }
    value_text(std::string_view(text_).substr(at_, i - at_), sink);
    at_ = i;
    if (match == Match::partial) return false;
    at_ += length;
    end_value(sink);
    state_ = State::between;
    return true;
  }
}

// Looks for the name and the beginning of the arguments. Until both are found nothing is given out.
bool ToolParser::step_json(ToolSink& sink) {
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    const bool top = json_.depth() == 1;
    const bool was_key = json_.in_key();
    if (top && json_.wants_value() && !is_white(c)) {
      field_at_ = at_;
      const bool arguments = key_ == "\"arguments\"" || key_ == "\"parameters\"";
      if (arguments && c == '{' && !name_.empty()) {
        sink.tool_name(name_);
        streamed_ = true;
        arguments_ = JsonCursor();
        held_.clear();
        state_ = State::arguments;
        return true;
      }
    }
    if (json_.feed({&c, 1}) == 0) return malformed(sink);
    if (json_.depth() == 1 && json_.in_key() && !was_key) field_at_ = at_;
    if (was_key && json_.behind_key()) key_ = text_.substr(field_at_, at_ + 1 - field_at_);
    if (top && c == '"' && json_.behind_value() && json_.depth() == 1 && key_ == "\"name\"") {
      const auto name = nlohmann::ordered_json::parse(
          std::string_view(text_).substr(field_at_, at_ + 1 - field_at_), nullptr, false);
      if (name.is_string()) name_ = name.get<std::string>();
    }
    if (json_.complete()) {
      ++at_;
      return whole_json_call(sink);
    }
  }
  return false;
}

// An object that could not stream: its arguments stood before its name, or were no object, or there are none.
bool ToolParser::whole_json_call(ToolSink& sink) {
  const std::string_view object = std::string_view(text_).substr(0, at_);
  const auto call = nlohmann::ordered_json::parse(object, nullptr, false);
  if (!call.is_object() || name_.empty()) return malformed(sink);
  auto arguments = call.find("arguments");
  if (arguments == call.end()) arguments = call.find("parameters");
  std::string json = "{}";
  if (arguments != call.end()) {
    const bool text = arguments->is_string() && is_json(arguments->get_ref<const std::string&>());
    json = text ? arguments->get<std::string>()
                : arguments->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  sink.tool_name(name_);
  sink.tool_arguments(json);
  streamed_ = true;
  state_ = State::end;
  return true;
}

bool ToolParser::step_arguments(ToolSink& sink) {
  const size_t n = arguments_.feed(rest());
  held_ += rest().substr(0, n);
  at_ += n;
  // Bytes that a closing would have to take back are not given out.
  const JsonCursor::Closing closing = arguments_.closing();
  if (const size_t free = held_.size() - closing.cut; free > 0) {
    sink.tool_arguments(std::string_view(held_).substr(0, free));
    held_.erase(0, free);
  }
  if (arguments_.failed()) {
    sink.tool_arguments(closing.text);
    return broken(sink);
  }
  if (!arguments_.complete()) return false;
  json_.skip_value();
  state_ = State::json_rest;
  return true;
}

bool ToolParser::step_json_rest(ToolSink& sink) {
  at_ += json_.feed(rest());
  if (json_.failed()) return broken(sink);
  if (!json_.complete()) return false;
  state_ = State::end;
  return true;
}

void ToolParser::end_call(ToolSink& sink) {
  sink.tool_done();
  state_ = State::idle;
}

bool ToolParser::step_end(ToolSink& sink) {
  at_ += white_run(rest());
  const std::string_view tag = rest();
  if (tag.empty()) return false;
  if (tag.starts_with(closing_)) {
    at_ += closing_.size();
    end_call(sink);
    return true;
  }
  const bool reopened = tag.starts_with(opening_), again = tag.starts_with(kFunction);
  if (reopened || again) {  // the closing tag was forgotten
    end_call(sink);
    const std::string after(tag.substr(reopened ? opening_.size() : 0));
    open();
    text_ = after;
    return true;
  }
  if (may_begin(tag, closing_) || may_begin(tag, opening_) || may_begin(tag, kFunction)) return false;
  if (garbage_) {
    ++at_;
  } else {
    end_call(sink);  // what follows is the answer's text
  }
  return true;
}

bool ToolParser::finish(ToolSink& sink) {
  bool cut = false;
  switch (state_) {
    case State::idle:
      break;
    case State::start:
    case State::name:
    case State::json:
      at_ = text_.size();
      malformed(sink);
      break;
    case State::value: {
      // Held back is the beginning of what might have closed the value.
      std::string_view held = rest();
      if (held.starts_with('\n')) held.remove_prefix(1);
      if (!held.starts_with(kParameterEnd)) value_text(rest(), sink);
      end_value(sink);
      [[fallthrough]];
    }
    case State::between:
    case State::key:
      sink.tool_arguments("}");
      cut = true;
      break;
    case State::arguments:
      sink.tool_arguments(arguments_.closing().text);
      cut = true;
      break;
    case State::json_rest:
    case State::end:
      sink.tool_done();
      break;
  }
  state_ = State::idle;
  text_.clear();
  at_ = 0;
  return cut;
}

}  // namespace tandem::serve
