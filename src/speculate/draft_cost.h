// What the drafters and the rules for them agree on.
#pragma once

#include <cstdint>

namespace tandem {

constexpr int kMaxDraft = 31;  // tokens of one draft: a decode step holds 32 rows, and the anchor takes one

// How the time of a draft depends on its length.
enum class DraftCost : uint8_t {
  free,   // nothing to speak of: lookup
  block,  // the same for any length
  chain,  // so much per token
};

}  // namespace tandem
