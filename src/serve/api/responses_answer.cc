#include "serve/api/responses_answer.h"

#include <fmt/format.h>

#include <iterator>

#include "serve/text/json_text.h"

namespace tandem::serve {
namespace {

constexpr std::string_view kEnd = "}\n\n";

void append_response_usage(const Usage& u, std::string& out) {
  fmt::format_to(
      std::back_inserter(out),
      "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{}}},\"output_tokens\":{},"
      "\"output_tokens_details\":{{\"reasoning_tokens\":{}}},\"total_tokens\":{}}}",
      u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.reasoning_tokens,
      u.prompt_tokens + u.completion_tokens);
}

// The middle of the names of a block's events.
std::string_view event_stem(BlockKind kind) {
  if (kind == BlockKind::call) return "function_call_arguments";
  return kind == BlockKind::thinking ? "reasoning_text" : "output_text";
}

}  // namespace

ResponseAnswer::ResponseAnswer(AnswerHead head, const Json& echo) : head_(std::move(head)) {
  const std::string text = echo.dump(-1, ' ', true, Json::error_handler_t::replace);
  echo_ = text.substr(1, text.size() - 2);
}

std::string ResponseAnswer::item_id(size_t index) const {
  std::string_view prefix = "msg_";
  if (blocks_[index].kind == BlockKind::thinking) prefix = "rs_";
  if (blocks_[index].kind == BlockKind::call) prefix = "fc_";
  return fmt::format("{}{}", prefix, tool_call_id(head_.id, 1, int(index)).substr(5));
}

void ResponseAnswer::append_part(size_t index, bool begun_only, std::string& out) const {
  const bool thinking = blocks_[index].kind == BlockKind::thinking;
  out += thinking ? "{\"type\":\"reasoning_text\",\"text\":" : "{\"type\":\"output_text\",\"text\":";
  append_json_string(begun_only ? std::string_view() : blocks_[index].text, out);
  out += thinking ? "}" : ",\"annotations\":[],\"logprobs\":[]}";
}

void ResponseAnswer::append_item(size_t index, std::string_view status, bool begun_only,
                                 std::string& out) const {
  const Block& block = blocks_[index];
  fmt::format_to(std::back_inserter(out), "{{\"id\":\"{}\",\"type\":", item_id(index));
  if (block.kind == BlockKind::call) {
    fmt::format_to(std::back_inserter(out),
                   "\"function_call\",\"status\":\"{}\",\"call_id\":\"{}\",\"name\":", status,
                   tool_call_id(head_.id, 0, int(index)));
    append_json_string(block.name, out);
    out += ",\"arguments\":";
    append_json_string(begun_only ? std::string_view() : block.text, out);
    out += '}';
    return;
  }
  if (block.kind == BlockKind::thinking) {
    out += "\"reasoning\",\"summary\":[],";
  } else {
    fmt::format_to(std::back_inserter(out), "\"message\",\"status\":\"{}\",\"role\":\"assistant\",", status);
  }
  out += "\"content\":[";
  if (!begun_only) append_part(index, false, out);
  out += "]}";
}

std::string ResponseAnswer::response(std::string_view status, const Usage* usage, const Json& error) const {
  std::string out = "{\"id\":";
  append_json_string(head_.id, out);
  fmt::format_to(std::back_inserter(out),
                 ",\"object\":\"response\",\"created_at\":{},\"status\":\"{}\",\"error\":{},"
                 "\"incomplete_details\":{},\"model\":",
                 head_.created, status, error.dump(-1, ' ', true, Json::error_handler_t::replace),
                 status == "incomplete" ? "{\"reason\":\"max_output_tokens\"}" : "null");
  append_json_string(head_.model, out);
  out += ",\"output\":[";
  const std::string_view last = status == "failed" ? "incomplete" : status;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (i > 0) out += ',';
    append_item(i, i + 1 == blocks_.size() ? last : "completed", false, out);
  }
  out += "],\"usage\":";
  if (usage != nullptr) {
    append_response_usage(*usage, out);
  } else {
    out += "null";
  }
  if (!echo_.empty()) out += "," + echo_;
  out += '}';
  return out;
}

