#include "serve/service/origin.h"

#include <algorithm>

namespace tandem::serve {

bool OriginPolicy::host_allowed(std::string_view host) const {
  if (!loopback_names_only || host.empty()) return true;
  std::string_view name = host;
  if (name.front() == '[') {
    name = name.substr(0, name.find(']') + 1);
  } else {
    name = name.substr(0, name.find(':'));
  }
  const bool is_address = !name.empty() && name.find_first_not_of("0123456789.") == std::string_view::npos;
  return name == "localhost" || name == "[::1]" || (is_address && name.starts_with("127.")) ||
         name.ends_with(".localhost");
}

bool OriginPolicy::origin_allowed(std::string_view origin, std::string_view host) const {
  if (origin.empty()) return true;
  const auto is = [&](const std::string& allowed) { return allowed == "*" || allowed == origin; };
  if (std::any_of(origins.begin(), origins.end(), is)) return true;
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && origin.substr(scheme + 3) == host;
}

}  // namespace tandem::serve
