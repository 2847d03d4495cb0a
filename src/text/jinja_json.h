// JSON from the outside -> values. Strings become content.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "text/jinja_value.h"

namespace tandem::jinja {

// Failure for what nests deeper than kMaxNesting levels, holds invalid UTF-8 or binary data.
Value from_json(const nlohmann::ordered_json& json);

}  // namespace tandem::jinja
