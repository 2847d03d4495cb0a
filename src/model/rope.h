// Rotary frequencies of a configuration.
#pragma once

#include <vector>

#include "format/config.h"

namespace tandem {

struct RopeTable {
  std::vector<float> frequencies;  // rotary_dims / 2; computed in fp64, rounded once
  float factor = 1;                // multiplies cos and sin (YaRN's attention factor)
};

// plain: theta^(-2i/R). linear: / factor. llama3: low frequencies / factor, high ones kept, a linear blend
// between. yarn: blend by a ramp over the dimensions whose wavelengths turn beta_fast and beta_slow times in
// the original context (YaRN: Efficient Context Window Extension, section 3; factor on cos and sin: 0.1 ln(s)
// + 1).
RopeTable rope_table(const RopeConfig& config);

}  // namespace tandem
