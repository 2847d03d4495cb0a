// The parts of config.json that have a file of their own. Private to format/.
#pragma once

#include "base/result.h"
#include "format/config.h"
#include "format/json.h"

namespace tandem {

constexpr int64_t kMaxContext = int64_t{1} << 24;

// Both levels of a config.json: `text` is the object that describes the text model, `outer` the root; the
// same object in flat files.
struct ConfigLevels {
  JsonFields outer;
  JsonFields text;
};

// Fills rope and context. Needs d_head and max_position.
Status read_rope(const JsonFields& text, ModelConfig& config);

// Fills quantization.
Status read_quantization(const ConfigLevels& levels, ModelConfig& config);

}  // namespace tandem
