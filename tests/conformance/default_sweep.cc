#include "conformance/harness.h"

int tandem::conformance::n_cases(int n) { return n; }
