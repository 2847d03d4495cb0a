#include "sample/accept.h"

#include "base/check.h"

namespace tandem {

Verdict accept_coupled(std::span<const TokenId> draft, std::span<const TokenId> target) {
  TD_CHECK(target.size() == draft.size() + 1,
           "want one target token more than drafts, got %zu for %zu drafts", target.size(), draft.size());
  size_t n = 0;
  while (n < draft.size() && draft[n] == target[n]) ++n;
  return {int(n), target[n]};
}

}  // namespace tandem
