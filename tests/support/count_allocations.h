// Linked into a test, counts the calls of the process's allocator by any thread: operator new, and malloc
// where no sanitizer owns it.
#pragma once

#include <cstdint>

namespace tandem {

int64_t allocations_so_far();

}  // namespace tandem
