// The oracle: plain loops, fp32 data, double sums, one thread. It defines what every operation of backend.h
// means.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace tandem {

std::unique_ptr<Backend> make_reference_backend(DeltaForm delta = DeltaForm::exact);

}  // namespace tandem
