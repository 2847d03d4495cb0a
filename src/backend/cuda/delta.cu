// Gated DeltaNet: convolution, gates and the gated delta rule; the convolution of a block.
#include "backend/cuda/cuda.h"
#include "base/check.h"

namespace tandem::cuda {

void CudaBackend::do_block_conv(const Step&, const BlockConv&) { TD_CHECK(false, "not written"); }
void CudaBackend::do_delta_conv(const Step&, const DeltaConv&) { TD_CHECK(false, "not written"); }
void CudaBackend::do_delta_step(const Step&, const DeltaStep&) { TD_CHECK(false, "not written"); }
void CudaBackend::do_fold_states(const Step&, const DeltaShape&, const DeltaState&) {
  TD_CHECK(false, "not written");
}

}  // namespace tandem::cuda
