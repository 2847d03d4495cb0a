// Ctrl-C asks the work in progress to end cleanly; pressed again before it has, it ends the process.
#pragma once

namespace tandem {

// From now on the first SIGINT is remembered. Calling it again arms it again.
void watch_interrupt();
bool interrupted();

}  // namespace tandem
