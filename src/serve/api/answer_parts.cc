#include "serve/api/answer_parts.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "serve/text/json_text.h"

namespace tandem::serve {
namespace {

// One step of SplitMix64: bits that differ everywhere for words that differ anywhere.
uint64_t mixed(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void append_token(TokenId id, float logprob, const Tokenizer& tokenizer, std::string& out) {
  out += "{\"token\":";
  append_json_string(token_text(tokenizer, id), out);
  out += ",\"logprob\":";
  append_logprob(logprob, out);
  out += ",\"bytes\":[";
  bool first = true;
  for (const char byte : tokenizer.token_bytes(id)) {
    if (!first) out += ',';
    fmt::format_to(std::back_inserter(out), "{}", int(uint8_t(byte)));
    first = false;
  }
  out += ']';
}

}  // namespace

std::string fingerprint(std::string_view version, std::string_view weights_hash, std::string_view device) {
  return fmt::format("tandem-{}-{}-{}", version, weights_hash.substr(0, 8), device);
}

std::string make_id(std::string_view prefix, size_t n, uint64_t word_0, uint64_t word_1) {
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::string id(prefix);
  uint64_t state_0 = word_0, state_1 = word_1;
  for (size_t i = 0; i < n; ++i) id += kAlphabet[(mixed(state_0) ^ mixed(state_1)) % 62];
  return id;
}

std::string tool_call_id(std::string_view answer_id, int choice, int call) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : answer_id) hash = (hash ^ uint8_t(c)) * 0x100000001B3u;
  return make_id("call_", 24, hash, uint64_t(choice) << 32 | uint64_t(call));
}

void append_usage(const Usage& u, std::string& out) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
                 "\"prompt_tokens_details\":{{\"cached_tokens\":{}}},"
                 "\"completion_tokens_details\":{{\"reasoning_tokens\":{},\"accepted_prediction_tokens\":{},"
                 "\"rejected_prediction_tokens\":{}}}}}",
                 u.prompt_tokens, u.completion_tokens, u.prompt_tokens + u.completion_tokens, u.cached_tokens,
                 u.reasoning_tokens, u.accepted_tokens, u.rejected_tokens);
}

void append_stop_reason(const StopReason& reason, std::string& out) {
  if (const auto* text = std::get_if<std::string>(&reason)) {
    append_json_string(*text, out);
  } else if (const auto* id = std::get_if<TokenId>(&reason)) {
    out += std::to_string(*id);
  } else {
    out += "null";
  }
}

Json timings_json(const Timings& t) {
  Json json{{"queue_ms", t.queue_ms},
            {"prefill_ms", t.prefill_ms},
            {"ttft_ms", t.ttft_ms},
            {"decode_ms", t.decode_ms},
            {"prompt_tps", t.prompt_tps},
            {"generation_tps", t.generation_tps},
            {"rounds", t.rounds},
            {"draft_tokens", t.draft_tokens},
            {"accepted_tokens", t.accepted_tokens},
            {"mean_accepted", t.mean_accepted},
            {"accepted_by_position", t.accepted_by_position},
            {"prefix_cache", t.prefix_cache},
            {"cached_tokens", t.cached_tokens},
            {"peak_memory_bytes", t.peak_memory_bytes}};
  if (t.energy_joules) json["energy_joules"] = *t.energy_joules;
  if (t.prefill_energy_joules) json["prefill_energy_joules"] = *t.prefill_energy_joules;
  if (t.decode_energy_joules) json["decode_energy_joules"] = *t.decode_energy_joules;
  return json;
}

Json generation_stats(const Timings& t, const Usage& usage) {
  Json json{{"prompt_tps", t.prompt_tps},
            {"generation_tps", t.generation_tps},
            {"prompt_tokens", usage.prompt_tokens},
            {"generation_tokens", usage.completion_tokens},
            {"peak_memory_usage", {{"in_bytes", t.peak_memory_bytes}}},
            {"prefix_cache_hit", t.prefix_cache}};
  json.update(timings_json(t));
  return json;
}

std::string token_text(const Tokenizer& tokenizer, TokenId id) {
  return tokenizer.decode({&id, 1}, SpecialText::keep);
}

void append_logprob(float logprob, std::string& out) {
  if (std::isinf(logprob) && logprob < 0) {
    out += "-9999.0";
  } else {
    fmt::format_to(std::back_inserter(out), "{}", logprob);
  }
}

void append_logprob_entry(const TokenEntry& entry, const Tokenizer& tokenizer, std::string& out) {
  append_token(entry.id, entry.logprobs.chosen, tokenizer, out);
  out += ",\"top_logprobs\":[";
  bool first = true;
  for (const TokenLogprob& other : entry.logprobs.top) {
    if (std::isnan(other.logprob)) continue;
    if (!first) out += ',';
    first = false;
    append_token(other.id, other.logprob, tokenizer, out);
    out += '}';
  }
  out += "]}";
}

}  // namespace tandem::serve
