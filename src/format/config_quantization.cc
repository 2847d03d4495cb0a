#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "format/config_parts.h"
#include "format/printable.h"

namespace tandem {
namespace {

constexpr const char* kSupported =
    "supported are plain bf16, f16 and f32 checkpoints and MLX affine ones (2, 3, 4, 5, 6 or 8 bits, groups "
    "of 32, "
    "64 or 128)";

// One {group_size, bits, mode}; MLX's defaults where a field is absent.
Result<QuantParams> read_params(const JsonFields& fields) {
  TD_ASSIGN_OR_RETURN(const std::optional<std::string> mode, fields.string("mode"));
  if (mode && *mode != "affine") {
    return fields.error("mode",
                        fmt::format("quantisation '{}' is not supported; {}", printable(*mode), kSupported));
  }
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> bits, fields.integer("bits", 1, 64));
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> group, fields.integer("group_size", 1, 1 << 20));
  const QuantParams params{.bits = int(bits.value_or(4)), .group_size = int(group.value_or(64))};
  constexpr std::array kBits{2, 3, 4, 5, 6, 8};
  constexpr std::array kGroups{32, 64, 128};
  if (std::find(kBits.begin(), kBits.end(), params.bits) == kBits.end()) {
    return fields.error("bits", fmt::format("expected 2, 3, 4, 5, 6 or 8, found {}", params.bits));
  }
  if (std::find(kGroups.begin(), kGroups.end(), params.group_size) == kGroups.end()) {
    return fields.error("group_size", fmt::format("expected 32, 64 or 128, found {}", params.group_size));
  }
  return params;
}

// Blocks of other tools say what they are in quant_method.
Status refuse_foreign(const JsonFields& block) {
  TD_ASSIGN_OR_RETURN(const std::optional<std::string> method, block.string("quant_method"));
  if (!method || *method == "mlx" || *method == "affine") return {};
  TD_ASSIGN_OR_RETURN(const std::optional<std::string> format, block.string("format"));
  return block.error(
      "quant_method",
      fmt::format("quantisation '{}'{} is not supported; {}", printable(*method),
                  format ? fmt::format(" (format '{}')", printable(*format)) : "", kSupported));
}

}  // namespace

std::optional<QuantParams> QuantizationConfig::params_for(std::string_view module) const {
  const auto at = modules.find(module);
  return at == modules.end() ? global : at->second;
}

Status read_quantization(const ConfigLevels& levels, ModelConfig& config) {
  std::optional<JsonFields> block;
  for (const JsonFields* level : {&levels.outer, &levels.text}) {
    for (const char* key : {"quantization", "quantization_config"}) {
      if (!block) {
        TD_ASSIGN_OR_RETURN(block, level->object(key));
      }
    }
  }
  if (!block) return {};
  TD_RETURN_IF_ERROR(refuse_foreign(*block));
  TD_ASSIGN_OR_RETURN(config.quantization.global, read_params(*block));
  for (const simdjson::dom::key_value_pair field : block->raw()) {
    bool quantised = false;
    std::optional<QuantParams> params = config.quantization.global;
    if (field.value.is_object()) {
      TD_ASSIGN_OR_RETURN(const std::optional<JsonFields> fields, block->object(field.key));
      TD_ASSIGN_OR_RETURN(params, read_params(*fields));
    } else if (field.value.get(quantised) == simdjson::SUCCESS) {
      if (!quantised) params = std::nullopt;
    } else {
      continue;  // a parameter of the block itself
    }
    config.quantization.modules.emplace(field.key, params);
  }
  return {};
}

}  // namespace tandem
