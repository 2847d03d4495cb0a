// Which tandem this is.
#pragma once

namespace tandem {

const char* version();
// The git commit the binary was built from, "-dirty" behind it when files had changed; "unknown" outside git.
const char* commit();

}  // namespace tandem
