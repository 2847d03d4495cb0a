#include "format/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "format/printable.h"
#include "format/safetensors.h"

namespace tandem {
namespace {

std::string header_text(std::span<const TensorSpec> specs, const SafetensorsMetadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (text.back() != '{') text += ',';
      text += json_string(key) + ":" + json_string(value);
    }
    text += '}';
  }
  uint64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    if (text.size() > 1) text += ',';
    std::string shape;
    for (const int64_t d : spec.shape) shape += fmt::format("{}{}", shape.empty() ? "" : ",", d);
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json_string(spec.name), dtype_name(spec.dtype), shape, offset, offset + spec.bytes());
    offset += spec.bytes();
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

Error io_error(const std::string& path, const char* what) {
  return Error{fmt::format("{}: cannot {}: {}", path, what, std::strerror(errno))};
}

Status write_all(int fd, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path, "write");
    bytes = bytes.subspan(size_t(n));
  }
  return {};
}

Result<int> open_temporary(const std::string& path, const std::string& temporary) {
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return io_error(path, "create the file");
  return fd;
}

// Closes fd in any case.
Status publish(int fd, const std::string& temporary, const std::string& path) {
  if (::fsync(fd) != 0) {
    const Error error = io_error(path, "write");
    ::close(fd);
    return error;
  }
  if (::close(fd) != 0) return io_error(path, "write");
  if (::rename(temporary.c_str(), path.c_str()) != 0) return io_error(path, "rename the finished file");
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int folder_fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd >= 0) {
    ::fsync(folder_fd);  // makes the rename durable; the file itself is already safe
    ::close(folder_fd);
  }
  return {};
}

std::string temporary_name(const std::string& path) { return fmt::format("{}.{}.part", path, ::getpid()); }

}  // namespace

uint64_t TensorSpec::bytes() const {
  uint64_t n = dtype_bytes(dtype);
  for (const int64_t d : shape) n *= uint64_t(d);
  return n;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    std::span<const TensorSpec> specs,
                                                    const SafetensorsMetadata& metadata) {
  const std::string header = header_text(specs, metadata);
  if (header.size() > kMaxSafetensorsHeader) {
    return Error{fmt::format("{}: a header of {} bytes, expected at most {}", path, header.size(),
                             kMaxSafetensorsHeader)};
  }
  SafetensorsWriter writer;
  writer.path_ = path;
  writer.temporary_ = temporary_name(path);
  for (const TensorSpec& spec : specs) writer.expected_ += spec.bytes();
  TD_ASSIGN_OR_RETURN(writer.fd_, open_temporary(path, writer.temporary_));
  const uint64_t total = 8 + header.size() + writer.expected_;
  writer.total_ = total;
  // Some file systems cannot reserve; they report a full disk when it is written.
  if (::fallocate(writer.fd_, 0, 0, off_t(total)) != 0 &&
      (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)) {
    return Error{fmt::format("{}: cannot reserve {} bytes: {}", path, total, std::strerror(errno))};
  }
  std::byte length[8];
  for (size_t i = 0; i < 8; ++i) length[i] = std::byte(uint64_t(header.size()) >> (8 * i));
  TD_RETURN_IF_ERROR(write_all(writer.fd_, path, length));
  TD_RETURN_IF_ERROR(write_all(writer.fd_, path, std::as_bytes(std::span(header))));
  return writer;
}

Status SafetensorsWriter::write(std::span<const std::byte> bytes) {
  TD_CHECK(fd_ >= 0 && bytes.size() <= expected_, "%s: %zu bytes given, %zu expected", path_.c_str(),
           bytes.size(), size_t(expected_));
  TD_RETURN_IF_ERROR(write_all(fd_, path_, bytes));
  expected_ -= bytes.size();
  return {};
}

Status SafetensorsWriter::finish() {
  TD_CHECK(fd_ >= 0 && expected_ == 0, "%s: %zu bytes never came", path_.c_str(), size_t(expected_));
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return io_error(path_, "stat");
  if (uint64_t(info.st_size) != total_ || ::lseek(fd_, 0, SEEK_CUR) != off_t(total_)) {
    return Error{fmt::format(
        "{}: {} bytes were written, the header says {}: something else wrote into the file; run this again",
        path_, info.st_size, total_)};
  }
  TD_RETURN_IF_ERROR(publish(std::exchange(fd_, -1), temporary_, path_));
  temporary_.clear();
  return {};
}

void SafetensorsWriter::discard() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  fd_ = -1;
  temporary_.clear();
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)),
      expected_(other.expected_),
      total_(other.total_) {}

SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  std::swap(expected_, other.expected_);
  std::swap(total_, other.total_);
  return *this;
}

SafetensorsWriter::~SafetensorsWriter() { discard(); }

Status write_safetensors(const std::string& path, std::span<const HostTensor> tensors,
                         const SafetensorsMetadata& metadata) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const HostTensor& t : tensors) {
    specs.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape});
    TD_CHECK(specs.back().bytes() == t.bytes.size(), "tensor '%s' holds %zu bytes", t.name.c_str(),
             t.bytes.size());
  }
  TD_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(path, specs, metadata));
  for (const HostTensor& t : tensors) TD_RETURN_IF_ERROR(writer.write(t.bytes));
  return writer.finish();
}

Status write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  const std::string temporary = temporary_name(path);
  TD_ASSIGN_OR_RETURN(const int fd, open_temporary(path, temporary));
  Status status = write_all(fd, path, bytes);
  if (status.ok()) {
    status = publish(fd, temporary, path);
  } else {
    ::close(fd);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

}  // namespace tandem
