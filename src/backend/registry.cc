#include "backend/registry.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"

namespace tandem {

std::vector<std::string> backend_names() { return {"reference", "cpu"}; }

Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options) {
  if (options.delta != "exact" && options.delta != "closed")
    return Error{"delta rule '" + options.delta + "' is unknown: use exact or closed"};
  const DeltaForm delta = options.delta == "closed" ? DeltaForm::closed : DeltaForm::exact;
  if (options.name == "reference") return make_reference_backend(delta);
  if (options.name == "cpu" || options.name == "auto")
    return make_cpu_backend(options.threads, options.isa, delta);
  return Error{"backend '" + options.name + "' is not in this build: use auto, reference or cpu"};
}

}  // namespace tandem
