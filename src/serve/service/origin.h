// Which web pages may use the server: browsers say from where a request comes, and under what name they know
// us.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::serve {

struct OriginPolicy {
  std::vector<std::string> origins;  // "https://chat.example": pages that may; "*": all
  // Listening on loopback alone: other names than those of loopback are a page's that had its own name point
  // here (DNS rebinding).
  bool loopback_names_only = false;

  // `host`: the header Host. Absent is allowed: HTTP/1.0.
  bool host_allowed(std::string_view host) const;
  // `origin`: the header Origin, absent for programs. A page that we served ourselves may always.
  bool origin_allowed(std::string_view origin, std::string_view host) const;
};

}  // namespace tandem::serve
