// Brings the step of the day to the card (StepTable), and keeps the addresses as long as it fits.
#pragma once

#include <span>

#include "backend/cuda/runtime.h"
#include "backend/cuda/step_table.cuh"

namespace tandem::cuda {

class StepStage {
 public:
  explicit StepStage(Card& card) : card_(&card) {}
  ~StepStage();
  StepStage(const StepStage&) = delete;
  StepStage& operator=(const StepStage&) = delete;

  // Makes room for steps of this size. True if addresses changed: recordings made before are worthless.
  bool reserve(int n_rows, int n_seqs, int n_pages);
  // Enqueues the copy of a step to the card. Errors of size: grows (and then addresses change; see epoch).
  void put(const Step& step, std::span<const int32_t> ids);
  const StepTable& table() const { return table_; }
  // Changes whenever addresses do.
  int epoch() const { return epoch_; }

 private:
  static constexpr int kBuffers = 4;  // copies that may be under way

  size_t bytes() const;
  void release();

  Card* card_;
  int max_rows_ = 0, max_seqs_ = 0, max_pages_ = 0;
  std::byte* device_ = nullptr;
  std::byte* host_[kBuffers] = {};
  int next_ = 0;
  int epoch_ = 0;
  StepTable table_ = {};
};

}  // namespace tandem::cuda
