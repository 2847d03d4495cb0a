// Brings the steps of the day to the card (StepTable). Steps of as many rows and sequences, with tokens or
// without, lie at the same addresses every day, as long as they fit.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/runtime.h"
#include "backend/cuda/step_table.cuh"

namespace tandem::cuda {

class StepStage {
 public:
  explicit StepStage(Card& card) : card_(&card) {}
  ~StepStage();
  StepStage(const StepStage&) = delete;
  StepStage& operator=(const StepStage&) = delete;

  // Makes room for steps of this size, all of a run together.
  void reserve(int n_rows, int n_seqs, int n_pages);
  // Enqueues the copy of the steps of a run to the card, with the tokens of the first. Grows where they do
  // not fit (and then addresses change; see epoch).
  void put(std::span<const Step> steps, std::span<const int32_t> ids);
  const StepTable& table(size_t step) const { return tables_[step]; }
  // Changes whenever addresses do.
  int epoch() const { return epoch_; }

 private:
  static constexpr int kBuffers = 16;  // copies that may be under way

  size_t bytes() const;
  void release();

  Card* card_;
  int max_rows_ = 0, max_seqs_ = 0, max_pages_ = 0;
  std::byte* device_ = nullptr;
  std::byte* host_[kBuffers] = {};
  int next_ = 0;
  int epoch_ = 0;
  std::vector<StepTable> tables_;  // of the steps put last
};

}  // namespace tandem::cuda
