// Large blocks of memory backed by huge pages where the system has them: repacked weights are read as long
// streams, and small pages cost 7 to 28% of their bandwidth.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem {

// A piece of a HugeArena, aligned to 128 bytes, zero until written. The arena's chunk lives as long as any of
// its pieces.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  std::byte* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  friend class HugeArena;
  struct Chunk;
  HugeBuffer(std::shared_ptr<Chunk> chunk, std::span<std::byte> bytes)
      : chunk_(std::move(chunk)), bytes_(bytes) {}

  std::shared_ptr<Chunk> chunk_;
  std::span<std::byte> bytes_;
};

// Hands out pieces of large mappings. Pieces are never reused one by one; pages that nobody touched take no
// memory, so that many small matrices share huge pages instead of wasting the rest of one each. Thread-safe.
class HugeArena {
 public:
  // Error: how much was asked for, with the system's reason.
  Result<HugeBuffer> allocate(size_t bytes);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<HugeBuffer::Chunk>> chunks_;
};

}  // namespace tandem
