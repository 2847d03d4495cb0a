#include "serve/http/output.h"

#include <algorithm>

namespace tandem::http {

namespace {
constexpr size_t kJoin = size_t{64} << 10;  // pieces grow to this
constexpr size_t kKeep = size_t{16} << 10;  // capacity worth keeping between two events of a stream
}  // namespace

std::string& Output::tail() {
  if (pieces_.size() == first_ || pieces_.back().size() >= kJoin) pieces_.emplace_back();
  return pieces_.back();
}

void Output::append(std::string_view bytes) {
  tail().append(bytes);
  size_ += bytes.size();
}

void Output::append(std::string&& bytes) {
  if (bytes.size() < kJoin) return append(std::string_view(bytes));
  size_ += bytes.size();
  pieces_.push_back(std::move(bytes));
}

size_t Output::pieces(std::span<iovec> out) const {
  size_t n = 0;
  for (size_t i = first_; i < pieces_.size() && n < out.size(); ++i) {
    const size_t from = i == first_ ? offset_ : 0;
    out[n++] = {const_cast<char*>(pieces_[i].data()) + from, pieces_[i].size() - from};
  }
  return n;
}

void Output::consume(size_t n) {
  size_ -= n;
  while (n > 0) {
    const size_t here = std::min(n, pieces_[first_].size() - offset_);
    offset_ += here;
    n -= here;
    if (offset_ == pieces_[first_].size()) {
      offset_ = 0;
      if (size_ > 0) std::string().swap(pieces_[first_]);
      ++first_;
    }
  }
  if (size_ == 0) {
    std::string keep;
    if (!pieces_.empty() && pieces_.back().capacity() <= kKeep) keep = std::move(pieces_.back());
    keep.clear();
    pieces_.clear();
    if (keep.capacity() > 0) pieces_.push_back(std::move(keep));
    first_ = 0;
    offset_ = 0;
  }
}

void Output::release() { std::vector<std::string>().swap(pieces_); }

}  // namespace tandem::http