std::string ResponseAnswer::body(const Usage& usage, const Json& timings) const {
  std::string out = response(status(), &usage, nullptr);
  if (timings.is_null()) return out;
  out.pop_back();
  return out + ",\"timings\":" + timings.dump() + "}";
}

void ResponseStream::begin_event(std::string_view type, std::string& out) {
  fmt::format_to(std::back_inserter(out), "event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1}",
                 type, sequence_++);
}

// An event about the last block, up to what it says.
void ResponseStream::item_event(std::string_view type, std::string& out) {
  begin_event(type, out);
  const size_t index = answer_.blocks_.size() - 1;
  fmt::format_to(std::back_inserter(out), ",\"item_id\":\"{}\",\"output_index\":{}", answer_.item_id(index),
                 index);
  if (answer_.blocks_[index].kind != BlockKind::call) out += ",\"content_index\":0";
}

void ResponseStream::response_event(std::string_view type, const std::string& response, std::string& out) {
  begin_event(type, out);
  out += ",\"response\":";
  out += response;
  out += kEnd;
}

void ResponseStream::begin(std::string& out) {
  const std::string response = answer_.response("in_progress", nullptr, nullptr);
  response_event("response.created", response, out);
  response_event("response.in_progress", response, out);
}

void ResponseStream::begin_block(std::string& out) {
  open_ = true;
  const size_t index = answer_.blocks_.size() - 1;
  begin_event("response.output_item.added", out);
  fmt::format_to(std::back_inserter(out), ",\"output_index\":{},\"item\":", index);
  answer_.append_item(index, "in_progress", true, out);
  out += kEnd;
  if (answer_.blocks_[index].kind == BlockKind::call) return;
  item_event("response.content_part.added", out);
  out += ",\"part\":";
  answer_.append_part(index, true, out);
  out += kEnd;
}

void ResponseStream::end_block(std::string_view status, std::string& out) {
  if (!open_) return;
  open_ = false;
  const size_t index = answer_.blocks_.size() - 1;
  const Block& block = answer_.blocks_[index];
  item_event(fmt::format("response.{}.done", event_stem(block.kind)), out);
  if (block.kind == BlockKind::call) {
    out += ",\"name\":";
    append_json_string(block.name, out);
    out += ",\"arguments\":";
  } else {
    out += block.kind == BlockKind::text ? ",\"logprobs\":[],\"text\":" : ",\"text\":";
  }
  append_json_string(block.text, out);
  out += kEnd;
  if (block.kind != BlockKind::call) {
    item_event("response.content_part.done", out);
    out += ",\"part\":";
    answer_.append_part(index, false, out);
    out += kEnd;
  }
  begin_event("response.output_item.done", out);
  fmt::format_to(std::back_inserter(out), ",\"output_index\":{},\"item\":", index);
  answer_.append_item(index, status, false, out);
  out += kEnd;
}

void ResponseStream::add(const TextStep& step, std::string& out) {
  std::vector<Block>& blocks = answer_.blocks_;
  for (const Piece& piece : step.pieces) {
    if (begins_block(open_ ? blocks.back().kind : BlockKind::none, piece.kind)) {
      end_block("completed", out);
      blocks.push_back({block_kind(piece.kind), {}, {}});
      if (piece.kind == PieceKind::tool_call) blocks.back().name = piece.text;
      begin_block(out);
    }
    if (piece.kind == PieceKind::tool_call) continue;
    blocks.back().text += piece.text;
    item_event(fmt::format("response.{}.delta", event_stem(blocks.back().kind)), out);
    out += blocks.back().kind == BlockKind::text ? ",\"logprobs\":[],\"delta\":" : ",\"delta\":";
    append_json_string(piece.text, out);
    out += kEnd;
  }
}

void ResponseStream::finish(std::string_view finish_reason, std::string& out) {
  answer_.finish(finish_reason);
  end_block(answer_.status(), out);
}

void ResponseStream::end(const Usage& usage, std::string& out) {
  response_event(fmt::format("response.{}", answer_.status()),
                 answer_.response(answer_.status(), &usage, nullptr), out);
}

void ResponseStream::failed(const ApiError& error, std::string& out) {
  const Json shown{{"code", "server_error"}, {"message", error.message}};
  response_event("response.failed", answer_.response("failed", nullptr, shown), out);
}

}  // namespace tandem::serve
