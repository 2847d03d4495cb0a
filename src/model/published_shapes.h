// "synth:NAME[@bits][,layers=N][,group=G]": configurations of published models, for benchmarks without
// downloads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "format/config.h"

namespace tandem {

inline bool is_synthetic(std::string_view model) { return model.starts_with("synth:"); }

// Errors: an unknown name (lists the names there are), bits or layers out of range.
Result<ModelConfig> parse_synthetic(const std::string& model);

std::vector<std::string> published_shape_names();

}  // namespace tandem
