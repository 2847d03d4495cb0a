#include "format/printable.h"

namespace tandem {

std::string printable(std::string_view text) {
  constexpr size_t kMax = 160;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, kMax)) {
    const auto u = static_cast<unsigned char>(c);
    if (u >= 0x20 && u < 0x7f && c != '\'' && c != '\\') {
      out += c;
    } else {
      out += "\\x";
      out += kHex[u >> 4];
      out += kHex[u & 15];
    }
  }
  if (text.size() > kMax) out += "...";
  return out;
}

}  // namespace tandem
