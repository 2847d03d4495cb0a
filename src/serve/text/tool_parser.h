// Tool calls in generated text, between <tool_call> and </tool_call>, from text that arrives in pieces.
//
// Two ways of writing are read, told apart call by call:
//   <function=NAME> <parameter=KEY>\nVALUE\n</parameter> ... </function>     (values are bare text)
//   {"name": NAME, "arguments": {...}}
// What comes out: the name as soon as it is whole, then the arguments as pieces of one JSON text. Values of
// strings stream as they are written; the others come when they are whole. A closing tag inside a value is
// text, unless what follows it continues the call. Nothing a model writes is an error: markup that is no call
// comes back as text as long as nothing of the call was given out; later the JSON is closed.
#pragma once

#include <string>
#include <string_view>

#include "serve/text/json_text.h"
#include "serve/text/tool_set.h"

namespace tandem::serve {

// Receives what the parser finds; the views live as long as the call.
class ToolSink {
 public:
  virtual ~ToolSink() = default;
  virtual void tool_name(std::string_view name) = 0;       // a new call
  virtual void tool_arguments(std::string_view json) = 0;  // the next piece of its arguments
  virtual void tool_done() = 0;                            // the call is whole
  virtual void not_a_call(std::string_view text) = 0;      // markup that turned out to be plain text
};

class ToolParser {
 public:
  // Borrows the tools. `opening` and `closing` are the outer tags.
  ToolParser(const ToolSet& tools, std::string_view opening, std::string_view closing)
      : tools_(&tools), opening_(opening), closing_(closing) {}

  // Behind an opening tag: what follows belongs to a call.
  void open();
  // The next piece of text. Behind the end of the call the rest goes to `leftover` and the parser is no
  // longer active.
  void feed(std::string_view text, ToolSink& sink, std::string& leftover);
  bool active() const { return state_ != State::idle; }

  // The text ends here. True when a call that had begun was cut short.
  bool finish(ToolSink& sink);

 private:
  enum class State : uint8_t {
    idle,
    start,    // behind <tool_call>
    name,     // inside <function=
    between,  // <parameter=, </function> or </tool_call> must come
    key,      // inside <parameter=
    value,
    json,       // inside {"name": ...}, nothing given out yet
    arguments,  // inside the value of "arguments"
    json_rest,  // the other fields, behind the arguments
    end,        // the arguments are whole: </tool_call> must come
  };
  enum class Match : uint8_t { no, partial, full };

  // One decision each; false: it needs more text.
  bool step(ToolSink& sink);
  bool step_start(ToolSink& sink);
  bool step_name(ToolSink& sink);
  bool step_between(ToolSink& sink);
  bool step_key(ToolSink& sink);
  bool step_value(ToolSink& sink);
  bool step_json(ToolSink& sink);
  bool step_arguments(ToolSink& sink);
  bool step_json_rest(ToolSink& sink);
  bool step_end(ToolSink& sink);

  enum class TagName : uint8_t { partial, full, bad };
  TagName tag_name(std::string& name);
  Match value_end_at(size_t at, size_t* length) const;
  void value_text(std::string_view text, ToolSink& sink);
  void end_value(ToolSink& sink);
  void end_call(ToolSink& sink);
  bool malformed(ToolSink& sink);
  bool broken(ToolSink& sink);
  bool whole_json_call(ToolSink& sink);
  std::string_view rest() const { return std::string_view(text_).substr(at_); }

  const ToolSet* tools_;
  std::string opening_, closing_;
  State state_ = State::idle;
  bool streamed_ = false;  // something of this call was given out
  std::string
      text_;       // of this call, from the byte that is not decided yet or, before the name, from its start
  size_t at_ = 0;  // first byte of text_ that is not decided
  std::string name_, key_, value_;
  bool first_parameter_ = true, value_streams_ = false, value_began_ = false;
  bool garbage_ = false;  // what stands before the closing tag is dropped
  JsonCursor json_;       // the whole object
  JsonCursor arguments_;  // the value of "arguments"
  size_t field_at_ = 0;   // where the field's key or value begins
  std::string piece_, held_;
};

}  // namespace tandem::serve
