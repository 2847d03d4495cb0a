// The kernels compiled for portable (see kernels.h).
#include "backend/cpu/vec_portable.h"

#define TD_ISA portable
#include "backend/cpu/kernels_impl.h"
