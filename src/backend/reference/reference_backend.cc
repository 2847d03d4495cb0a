// Memory of the reference backend: ordinary host memory.
#include "backend/reference/reference_backend.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "backend/host_memory.h"
#include "backend/reference/reference.h"

namespace tandem {

size_t ReferenceBackend::available_bytes() const { return available_host_bytes(); }

Result<DeviceBuffer> ReferenceBackend::allocate(size_t bytes, const std::string& purpose) {
  constexpr std::align_val_t kAlign{64};
  TD_RETURN_IF_ERROR(check_host_memory(bytes, purpose));
  void* data = ::operator new(std::max<size_t>(bytes, 1), kAlign, std::nothrow);
  if (data == nullptr) return out_of_host_memory(bytes, purpose);
  return DeviceBuffer(static_cast<std::byte*>(data), bytes, nullptr,
                      [](void*, std::byte* p, size_t) { ::operator delete(p, kAlign); });
}

Status ReferenceBackend::reserve(const Reserve&) { return {}; }

void ReferenceBackend::copy_in(std::byte* device, std::span<const std::byte> host) {
  std::memcpy(device, host.data(), host.size());
}

void ReferenceBackend::copy_out(std::span<std::byte> host, const std::byte* device) {
  std::memcpy(host.data(), device, host.size());
}

void ReferenceBackend::zero(std::byte* device, size_t bytes) { std::memset(device, 0, bytes); }

std::unique_ptr<Backend> make_reference_backend(DeltaForm delta) {
  return std::make_unique<ReferenceBackend>(delta);
}

}  // namespace tandem
