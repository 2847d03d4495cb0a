#include "serve/api/chat_answer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "base/check.h"
#include "serve/text/json_text.h"

namespace tandem::serve {
namespace {

void append_entries(const TextStep& step, const Tokenizer& tokenizer, std::string& out) {
  for (const TokenEntry& entry : step.entries) {
    if (std::isnan(entry.logprobs.chosen)) continue;
    if (!out.empty()) out += ',';
    append_logprob_entry(entry, tokenizer, out);
  }
}

void append_reasoning(std::string_view text, ReasoningField field, std::string& out) {
  const bool both = field == ReasoningField::both;
  if (both || field == ReasoningField::reasoning_content) {
    out += "\"reasoning_content\":";
    append_json_string(text, out);
  }
  if (both) out += ',';
  if (both || field == ReasoningField::reasoning) {
    out += "\"reasoning\":";
    append_json_string(text, out);
  }
}

void append_head(const AnswerHead& head, std::string_view object, std::string& out) {
  out += "{\"id\":";
  append_json_string(head.id, out);
  fmt::format_to(std::back_inserter(out), ",\"object\":\"{}\",\"created\":{},\"model\":", object,
                 head.created);
  append_json_string(head.model, out);
  out += ",\"system_fingerprint\":";
  append_json_string(head.fingerprint, out);
}

void append_number(int value, std::string& out) { fmt::format_to(std::back_inserter(out), "{}", value); }

}  // namespace

void ChatChoice::add(const TextStep& step) {
  for (const Piece& piece : step.pieces) {
    switch (piece.kind) {
      case PieceKind::content:
        content_ += piece.text;
        break;
      case PieceKind::reasoning:
        reasoning_ += piece.text;
        break;
      case PieceKind::tool_call:
        calls_.push_back({std::string(piece.text), {}});
        break;
      case PieceKind::tool_arguments:
        calls_.at(size_t(piece.call)).arguments += piece.text;
        break;
    }
  }
  if (logprobs_) append_entries(step, *tokenizer_, entries_);
}

void ChatChoice::finish(std::string_view finish_reason, StopReason stop_reason) {
  finish_reason_ = finish_reason;
  stop_reason_ = std::move(stop_reason);
}

void ChatChoice::append_json(const AnswerHead& head, int index, ReasoningField field,
                             std::string& out) const {
  out += "{\"index\":";
  append_number(index, out);
  out += ",\"message\":{\"role\":\"assistant\",\"content\":";
  if (content_.empty() && !calls_.empty()) {
    out += "null";
  } else {
    append_json_string(content_, out);
  }
  if (!reasoning_.empty()) {
    out += ',';
    append_reasoning(reasoning_, field, out);
  }
  if (!calls_.empty()) {
    out += ",\"tool_calls\":[";
    for (size_t k = 0; k < calls_.size(); ++k) {
      out += k == 0 ? "{\"id\":\"" : ",{\"id\":\"";
      out += tool_call_id(head.id, index, int(k));
      out += "\",\"type\":\"function\",\"function\":{\"name\":";
      append_json_string(calls_[k].name, out);
      out += ",\"arguments\":";
      append_json_string(calls_[k].arguments, out);
      out += "}}";
    }
    out += ']';
  }
  out += "},\"logprobs\":";
  if (logprobs_) {
    out += "{\"content\":[" + entries_ + "],\"refusal\":null}";
  } else {
    out += "null";
  }
  out += ",\"finish_reason\":\"" + finish_reason_ + "\",\"stop_reason\":";
  append_stop_reason(stop_reason_, out);
  out += '}';
}

std::string chat_completion(const AnswerHead& head, std::span<const ChatChoice> choices, const Usage& usage,
                            const Json& timings, ReasoningField field) {
  std::string out;
  append_head(head, "chat.completion", out);
  out += ",\"choices\":[";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += ',';
    choices[i].append_json(head, int(i), field, out);
  }
  out += "],\"usage\":";
  append_usage(usage, out);
  if (!timings.is_null()) out += ",\"timings\":" + timings.dump();
  out += '}';
  return out;
}

