// The cuda backend: one card, one stream. make_cuda_backend for those above; the class for the kernel
// families of this folder, each of which implements some do_x in its own file.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace tandem {

// Errors: no card that can be used.
Result<std::unique_ptr<Backend>> make_cuda_backend(DeltaForm delta = DeltaForm::exact);

}  // namespace tandem
