#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "format/config_parts.h"
#include "format/printable.h"

namespace tandem {
namespace {

constexpr double kMaxFactor = 1e4;

Status read_yarn(const JsonFields& fields, RopeConfig& rope) {
  TD_ASSIGN_OR_RETURN(const std::optional<double> fast, fields.number("beta_fast", 1e-3, 1e6));
  TD_ASSIGN_OR_RETURN(const std::optional<double> slow, fields.number("beta_slow", 1e-3, 1e6));
  TD_ASSIGN_OR_RETURN(const std::optional<bool> truncate, fields.boolean("truncate"));
  TD_ASSIGN_OR_RETURN(const std::optional<double> mscale, fields.number("mscale", 0, 100));
  TD_ASSIGN_OR_RETURN(const std::optional<double> all_dim, fields.number("mscale_all_dim", 0, 100));
  TD_ASSIGN_OR_RETURN(rope.attention_factor, fields.number("attention_factor", 1e-3, 1e3));
  rope.beta_fast = fast.value_or(rope.beta_fast);
  rope.beta_slow = slow.value_or(rope.beta_slow);
  rope.truncate = truncate.value_or(rope.truncate);
  rope.mscale = mscale.value_or(rope.mscale);
  rope.mscale_all_dim = all_dim.value_or(rope.mscale_all_dim);
  if (rope.beta_fast < rope.beta_slow) {
    return fields.error("beta_fast", fmt::format("expected at least beta_slow = {}, found {}", rope.beta_slow,
                                                 rope.beta_fast));
  }
  return {};
}

Status read_llama3(const JsonFields& fields, RopeConfig& rope) {
  TD_ASSIGN_OR_RETURN(const std::optional<double> low, fields.number("low_freq_factor", 1e-3, 1e6));
  TD_ASSIGN_OR_RETURN(const std::optional<double> high, fields.number("high_freq_factor", 1e-3, 1e6));
  rope.low_freq_factor = low.value_or(rope.low_freq_factor);
  rope.high_freq_factor = high.value_or(rope.high_freq_factor);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return fields.error("high_freq_factor", fmt::format("expected more than low_freq_factor = {}, found {}",
                                                        rope.low_freq_factor, rope.high_freq_factor));
  }
  return {};
}

Status read_scaling(const JsonFields& fields, std::string_view type_key, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  TD_ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.string(type_key));
  if (!type || *type == "default" || *type == "mrope")
    return {};  // one position per text token: mrope is plain
  if (*type == "linear") {
    rope.type = RopeConfig::Type::linear;
  } else if (*type == "llama3") {
    rope.type = RopeConfig::Type::llama3;
  } else if (*type == "yarn") {
    rope.type = RopeConfig::Type::yarn;
  } else {
    return fields.error(type_key,
                        fmt::format("rotary embedding '{}' is not supported; supported are default, linear, "
                                    "llama3, yarn",
                                    printable(*type)));
  }
  TD_ASSIGN_OR_RETURN(rope.factor, fields.require_number("factor", 1, kMaxFactor));
  double trained = config.max_position;
  if (rope.type != RopeConfig::Type::linear) {
    TD_ASSIGN_OR_RETURN(const int64_t original,
                        fields.require_integer("original_max_position_embeddings", 1, kMaxContext));
    rope.original_max_position = int(original);
    trained = rope.original_max_position;
  }
  if (rope.type == RopeConfig::Type::yarn) TD_RETURN_IF_ERROR(read_yarn(fields, rope));
  if (rope.type == RopeConfig::Type::llama3) {
    TD_RETURN_IF_ERROR(read_llama3(fields, rope));
  } else {
    // Published configs of the llama3 kind state the stretched context themselves, the other two the trained
    // one.
    config.context = std::max(config.max_position, int(std::min(trained * rope.factor, double(kMaxContext))));
  }
  return {};
}

}  // namespace

Status read_rope(const JsonFields& text, ModelConfig& config) {
  config.context = config.max_position;
  TD_ASSIGN_OR_RETURN(std::optional<JsonFields> fields, text.object("rope_parameters"));
  if (!fields) {
    TD_ASSIGN_OR_RETURN(fields, text.object("rope_scaling"));
  }
  // The base and the rotated share stand beside the scaling in older files, inside it in newer ones.
  const JsonFields& theta_at = fields && fields->has("rope_theta") ? *fields : text;
  const JsonFields& share_at = fields && fields->has("partial_rotary_factor") ? *fields : text;
  if (config.architecture == Architecture::llama && !theta_at.has("rope_theta")) {
    config.rope.theta = 10000;  // the first Llama files were written before there was a choice
  } else {
    TD_ASSIGN_OR_RETURN(config.rope.theta, theta_at.require_number("rope_theta", 1.0001, 1e12));
  }
  TD_ASSIGN_OR_RETURN(const std::optional<double> share, share_at.number("partial_rotary_factor", 0, 1));
  if (config.hybrid() && !share) {
    return share_at.error("partial_rotary_factor", "expected a number in [0, 1], found nothing");
  }
  config.rope.rotary_dims = int(config.d_head * share.value_or(1.0));
  if (config.rope.rotary_dims < 2 || config.rope.rotary_dims % 2 != 0) {
    return share_at.error(
        "partial_rotary_factor",
        fmt::format("{} of head_dim {} gives {} rotated dimensions, expected an even number >= 2",
                    share.value_or(1.0), config.d_head, config.rope.rotary_dims));
  }
  if (fields) {
    TD_RETURN_IF_ERROR(read_scaling(*fields, fields->has("rope_type") ? "rope_type" : "type", config));
  }
  return {};
}

}  // namespace tandem
