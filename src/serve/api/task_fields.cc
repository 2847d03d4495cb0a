#include "serve/api/task_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace tandem::serve {
namespace {

constexpr size_t kMostStops = 16, kLongestStop = 256, kMostBiases = 1024, kLongestSalt = 64;
constexpr int kMaxInt = std::numeric_limits<int>::max();

void read_sampling(Fields& fields, const ApiContext& context, SamplingParams& s) {
  s = context.defaults;
  s.stop_ids.clear();
  if (const auto x = fields.number("temperature", 0, 2, "a number in [0, 2] (0 is greedy)")) {
    s.temperature = float(*x);
  }
  // The smallest number above 0 stands for the open end of (0, 1].
  constexpr double kTiny = std::numeric_limits<double>::min();
  if (const auto x =
          fields.number("top_p", kTiny, 1, "a number in (0, 1] (temperature 0 is the greedy choice)")) {
    s.top_p = *x;
  }
  if (const auto k = fields.integer("top_k", -1, INT64_MAX)) {
    s.top_k = *k == -1 ? 0 : int(std::min<int64_t>(*k, context.n_vocab));
  }
  if (const auto x = fields.number("min_p", 0, 1, "a number in [0, 1]")) s.min_p = *x;
  if (const auto x = fields.number("repetition_penalty", std::numeric_limits<float>::min(), 10,
                                   "a number in (0, 10] (1 is no penalty)")) {
    s.repetition_penalty = float(*x);
  }
  if (const auto n = fields.integer("repetition_context_size", 0, kMaxInt)) s.repetition_window = int(*n);
  if (const auto x = fields.number("presence_penalty", -2, 2, "a number in [-2, 2]")) {
    s.presence_penalty = float(*x);
  }
  if (const auto x = fields.number("frequency_penalty", -2, 2, "a number in [-2, 2]")) {
    s.frequency_penalty = float(*x);
  }
  if (const auto n = fields.integer("min_tokens", 0, kMaxInt)) s.min_tokens = int(*n);
}

void read_logit_bias(Fields& fields, const ApiContext& context, SamplingParams& s) {
  const Json* biases = fields.object("logit_bias");
  if (biases == nullptr) return;
  if (biases->size() > kMostBiases) {
    return fields.fail("logit_bias", "out_of_range",
                       fmt::format("expected at most {} entries, found {}", kMostBiases, biases->size()));
  }
  for (const auto& [key, value] : biases->items()) {
    const std::string param = fmt::format("logit_bias.{}", shown(Json(key)));
    TokenId id = -1;
    const auto [end, errc] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (errc != std::errc() || end != key.data() + key.size() || id < 0 || id >= context.n_vocab) {
      return fields.fail("logit_bias", "out_of_range",
                         fmt::format("expected token ids in [0, {}] as keys, found {}", context.n_vocab - 1,
                                     shown(Json(key))));
    }
    if (!value.is_number()) return fields.wrong(param, "invalid_type", "a number in [-100, 100]", value);
    const double bias = value.get<double>();
    if (!(bias >= -100 && bias <= 100)) {
      return fields.wrong(param, "out_of_range", "a number in [-100, 100]", value);
    }
    // "7" and "07" are one token: the last counts, as with equal keys.
    const auto same = std::find_if(s.logit_bias.begin(), s.logit_bias.end(),
                                   [&](const auto& entry) { return entry.first == id; });
    if (same != s.logit_bias.end()) {
      same->second = float(bias);
    } else {
      s.logit_bias.emplace_back(id, float(bias));
    }
  }
}

void read_stops(Fields& fields, const ApiContext& context, GenerationTask& task) {
  read_stop_strings(fields, "stop", task);
  if (const Json* ids = fields.array("stop_token_ids")) {
    for (size_t i = 0; i < ids->size() && fields.ok(); ++i) {
      const auto id = as_integer((*ids)[i]);
      if (!id || *id < 0 || *id >= context.n_vocab) {
        fields.wrong(fmt::format("stop_token_ids[{}]", i), id ? "out_of_range" : "invalid_type",
                     fmt::format("a token id in [0, {}]", context.n_vocab - 1), (*ids)[i]);
      } else {
        task.sampling.stop_ids.push_back(TokenId(*id));
      }
    }
  }
}

void read_stream(Fields& fields, std::optional<ApiError>& error, GenerationTask& task) {
  task.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return;
  if (!task.stream) return fields.fail("stream_options", "invalid_value", "only goes with \"stream\": true");
  Fields inner(*options, "stream_options.", error);
  task.include_usage = inner.boolean("include_usage").value_or(false);
  task.continuous_usage = inner.boolean("continuous_usage").value_or(false);
  if (const auto stats = inner.boolean("continuous_usage_stats")) task.continuous_usage |= *stats;
  inner.ignore("include_obfuscation");
  for (const std::string& key : inner.unknown()) task.ignored.push_back("stream_options." + key);
}

void read_speculation(Fields& fields, std::optional<ApiError>& error, GenerationTask& task) {
  const Json* value = fields.any("speculation");
  if (value == nullptr) return;
  if (value->is_boolean()) {
    task.speculation = SpeculationChoice{.on = value->get<bool>(), .max_draft = {}, .drafter = {}};
  } else if (value->is_object()) {
    Fields inner(*value, "speculation.", error);
    SpeculationChoice choice;
    if (const auto n = inner.integer("max_draft", 0, 64)) choice.max_draft = int(*n);
    choice.drafter = inner.string("drafter").value_or("");
    for (const std::string& key : inner.unknown()) task.ignored.push_back("speculation." + key);
    task.speculation = std::move(choice);
  } else {
    fields.wrong("speculation", "invalid_type", "true, false or an object {max_draft, drafter}", *value);
  }
}

}  // namespace

