// The kernels compiled for avx512 (see kernels.h).
#include "backend/cpu/vec_avx512.h"

#define TD_ISA avx512
#include "backend/cpu/kernels_impl.h"
