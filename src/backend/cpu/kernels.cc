#include "backend/cpu/kernels.h"

#include "base/check.h"

namespace tandem::cpu {

// Each defined in kernels_<isa>.cc.
namespace portable {
const Kernels& table();
}
#if defined(__x86_64__)
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}
#endif

const Kernels& kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512::table();
  if (isa == Isa::avx2) return avx2::table();
#endif
  TD_CHECK(isa == Isa::portable, "kernels for isa %d", int(isa));
  return portable::table();
}

}  // namespace tandem::cpu
