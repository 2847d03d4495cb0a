// The backends this build has, chosen by one typed option.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace tandem {

struct BackendOptions {
  std::string name = "auto";    // auto, reference, cpu
  int threads = 0;              // 0: one per core the process may use
  std::string isa = "auto";     // cpu: auto, portable, avx2, avx512
  std::string delta = "exact";  // DeltaForm: exact, closed
};

// Errors: an unknown name or form lists those there are; an instruction set this machine lacks is named.
Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options);

std::vector<std::string> backend_names();

}  // namespace tandem
