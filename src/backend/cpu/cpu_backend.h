// The CPU backend: SIMD kernels chosen at run time and a team of threads.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace tandem {

// threads 0: one per core this process may use. isa: auto, portable, avx2 or avx512 (an error if this CPU
// lacks it).
Result<std::unique_ptr<Backend>> make_cpu_backend(int threads, const std::string& isa,
                                                  DeltaForm delta = DeltaForm::exact);

}  // namespace tandem
