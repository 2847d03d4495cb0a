// Kernels as fibers: a few of the cases; all of them are run on a card, and here under the label slow.
#include "conformance/harness.h"

int tandem::conformance::n_cases(int n) { return (n + 7) / 8; }
