#include "conformance/harness.h"

int tandem::conformance::case_scale() { return 1; }
