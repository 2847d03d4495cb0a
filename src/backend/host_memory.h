// Host memory as the backends that live in it see it.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace tandem {

// Bytes this machine can still give without swapping (MemAvailable); SIZE_MAX if the system does not say.
size_t available_host_bytes();

// An error if fewer than `bytes` are available: it names `purpose`, both numbers and the cure.
Status check_host_memory(size_t bytes, const std::string& purpose);

Error out_of_host_memory(size_t bytes, const std::string& purpose);

}  // namespace tandem
