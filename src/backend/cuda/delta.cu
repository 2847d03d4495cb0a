// The convolution of a block.
#include "backend/cuda/cuda.h"
#include "base/check.h"

namespace tandem::cuda {

void CudaBackend::do_block_conv(const Step&, const BlockConv&) { TD_CHECK(false, "not written"); }

}  // namespace tandem::cuda
