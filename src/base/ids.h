// Names for the integers that travel between modules.
#pragma once

#include <cstdint>

namespace tandem {

// Row of the vocabulary, 0-based. Signed, so that a file's or request's -1 stays visible until it is refused.
using TokenId = int32_t;

}  // namespace tandem
