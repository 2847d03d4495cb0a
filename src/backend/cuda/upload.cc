#include "backend/cuda/upload.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kPieceBytes = size_t{256} << 10;  // that a thread copies at a time
// A few copy as fast as memory gives; more also read a cold file faster, page by page.
constexpr int kMostThreads = 8;

int n_threads() { return std::clamp(int(std::thread::hardware_concurrency()), 1, kMostThreads); }

}  // namespace

Upload::Upload(Card& card) : card_(&card), team_(n_threads()) {
  device_ = card.allocate(kSlots * kMostBytes);
  TD_CHECK(device_ != nullptr, "no device memory for %zu bytes of weights under way", kSlots * kMostBytes);
  host_ = card.allocate_host(kSlots * kMostBytes);
  for (int i = 0; i < kSlots; ++i) {
    slots_[i] = {device_ + size_t(i) * kMostBytes, host_ + size_t(i) * kMostBytes, card.make_mark()};
  }
}

Upload::~Upload() {
  card_->wait();
  card_->release(device_);
  card_->release_host(host_);
}

std::byte* Upload::room(size_t bytes) {
  TD_CHECK(bytes <= kMostBytes, "%zu bytes in a piece of %zu", bytes, kMostBytes);
  if (used_ + bytes > kMostBytes) flush();
  std::byte* at = slots_[at_].device + used_;
  used_ = std::min(kMostBytes, (used_ + bytes + kAlignment - 1) / kAlignment * kAlignment);
  return at;
}

void Upload::copy(std::byte* device, const std::byte* host, size_t bytes) {
  std::byte* to = slots_[at_].host + (device - slots_[at_].device);
  for (size_t done = 0; done < bytes; done += kPieceBytes) {
    pieces_.push_back({to + done, host + done, std::min(kPieceBytes, bytes - done)});
  }
}

void Upload::then(std::function<void()> launch) { launches_.push_back(std::move(launch)); }

void Upload::flush() {
  if (used_ == 0) return;
  Slot& slot = slots_[at_];
  card_->wait_for(*slot.is_free);
  team_.parallel_for(int64_t(pieces_.size()), 1, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      const Piece& p = pieces_[size_t(i)];
      std::memcpy(p.to, p.from, p.bytes);
    }
  });
  card_->send(slot.device, slot.host, used_);
  for (const auto& launch : launches_) launch();
  card_->set(*slot.is_free);
  pieces_.clear();
  launches_.clear();
  used_ = 0;
  at_ = (at_ + 1) % kSlots;
}

}  // namespace tandem::cuda
