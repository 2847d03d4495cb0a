// A checkpoint folder as published: one or many safetensors files seen as one set of named tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "tensor/host_tensor.h"

namespace tandem {

class Checkpoint {
 public:
  // Opens every file and reads every header; no tensor bytes are touched. Which files:
  //   model.safetensors.index.json, where it exists: the shards that it lists, and every tensor that it lists
  //   must be in the shard that it names; else all files model*.safetensors in order of name; in both cases
  //   also any other *.safetensors in the folder, from which only names containing "mtp." are taken (some
  //   conversions keep the multi-token-prediction head apart), and only where the files above lack the name.
  // Errors: no such files, an unreadable or invalid one, a missing shard or tensor, a name in two files.
  static Result<Checkpoint> open(const std::string& folder);

  // Null if absent. Valid while the checkpoint is alive (moving it is fine).
  const HostTensor* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // All tensors, file by file in the order of their bytes: the order to stream them in.
  std::span<const HostTensor> tensors() const { return tensors_; }
  // All names, sorted.
  std::vector<std::string_view> names() const;

  const std::string& folder() const { return folder_; }
  // The file that holds a tensor of this checkpoint, for errors.
  const std::string& path_of(const HostTensor& tensor) const;
  // "folder/model.safetensors: tensor 'x'": how errors about a tensor begin.
  std::string where(const HostTensor& tensor) const;

  uint64_t total_bytes() const { return total_bytes_; }  // of all tensors

  // Tells the system that the pages of a tensor (or of all) are not needed now, so that a load does not hold
  // the file and its repacked copy at once. The bytes stay readable. Safe from several threads.
  void drop_pages(const HostTensor& tensor) const;
  void drop_pages() const;

 private:
  Checkpoint() = default;
  std::string folder_;
  std::vector<MappedFile> files_;
  std::vector<HostTensor> tensors_;
  std::vector<uint32_t> file_of_;                         // per tensor, index into files_
  std::unordered_map<std::string_view, uint32_t> index_;  // keys lie in tensors_
  uint64_t total_bytes_ = 0;
};

}  // namespace tandem