ChatStream::ChatStream(const AnswerHead& head, const Tokenizer& tokenizer, int n_choices,
                       ChunkOptions options)
    : tokenizer_(&tokenizer), options_(options), id_(head.id), choices_(size_t(n_choices)) {
  head_ = "data: ";
  append_head(head, "chat.completion.chunk", head_);
  usage_head_ = head_ + ",\"choices\":[],\"usage\":";
  head_ += ",\"choices\":[{\"index\":";
}

void ChatStream::begin(int choice, std::string& out) const {
  out += head_;
  append_number(choice, out);
  out += ",\"delta\":{";
}

// From the end of the delta to the end of the event, with all log-probabilities that wait.
void ChatStream::end(int choice, const Usage* running, std::string& out) {
  std::string& entries = choices_[size_t(choice)].entries;
  if (entries.empty()) {
    out += "},\"logprobs\":null,\"finish_reason\":null}]";
  } else {
    out += "},\"logprobs\":{\"content\":[";
    out += entries;
    out += "],\"refusal\":null},\"finish_reason\":null}]";
    entries.clear();
  }
  if (running != nullptr) {
    out += ",\"usage\":";
    append_usage(*running, out);
  } else if (options_.include_usage) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

void ChatStream::role(int choice, std::string& out, const Usage* running) {
  Choice& c = choices_[size_t(choice)];
  if (c.began) return;
  c.began = true;
  std::string entries = std::exchange(c.entries, {});
  begin(choice, out);
  out += "\"role\":\"assistant\",\"content\":\"\"";
  end(choice, running, out);
  c.entries = std::move(entries);
}

void ChatStream::add_piece(int choice, const Piece& piece, std::string& out) {
  switch (piece.kind) {
    case PieceKind::content:
      out += "\"content\":";
      append_json_string(piece.text, out);
      break;
    case PieceKind::reasoning:
      append_reasoning(piece.text, options_.reasoning, out);
      break;
    case PieceKind::tool_call:
      out += "\"tool_calls\":[{\"index\":";
      append_number(piece.call, out);
      out += ",\"id\":\"";
      out += tool_call_id(id_, choice, piece.call);
      out += "\",\"type\":\"function\",\"function\":{\"name\":";
      append_json_string(piece.text, out);
      out += ",\"arguments\":\"\"}}]";
      break;
    case PieceKind::tool_arguments:
      out += "\"tool_calls\":[{\"index\":";
      append_number(piece.call, out);
      out += ",\"function\":{\"arguments\":";
      append_json_string(piece.text, out);
      out += "}}]";
      break;
  }
}

void ChatStream::add(int choice, const TextStep& step, std::string& out, const Usage* running) {
  role(choice, out, running);
  if (options_.logprobs) append_entries(step, *tokenizer_, choices_[size_t(choice)].entries);
  for (const Piece& piece : step.pieces) {
    begin(choice, out);
    add_piece(choice, piece, out);
    end(choice, running, out);
  }
}

void ChatStream::finish(int choice, std::string_view finish_reason, const StopReason& stop_reason,
                        std::string& out, const Usage* running) {
  role(choice, out, running);
  std::string& entries = choices_[size_t(choice)].entries;
  begin(choice, out);
  out += "},\"logprobs\":";
  if (entries.empty()) {
    out += "null";
  } else {
    out += "{\"content\":[" + entries + "],\"refusal\":null}";
    entries.clear();
  }
  out += ",\"finish_reason\":\"";
  out += finish_reason;
  out += "\",\"stop_reason\":";
  append_stop_reason(stop_reason, out);
  out += "}]";
  if (running != nullptr) {
    out += ",\"usage\":";
    append_usage(*running, out);
  } else if (options_.include_usage) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

void ChatStream::usage(const Usage& usage, std::string& out) const {
  if (!options_.include_usage) return;
  out += usage_head_;
  append_usage(usage, out);
  out += "}\n\n";
}

}  // namespace tandem::serve
