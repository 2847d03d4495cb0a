// Writes safetensors files, so that a reader sees the whole file under its name or none: bytes go to a
// temporary file beside it, which is synced and renamed at the end. The header is padded to a multiple of 8
// with spaces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/host_tensor.h"

namespace tandem {

struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  // dimensions >= 0

  uint64_t bytes() const;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// For tensors that are made one after another:
//   create(path, specs, metadata);  write(...) until every tensor's bytes are given, in the order of specs;
//   finish().
// Destroyed before finish() succeeded, it removes the temporary file and leaves `path` as it was.
class SafetensorsWriter {
 public:
  // Reserves the disk space, so that a disk that is too small is found at once. Errors name the path and the
  // reason. Names must be unique and valid UTF-8.
  static Result<SafetensorsWriter> create(const std::string& path, std::span<const TensorSpec> specs,
                                          const SafetensorsMetadata& metadata);

  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  // The next bytes of the data; may end inside a tensor. More than the specs hold is a bug of the caller.
  Status write(std::span<const std::byte> bytes);

  // Checks that all bytes came and that nothing else was written into the file, syncs, and gives the file its
  // name.
  Status finish();

 private:
  SafetensorsWriter() = default;
  void discard();

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  uint64_t expected_ = 0;  // data bytes still to come
  uint64_t total_ = 0;     // bytes of the finished file
};

// Writes tensors that are at hand, in the order given.
Status write_safetensors(const std::string& path, std::span<const HostTensor> tensors,
                         const SafetensorsMetadata& metadata);

// Writes a small file whole: temporary file, sync, rename.
Status write_file_atomically(const std::string& path, std::span<const std::byte> bytes);

}  // namespace tandem
