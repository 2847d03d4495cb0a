#include "backend/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> n_allocations{0};
}

namespace tandem {
int64_t allocations_so_far() { return n_allocations.load(); }
}  // namespace tandem

void* operator new(std::size_t bytes) {
  n_allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = std::malloc(bytes);
  if (p == nullptr) std::abort();
  return p;
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

void* operator new(std::size_t bytes, std::align_val_t align) {
  n_allocations.fetch_add(1, std::memory_order_relaxed);
  const auto unit = std::size_t(align);
  void* p = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (p == nullptr) std::abort();
  return p;
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
