// Brings matrices to the card in a stream of large pieces: while one is on its way, threads of the host fill
// the next.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "backend/cuda/runtime.h"
#include "base/thread_team.h"

namespace tandem::cuda {

class Upload {
 public:
  explicit Upload(Card& card);
  ~Upload();
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  static constexpr size_t kMostBytes = size_t{8} << 20;

  // Device memory for at most kMostBytes, free to be read until the calls of then() that follow have run.
  // May flush.
  std::byte* room(size_t bytes);
  // Copies into it; `host` must stay until flush().
  void copy(std::byte* device, const std::byte* host, size_t bytes);
  // To be called when the card has what was copied: enqueues kernels that read it.
  void then(std::function<void()> launch);
  // Enqueues all that was asked for; returns when the host's memory has been read.
  void flush();

 private:
  static constexpr int kSlots = 4;
  struct Slot {
    std::byte* device = nullptr;
    std::byte* host = nullptr;      // page-locked
    std::unique_ptr<Mark> is_free;  // set behind the kernels that read it
  };
  struct Piece {
    std::byte* to;
    const std::byte* from;
    size_t bytes;
  };

  Card* card_;
  ThreadTeam team_;
  std::byte* device_ = nullptr;
  std::byte* host_ = nullptr;
  Slot slots_[kSlots];
  int at_ = 0;       // the slot being filled
  size_t used_ = 0;  // of it
  std::vector<Piece> pieces_;
  std::vector<std::function<void()>> launches_;
};

}  // namespace tandem::cuda
