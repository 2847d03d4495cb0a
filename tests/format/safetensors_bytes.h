// safetensors files made by hand, right or wrong.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

// Length (that of `header` unless given), header, data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data, int64_t length = -1) {
  const uint64_t n = length < 0 ? header.size() : uint64_t(length);
  std::string file;
  for (int i = 0; i < 8; ++i) file += char(n >> (8 * i));
  file += header;
  file += data;
  return file;
}

}  // namespace tandem
