// safetensors: a named set of tensors in one file.
//
//   bytes 0..7        u64 little endian: N, the length of the header
//   bytes 8..8+N      JSON object: name -> {"dtype", "shape", "data_offsets": [begin, end)}, offsets from
//   byte 8+N;
//                     "__metadata__" -> {string: string}; may end in spaces
//   the rest          the tensors' bytes, little endian, row-major
//
// Writers from Python pad the header to a multiple of 8, MLX does not: tensors may be misaligned for their
// type. Source: the format description in the safetensors repository.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "tensor/host_tensor.h"

namespace tandem {

constexpr size_t kMaxSafetensorsHeader = 100'000'000;
constexpr size_t kMaxTensorRank = 8;

struct SafetensorsContent {
  std::vector<HostTensor> tensors;              // in file order; their bytes lie in what was parsed
  std::map<std::string, std::string> metadata;  // of __metadata__, e.g. format = pt | mlx
};

// Parses the bytes of a whole file; `path` names it in errors. Checked: N against the file and
// kMaxSafetensorsHeader, the header's JSON, each dtype, each shape (non-negative, no overflow, at most
// kMaxTensorRank dimensions), offsets inside the file, end - begin equal to the size that dtype and shape
// need, no name twice, no two tensors overlapping. Unused bytes between or after tensors are allowed. Errors
// name the file, the tensor, the expected and the found.
Result<SafetensorsContent> parse_safetensors(std::span<const std::byte> bytes, const std::string& path);

// A mapped file and its tensors. Tensors borrow the mapping: they live as long as this object.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  std::span<const HostTensor> tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }
  const HostTensor* find(std::string_view name) const;  // null if absent; a linear search
  const MappedFile& mapping() const { return file_; }

 private:
  SafetensorsFile(MappedFile file, SafetensorsContent content)
      : file_(std::move(file)), content_(std::move(content)) {}
  MappedFile file_;
  SafetensorsContent content_;
};

}  // namespace tandem
