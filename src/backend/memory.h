// Memory and views at the backend's front door. Device memory is opaque to everything above backend/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tensor/dtype.h"

namespace tandem {

// A two-dimensional strided view: rows of `cols` contiguous elements. Does not own; valid for the call it is
// passed to.
struct View {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int rows = 0, cols = 0;
  int64_t stride = 0;  // elements from one row to the next, >= cols

  bool empty() const { return data == nullptr; }
};

struct MutView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rows = 0, cols = 0;
  int64_t stride = 0;

  operator View() const { return {data, dtype, rows, cols, stride}; }
  bool empty() const { return data == nullptr; }
  // Rows [first, first + n) and columns [first, first + n).
  MutView row_range(int first, int n) const {
    return {static_cast<std::byte*>(data) + int64_t{first} * stride * int64_t(dtype_bytes(dtype)), dtype, n,
            cols, stride};
  }
  MutView col_range(int first, int n) const {
    return {static_cast<std::byte*>(data) + int64_t{first} * int64_t(dtype_bytes(dtype)), dtype, rows, n,
            stride};
  }
};

// Memory of one backend, given back when the object dies. Made by Backend::allocate, which must outlive it.
class DeviceBuffer {
 public:
  using Release = void (*)(void* owner, std::byte* data, size_t bytes);

  DeviceBuffer() = default;
  DeviceBuffer(std::byte* data, size_t bytes, void* owner, Release release)
      : data_(data), bytes_(bytes), owner_(owner), release_(release) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) release_(owner_, data_, bytes_);
  }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // The first rows x cols elements as a contiguous view.
  MutView view(DType dtype, int rows, int cols, size_t offset_bytes = 0) const {
    return {data_ + offset_bytes, dtype, rows, cols, cols};
  }

 private:
  void swap(DeviceBuffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(owner_, other.owner_);
    std::swap(release_, other.release_);
  }

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  void* owner_ = nullptr;
  Release release_ = nullptr;
};

}  // namespace tandem