SamplingParams api_defaults(const GenerationConfig& g) {
  SamplingParams s;
  s.temperature = g.do_sample == false ? 0 : float(g.temperature.value_or(1.0));
  s.top_k = g.top_k.value_or(0);
  s.top_p = g.top_p.value_or(1);
  s.min_p = g.min_p.value_or(0);
  s.repetition_penalty = float(g.repetition_penalty.value_or(1));
  s.presence_penalty = float(g.presence_penalty.value_or(0));
  s.frequency_penalty = float(g.frequency_penalty.value_or(0));
  return s;
}

void read_stop_strings(Fields& fields, std::string_view key, GenerationTask& task) {
  const Json* stop = fields.any(key);
  if (stop == nullptr) return;
  const auto add = [&](const Json& one, const std::string& param) {
    if (!one.is_string()) return fields.wrong(param, "invalid_type", "a string", one);
    const std::string& text = one.get_ref<const std::string&>();
    if (text.empty() || text.size() > kLongestStop) {
      return fields.fail(
          param, "out_of_range",
          fmt::format("expected 1 to {} bytes, found {} ({})", kLongestStop, text.size(), shown(one)));
    }
    task.stops.push_back(text);
  };
  if (!stop->is_array()) return add(*stop, std::string(key));
  if (stop->size() > kMostStops) {
    fields.fail(fmt::format("{}[{}]", key, kMostStops), "out_of_range",
                fmt::format("expected at most {} strings, found {}", kMostStops, stop->size()));
  }
  for (size_t i = 0; i < stop->size() && fields.ok(); ++i) add((*stop)[i], fmt::format("{}[{}]", key, i));
}

void read_generation(Fields& fields, const ApiContext& context, GenerationTask& task) {
  std::optional<ApiError> inner_error;
  task.model = fields.string("model").value_or("");
  if (task.model.empty() && !context.models.empty()) task.model = context.models[0];
  if (fields.ok() &&
      std::find(context.models.begin(), context.models.end(), task.model) == context.models.end()) {
    fields.adopt(model_not_found(task.model, context.models));
  }
  read_sampling(fields, context, task.sampling);
  read_logit_bias(fields, context, task.sampling);
  read_stops(fields, context, task);
  read_stream(fields, inner_error, task);
  read_speculation(fields, inner_error, task);
  if (inner_error && fields.ok()) fields.adopt(*std::move(inner_error));
  if (const Json* seed = fields.any("seed")) {
    const auto value = as_integer(*seed);
    if (value) {
      task.seed = uint64_t(*value);
    } else if (seed->is_number_unsigned()) {
      task.seed = seed->get<uint64_t>();
    } else {
      fields.wrong("seed", seed->is_number() ? "out_of_range" : "invalid_type", "a 64-bit integer", *seed);
    }
  }
  task.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  task.include_stop = fields.boolean("include_stop").value_or(false);
  if (const auto vllm = fields.boolean("include_stop_str_in_output")) task.include_stop |= *vllm;
  if (const auto scope = fields.string("stop_scope")) {
    if (*scope != "all" && *scope != "content") {
      fields.wrong("stop_scope", "unsupported_value", "\"all\" or \"content\"", Json(*scope));
    }
    task.stop_in_thinking = *scope != "content";
  }
  if (const auto n = fields.integer("n", 1, context.max_choices)) task.n = int(*n);
  task.timings = fields.boolean("timings").value_or(false);
  task.prefix_cache = fields.boolean("prefix_cache").value_or(true);
  if (auto salt = fields.string("cache_salt")) {
    if (salt->size() > kLongestSalt) {
      fields.fail("cache_salt", "out_of_range",
                  fmt::format("expected at most {} bytes, found {}", kLongestSalt, salt->size()));
    }
    task.cache_salt = *std::move(salt);
  }
  for (const char* key :
       {"user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"}) {
    fields.ignore(key);
  }
}

void read_unknown(Fields& fields, const ApiContext& context, GenerationTask& task) {
  constexpr size_t kMost = 64;  // a body may hold millions
  for (std::string& key : fields.unknown()) {
    if (task.ignored.size() < kMost) task.ignored.push_back(std::move(key));
  }
  if (context.strict_params && !task.ignored.empty()) {
    fields.fail(task.ignored[0], "unknown_field", "unknown, and the server takes known fields only");
  }
}

std::string ignored_header(const std::vector<std::string>& ignored) {
  constexpr size_t kLongest = 512;
  std::string header;
  for (const std::string& key : ignored) {
    std::string name;
    for (const char c : key) name += c > ' ' && c < 0x7F && c != ',' ? c : '?';
    if (header.size() + name.size() + 1 > kLongest) break;
    if (!header.empty()) header += ',';
    header += name;
  }
  return header;
}

}  // namespace tandem::serve
