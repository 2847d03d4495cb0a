// A config.json with a `quantization` block added, as MLX conversions have it.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "format/config.h"

namespace tandem {

// The text of config.json `text` with `quantization` and its copy `quantization_config` at the end of the
// outer object (older blocks of these names are replaced); all other fields keep their order and values.
// `path` names the input in errors: not a JSON object.
Result<std::string> config_with_quantization(std::span<const std::byte> text, const std::string& path,
                                             const QuantizationConfig& quantization);

}  // namespace tandem
