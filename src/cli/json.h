// JSON as the subcommands print it: one line, keys in the order they were set.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace tandem {

using Json = nlohmann::ordered_json;

// A single-precision number with the digits it needs and no more. JSON has no infinity: -inf is -9999, as the
// HTTP interfaces of language models write it; NaN is null.
Json json_number(float x);

// The document and a newline. Text that is not UTF-8 (file names) is printed with replacement characters.
std::string json_line(const Json& document);

}  // namespace tandem
