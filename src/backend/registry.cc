#include "backend/registry.h"

#include "backend/cpu/cpu_backend.h"
#ifdef TANDEM_CUDA
#include "backend/cuda/cuda_backend.h"
#endif
#include "backend/reference/reference_backend.h"

namespace tandem {

std::vector<std::string> backend_names() {
#ifdef TANDEM_CUDA
  return {"reference", "cpu", "cuda"};
#else
  return {"reference", "cpu"};
#endif
}

Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options) {
  if (options.delta != "exact" && options.delta != "closed")
    return Error{"delta rule '" + options.delta + "' is unknown: use exact or closed"};
  const DeltaForm delta = options.delta == "closed" ? DeltaForm::closed : DeltaForm::exact;
  if (options.name == "reference") return make_reference_backend(delta);
#ifdef TANDEM_CUDA
  if (options.name == "cuda") return make_cuda_backend(delta);
  if (options.name == "auto") {
    if (auto cuda = make_cuda_backend(delta); cuda.ok()) return cuda;
  }
#endif
  if (options.name == "cpu" || options.name == "auto")
    return make_cpu_backend(options.threads, options.isa, delta);
  std::string known = "auto";
  for (const std::string& name : backend_names()) known += ", " + name;
  return Error{"backend '" + options.name + "' is not in this build: use one of " + known};
}

}  // namespace tandem
