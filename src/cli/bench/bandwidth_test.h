// Read and copy bandwidth of the machine, measured: the limit of decoding.
#pragma once

#include <cstddef>
#include <memory>

#include "base/result.h"

namespace tandem::bench {

// Reads and copies a buffer much larger than the caches with a team of threads of its own, each on its own
// contiguous part, from huge pages where the system has them. Between calls the threads sleep.
class BandwidthTest {
 public:
  // Errors: not enough memory.
  static Result<std::unique_ptr<BandwidthTest>> create(int n_threads);
  virtual ~BandwidthTest() = default;

  // GB/s (1e9 bytes) of the best of `repeats` passes. Copy counts bytes read and bytes written.
  virtual double read_gb_per_s(int repeats) = 0;
  virtual double copy_gb_per_s(int repeats) = 0;
};

}  // namespace tandem::bench
