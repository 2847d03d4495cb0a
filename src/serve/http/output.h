// Bytes that wait for the kernel: small ones joined, large ones kept as they came.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::http {

class Output {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  // A string that small bytes may be appended to; call added() with how many they were.
  std::string& tail();
  void added(size_t n) { size_ += n; }
  void append(std::string_view bytes);
  void append(std::string&& bytes);

  // The first bytes, as many pieces as fit; returns how many pieces.
  size_t pieces(std::span<iovec> out) const;
  void consume(size_t n);
  // Gives memory back; when empty.
  void release();

 private:
  std::vector<std::string> pieces_;  // from first_ on; bytes of the first before offset_ are gone
  size_t first_ = 0, offset_ = 0, size_ = 0;
};

}  // namespace tandem::http
