#include "serve/api/anthropic_answer.h"

#include <fmt/format.h>

#include <iterator>

#include "serve/text/json_text.h"

namespace tandem::serve {
namespace {

constexpr std::string_view kEnd = "}\n\n";

// Up to the fields behind "type".
void begin_event(std::string_view type, std::string& out) {
  fmt::format_to(std::back_inserter(out), "event: {0}\ndata: {{\"type\":\"{0}\"", type);
}

std::string call_id(const AnswerHead& head, int call) {
  return "toolu_" + tool_call_id(head.id, 0, call).substr(std::string_view("call_").size());
}

void append_usage_fields(const Usage& u, std::string& out) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"input_tokens\":{},\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":{},"
                 "\"output_tokens\":{}}}",
                 u.prompt_tokens - u.cached_tokens, u.cached_tokens, u.completion_tokens);
}

void append_head(const AnswerHead& head, std::string& out) {
  out += "{\"id\":";
  append_json_string(head.id, out);
  out += ",\"type\":\"message\",\"role\":\"assistant\",\"model\":";
  append_json_string(head.model, out);
}

void append_stop(std::string_view finish_reason, const StopReason& stop_reason, std::string& out) {
  const auto* text = std::get_if<std::string>(&stop_reason);
  std::string_view reason = "end_turn";
  if (finish_reason == "length") {
    reason = "max_tokens";
  } else if (finish_reason == "tool_calls") {
    reason = "tool_use";
  } else if (text != nullptr) {
    reason = "stop_sequence";
  }
  fmt::format_to(std::back_inserter(out), "\"stop_reason\":\"{}\",\"stop_sequence\":", reason);
  if (text != nullptr && reason == "stop_sequence") {
    append_json_string(*text, out);
  } else {
    out += "null";
  }
}

void append_block(const Block& block, const AnswerHead& head, int& n_calls, std::string& out) {
  switch (block.kind) {
    case BlockKind::none:
      break;
    case BlockKind::text:
      out += "{\"type\":\"text\",\"text\":";
      append_json_string(block.text, out);
      break;
    case BlockKind::thinking:
      out += "{\"type\":\"thinking\",\"thinking\":";
      append_json_string(block.text, out);
      out += ",\"signature\":\"\"";
      break;
    case BlockKind::call:
      fmt::format_to(std::back_inserter(out),
                     "{{\"type\":\"tool_use\",\"id\":\"{}\",\"name\":", call_id(head, n_calls++));
      append_json_string(block.name, out);
      out += ",\"input\":";
      out += is_json(block.text) ? block.text : "{}";
      break;
  }
  out += '}';
}

}  // namespace

void AnthropicMessage::finish(std::string_view finish_reason, StopReason stop_reason) {
  finish_reason_ = finish_reason;
  stop_reason_ = std::move(stop_reason);
}

std::string AnthropicMessage::body(const Usage& usage, const Json& timings) const {
  std::string out;
  append_head(head_, out);
  out += ",\"content\":[";
  int n_calls = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (i > 0) out += ',';
    append_block(blocks_[i], head_, n_calls, out);
  }
  out += "],";
  append_stop(finish_reason_, stop_reason_, out);
  out += ",\"usage\":";
  append_usage_fields(usage, out);
  if (!timings.is_null()) out += ",\"timings\":" + timings.dump();
  out += '}';
  return out;
}

void AnthropicStream::begin(const Usage& usage, std::string& out) const {
  begin_event("message_start", out);
  out += ",\"message\":";
  append_head(head_, out);
  out += ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":";
  append_usage_fields(usage, out);
  out += '}';
  out += kEnd;
}

void AnthropicStream::ping(std::string& out) const {
  begin_event("ping", out);
  out += kEnd;
}

void AnthropicStream::begin_block(const Piece& piece, std::string& out) {
  end_block(out);
  open_ = block_kind(piece.kind);
  begin_event("content_block_start", out);
  fmt::format_to(std::back_inserter(out), ",\"index\":{},\"content_block\":", n_blocks_);
  Block empty{open_, {}, {}};
  if (open_ == BlockKind::call) empty.name = piece.text;
  append_block(empty, head_, n_calls_, out);
  out += kEnd;
}

void AnthropicStream::end_block(std::string& out) {
  if (open_ == BlockKind::none) return;
  if (open_ == BlockKind::thinking) {
    begin_event("content_block_delta", out);
    fmt::format_to(std::back_inserter(out),
                   ",\"index\":{},\"delta\":{{\"type\":\"signature_delta\",\"signature\":\"\"}}", n_blocks_);
    out += kEnd;
  }
  begin_event("content_block_stop", out);
  fmt::format_to(std::back_inserter(out), ",\"index\":{}", n_blocks_++);
  out += kEnd;
  open_ = BlockKind::none;
}

void AnthropicStream::add(const TextStep& step, std::string& out) {
  for (const Piece& piece : step.pieces) {
    if (begins_block(open_, piece.kind)) begin_block(piece, out);
    if (piece.kind == PieceKind::tool_call) continue;
    begin_event("content_block_delta", out);
    std::string_view delta = "\"text_delta\",\"text\"";
    if (open_ == BlockKind::thinking) delta = "\"thinking_delta\",\"thinking\"";
    if (open_ == BlockKind::call) delta = "\"input_json_delta\",\"partial_json\"";
    fmt::format_to(std::back_inserter(out), ",\"index\":{},\"delta\":{{\"type\":{}:", n_blocks_, delta);
    append_json_string(piece.text, out);
    out += '}';
    out += kEnd;
  }
}

void AnthropicStream::finish(std::string_view finish_reason, StopReason stop_reason, std::string& out) {
  end_block(out);
  finish_reason_ = finish_reason;
  stop_reason_ = std::move(stop_reason);
}

void AnthropicStream::end(const Usage& usage, std::string& out) const {
  begin_event("message_delta", out);
  out += ",\"delta\":{";
  append_stop(finish_reason_, stop_reason_, out);
  out += "},\"usage\":";
  append_usage_fields(usage, out);
  out += kEnd;
  begin_event("message_stop", out);
  out += kEnd;
}

void AnthropicStream::failed(const ApiError& error, std::string& out) const {
  out += "event: error\ndata: " + write_error(error, ErrorForm::anthropic).body + "\n\n";
}

}  // namespace tandem::serve
