#include "format/config_writer.h"

#include <exception>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "format/json.h"

namespace tandem {
namespace {

using nlohmann::ordered_json;

ordered_json params_json(const QuantParams& params) {
  return {{"group_size", params.group_size}, {"bits", params.bits}, {"mode", "affine"}};
}

}  // namespace

Result<std::string> config_with_quantization(std::span<const std::byte> text, const std::string& path,
                                             const QuantizationConfig& quantization) {
  TD_CHECK(quantization.global.has_value(), "%s: no parameters to write", path.c_str());
  // Bounds size and depth, and checks UTF-8, before the writer's own parser sees the text.
  TD_ASSIGN_OR_RETURN(const JsonDocument checked, JsonDocument::parse(text, path));
  TD_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of_root(checked, path));
  ordered_json block = params_json(*quantization.global);
  for (const auto& [module, params] : quantization.modules) {
    block[module] = params ? params_json(*params) : ordered_json(false);
  }
  try {
    const auto* begin = reinterpret_cast<const char*>(text.data());
    ordered_json config = ordered_json::parse(begin, begin + text.size());
    config.erase("quantization");
    config.erase("quantization_config");
    config["quantization"] = block;
    config["quantization_config"] = std::move(block);
    return config.dump(2) + "\n";
  } catch (const std::exception& e) {
    return Error{path + ": cannot rewrite: " + e.what()};
  }
}

}  // namespace tandem
