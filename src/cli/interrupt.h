// Ctrl-C, and being told to end or that the terminal is gone (SIGINT, SIGTERM, SIGHUP), ask the work in
// progress to end cleanly: long loops poll interrupted(). Sent again before they have, they end the process.
#pragma once

namespace tandem {

// From now on the first such signal is remembered. Calling it again arms it again and forgets a Ctrl-C, but
// not an order to end. A SIGHUP that was ignored at the start (nohup) stays ignored.
void watch_interrupt();
bool interrupted();
// Whether it was more than Ctrl-C: the program as a whole is to end.
bool told_to_end();

}  // namespace tandem
