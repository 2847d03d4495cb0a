// Counts every call of operator new in the test program that links count_allocations.cc.
#pragma once

#include <cstdint>

namespace tandem {
int64_t allocations_so_far();
}
