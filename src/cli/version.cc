#include "cli/version.h"

namespace tandem {

extern const char* const kCommit;  // in a file that the build writes

const char* version() { return TANDEM_VERSION; }
const char* commit() { return kCommit; }

}  // namespace tandem
