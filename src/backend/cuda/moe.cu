// Sparse mixtures: routing and experts.
#include "backend/cuda/cuda.h"
#include "base/check.h"

namespace tandem::cuda {

void CudaBackend::do_moe_route(View, bool, MutView, MutView) { TD_CHECK(false, "not written"); }
void CudaBackend::do_moe_experts(Path, const MoeExperts&) { TD_CHECK(false, "not written"); }

}  // namespace tandem::cuda
