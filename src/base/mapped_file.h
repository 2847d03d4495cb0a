// A file mapped read-only for as long as the object lives. Bytes are untrusted and may be misaligned for any
// type.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace tandem {

class MappedFile {
 public:
  // Errors: the path with the system's reason; an empty file maps to an empty span.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Tells the system that the pages that lie wholly inside `part` are not needed now. They stay readable (and
  // are read from the file again). `part` lies inside bytes().
  void drop_pages(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fault_ticket_ = -1;  // of file_fault.h
};

// Whether nothing at all has this name. A file that cannot be read, a folder in its place or a link to
// nothing is not absent: opening it says what is wrong with it.
bool is_absent(const std::string& path);

}  // namespace tandem
