#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/file_fault.h"

namespace tandem {

bool is_absent(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) != 0 && errno == ENOENT;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  const auto failed = [&path](const char* what) {
    return Error{path + ": " + what + ": " + std::strerror(errno)};
  };
  // Without O_NONBLOCK, opening a named pipe waits for a writer that may never come.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const bool dangling = errno == ENOENT && !is_absent(path);
    return dangling ? Error{path + ": a symbolic link to nothing: its target does not exist"}
                    : failed("cannot open");
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const Error error = failed("cannot stat");
    ::close(fd);
    return error;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return Error{path + ": not a regular file"};
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = size_t(info.st_size);
  if (file.size_ > 0) {
    void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      const Error error = failed("cannot map");
      ::close(fd);
      return error;
    }
    file.data_ = static_cast<const std::byte*>(data);
    file.fault_ticket_ = remember_mapping(data, file.size_, path);
  }
  ::close(fd);
  return file;
}

void MappedFile::drop_pages(std::span<const std::byte> part) const {
  if (part.empty()) return;
  TD_CHECK(part.data() >= data_ && part.data() + part.size() <= data_ + size_, "%zu bytes outside %s",
           part.size(), path_.c_str());
  const size_t page = size_t(::sysconf(_SC_PAGESIZE));
  const size_t begin = size_t(part.data() - data_), end = begin + part.size();
  const size_t first = (begin + page - 1) / page * page;
  const size_t last =
      end == size_ ? end : end / page * page;  // the tail of the last page belongs to nobody else
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fault_ticket_(std::exchange(other.fault_ticket_, -1)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fault_ticket_, other.fault_ticket_);
  return *this;
}

MappedFile::~MappedFile() {
  forget_mapping(fault_ticket_);
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace tandem
