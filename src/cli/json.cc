#include "cli/json.h"

#include <charconv>

namespace tandem {

Json json_number(float x) {
  if (std::isnan(x)) return nullptr;
  if (std::isinf(x)) return x < 0 ? -9999.0 : 9999.0;
  char digits[32];
  const char* end = std::to_chars(digits, digits + sizeof digits, x).ptr;
  double value = 0;
  std::from_chars(digits, end, value);
  return value;
}

std::string json_line(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem
