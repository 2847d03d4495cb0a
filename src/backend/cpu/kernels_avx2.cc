// The kernels compiled for avx2 (see kernels.h).
#include "backend/cpu/vec_avx2.h"

#define TD_ISA avx2
#include "backend/cpu/kernels_impl.h"
