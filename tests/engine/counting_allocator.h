// Linked into a test, counts the calls of the process's allocator: operator new, and malloc where no
// sanitizer owns it.
#pragma once

namespace tandem {

void start_counting_allocations();
int stop_counting_allocations();  // calls since start, by any thread

}  // namespace tandem
