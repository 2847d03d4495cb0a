// A named tensor as it lies in a file or in host memory: bytes with a dtype and a shape, not owned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace tandem {

// Row-major, little endian, contiguous. `bytes` may be misaligned for `dtype`: read with memcpy, never
// through a cast pointer. Borrows the memory (a mapping, a vector) of whoever made it.
struct HostTensor {
  std::string name;  // as the checkpoint spells it, for errors
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  // {} is a scalar
  std::span<const std::byte> bytes;

  int64_t elements() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
  }
};

// "[768, 4, 1]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace tandem
