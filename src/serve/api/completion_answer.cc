#include "serve/api/completion_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "serve/text/json_text.h"

namespace tandem::serve {
namespace {

void append_head(const AnswerHead& head, std::string& out) {
  out += "{\"id\":";
  append_json_string(head.id, out);
  fmt::format_to(std::back_inserter(out),
                 ",\"object\":\"text_completion\",\"created\":{},\"model\":", head.created);
  append_json_string(head.model, out);
  out += ",\"system_fingerprint\":";
  append_json_string(head.fingerprint, out);
}

size_t n_characters(std::string_view text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

void comma(std::string& out) {
  if (!out.empty()) out += ',';
}

void add_echo(const PromptEcho& prompt, const Tokenizer& tokenizer, std::optional<int> logprobs,
              CompletionLogprobs& entries) {
  if (!logprobs || prompt.ids.empty()) return;
  entries.add_first(prompt.ids[0], tokenizer);
  for (const TokenEntry& entry : prompt.entries) entries.add(entry, tokenizer, *logprobs > 0, 0);
}

// `finish_reason` empty: null.
void append_choice(int index, std::string_view text, const CompletionLogprobs* logprobs,
                   std::string_view finish_reason, const StopReason& stop_reason, std::string& out) {
  out += "{\"index\":";
  fmt::format_to(std::back_inserter(out), "{}", index);
  out += ",\"text\":";
  append_json_string(text, out);
  out += ",\"logprobs\":";
  if (logprobs != nullptr) {
    logprobs->append_json(out);
  } else {
    out += "null";
  }
  out += ",\"finish_reason\":";
  if (finish_reason.empty()) {
    out += "null}";
    return;
  }
  append_json_string(finish_reason, out);
  out += ",\"stop_reason\":";
  append_stop_reason(stop_reason, out);
  out += '}';
}

}  // namespace

void CompletionLogprobs::add_first(TokenId id, const Tokenizer& tokenizer) {
  append_json_string(token_text(tokenizer, id), tokens_);
  values_ += "null";
  top_ += "null";
  offsets_ += '0';
}

void CompletionLogprobs::add(const TokenEntry& entry, const Tokenizer& tokenizer, bool with_top,
                             size_t offset) {
  if (std::isnan(entry.logprobs.chosen)) return;
  for (std::string* list : {&tokens_, &values_, &top_, &offsets_}) comma(*list);
  const std::string text = token_text(tokenizer, entry.id);
  append_json_string(text, tokens_);
  append_logprob(entry.logprobs.chosen, values_);
  fmt::format_to(std::back_inserter(offsets_), "{}", entry.text_offset + offset);
  if (!with_top) {
    top_ += "null";
    return;
  }
  // An object by text: of tokens with equal text the first, which is the more probable one. The chosen token
  // is always in it.
  std::vector<std::string> seen;
  const auto add_one = [&](std::string token, float logprob) {
    if (std::isnan(logprob) || std::find(seen.begin(), seen.end(), token) != seen.end()) return;
    if (!seen.empty()) top_ += ',';
    append_json_string(token, top_);
    top_ += ':';
    append_logprob(logprob, top_);
    seen.push_back(std::move(token));
  };
  top_ += '{';
  for (const TokenLogprob& other : entry.logprobs.top)
    add_one(token_text(tokenizer, other.id), other.logprob);
  add_one(text, entry.logprobs.chosen);
  top_ += '}';
}

void CompletionLogprobs::append_json(std::string& out) const {
  out += "{\"tokens\":[" + tokens_ + "],\"token_logprobs\":[" + values_ + "],\"top_logprobs\":[" + top_ +
         "],\"text_offset\":[" + offsets_ + "]}";
}

void CompletionLogprobs::clear() {
  for (std::string* list : {&tokens_, &values_, &top_, &offsets_}) list->clear();
}

void CompletionChoice::echo(const PromptEcho& prompt) {
  text_ = prompt.text;
  offset_ = n_characters(prompt.text);
  add_echo(prompt, *tokenizer_, logprobs_, entries_);
}

void CompletionChoice::add(const TextStep& step) {
  for (const Piece& piece : step.pieces) text_ += piece.text;
  if (!logprobs_) return;
  for (const TokenEntry& entry : step.entries) entries_.add(entry, *tokenizer_, *logprobs_ > 0, offset_);
}

void CompletionChoice::finish(std::string_view finish_reason, StopReason stop_reason) {
  finish_reason_ = finish_reason;
  stop_reason_ = std::move(stop_reason);
}

void CompletionChoice::append_json(int index, std::string& out) const {
  append_choice(index, text_, logprobs_ ? &entries_ : nullptr, finish_reason_, stop_reason_, out);
}

std::string completion_body(const AnswerHead& head, std::span<const CompletionChoice> choices,
                            const Usage& usage, const Json& timings) {
  std::string out;
  append_head(head, out);
  out += ",\"choices\":[";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += ',';
    choices[i].append_json(int(i), out);
  }
  out += "],\"usage\":";
  append_usage(usage, out);
  if (!timings.is_null()) out += ",\"timings\":" + timings.dump();
  out += '}';
  return out;
}

CompletionStream::CompletionStream(const AnswerHead& head, const Tokenizer& tokenizer, int n_choices,
                                   std::optional<int> logprobs, bool include_usage)
    : tokenizer_(&tokenizer),
      logprobs_(logprobs),
      include_usage_(include_usage),
      choices_(size_t(n_choices)) {
  head_ = "data: ";
  append_head(head, head_);
  usage_head_ = head_ + ",\"choices\":[],\"usage\":";
  head_ += ",\"choices\":[";
}

void CompletionStream::event(int choice, std::string_view text, std::string_view finish_reason,
                             const StopReason& stop_reason, const Usage* running, std::string& out) {
  CompletionLogprobs& entries = choices_[size_t(choice)].entries;
  out += head_;
  append_choice(choice, text, entries.empty() ? nullptr : &entries, finish_reason, stop_reason, out);
  entries.clear();
  out += ']';
  if (running != nullptr) {
    out += ",\"usage\":";
    append_usage(*running, out);
  } else if (include_usage_) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

void CompletionStream::echo(int choice, const PromptEcho& prompt, std::string& out) {
  Choice& c = choices_[size_t(choice)];
  c.offset = n_characters(prompt.text);
  add_echo(prompt, *tokenizer_, logprobs_, c.entries);
  event(choice, prompt.text, {}, {}, nullptr, out);
}

void CompletionStream::add(int choice, const TextStep& step, std::string& out, const Usage* running) {
  Choice& c = choices_[size_t(choice)];
  if (logprobs_) {
    for (const TokenEntry& entry : step.entries) c.entries.add(entry, *tokenizer_, *logprobs_ > 0, c.offset);
  }
  for (const Piece& piece : step.pieces) event(choice, piece.text, {}, {}, running, out);
}

void CompletionStream::finish(int choice, std::string_view finish_reason, const StopReason& stop_reason,
                              std::string& out, const Usage* running) {
  event(choice, {}, finish_reason, stop_reason, running, out);
}

void CompletionStream::usage(const Usage& usage, std::string& out) const {
  if (!include_usage_) return;
  out += usage_head_;
  append_usage(usage, out);
  out += "}\n\n";
}

}  // namespace tandem::serve
