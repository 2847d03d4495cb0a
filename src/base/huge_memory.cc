#include "base/huge_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace tandem {
namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kChunk = size_t{256} << 20;  // address space, not memory
constexpr size_t kAlign = 128;

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

struct HugeBuffer::Chunk {
  void* mapping = MAP_FAILED;
  size_t mapping_bytes = 0;
  std::byte* begin = nullptr;  // first huge page border in the mapping
  size_t size = 0, used = 0;

  Chunk() = default;
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  ~Chunk() {
    if (mapping != MAP_FAILED) munmap(mapping, mapping_bytes);
  }
};

Result<HugeBuffer> HugeArena::allocate(size_t bytes) {
  const size_t wanted = round_up(bytes, kAlign);
  const std::lock_guard lock(mutex_);
  auto chunk = std::find_if(chunks_.begin(), chunks_.end(),
                            [&](const auto& c) { return c->size - c->used >= wanted; });
  if (chunk == chunks_.end()) {
    auto fresh = std::make_shared<HugeBuffer::Chunk>();
    fresh->size = std::max(kChunk, round_up(wanted, kPage));
    fresh->mapping_bytes = fresh->size + kPage;
    fresh->mapping = mmap(nullptr, fresh->mapping_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fresh->mapping == MAP_FAILED) {
      return Error{
          "cannot map " + std::to_string(fresh->mapping_bytes) + " bytes for weights: " + strerror(errno) +
          "; use a smaller or more strongly quantised model, or raise the limit of this shell (ulimit -v)"};
    }
    const auto address = reinterpret_cast<uintptr_t>(fresh->mapping);
    fresh->begin = static_cast<std::byte*>(fresh->mapping) + (round_up(address, kPage) - address);
    madvise(fresh->begin, fresh->size, MADV_HUGEPAGE);  // a hint: without huge pages all works, slower
    chunk = chunks_.insert(chunks_.end(), std::move(fresh));
  }
  const std::span<std::byte> piece{(*chunk)->begin + (*chunk)->used, bytes};
  (*chunk)->used += wanted;
  return HugeBuffer(*chunk, piece);
}

}  // namespace tandem
