#include "backend/cuda/step_stage.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tandem::cuda {
namespace {

constexpr size_t kAlign = 16;
constexpr size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

SeqEntry entry_of(const SeqStep& seq, int first_page) {
  SeqEntry e{};
  e.first_row = seq.first_row;
  e.n_rows = seq.n_rows;
  e.start = seq.start;
  e.slot = seq.slot;
  e.tape = seq.tape;
  e.n_pending = int32_t(seq.pending.size());
  e.first_page = first_page;
  e.is_tree = seq.parents.empty() ? 0 : 1;
  std::copy(seq.pending.begin(), seq.pending.end(), e.pending);
  std::copy(seq.parents.begin(), seq.parents.end(), e.parents);
  for (int t = 0; e.is_tree && t < seq.n_rows; ++t) {
    e.depth[t] = uint8_t(t == 0 ? 0 : e.depth[seq.parents[size_t(t)]] + 1);
  }
  return e;
}

}  // namespace

StepStage::~StepStage() { release(); }

void StepStage::release() {
  if (device_ == nullptr) return;
  card_->release(device_);
  for (std::byte* host : host_) card_->release_host(host);
}

size_t StepStage::bytes() const {
  return aligned(size_t(max_seqs_) * sizeof(SeqEntry)) + aligned(size_t(max_rows_) * sizeof(int32_t)) * 2 +
         aligned(size_t(max_pages_) * sizeof(int32_t));
}

bool StepStage::reserve(int n_rows, int n_seqs, int n_pages) {
  if (n_rows <= max_rows_ && n_seqs <= max_seqs_ && n_pages <= max_pages_) return false;
  release();
  max_rows_ = std::max(max_rows_, n_rows);
  max_seqs_ = std::max(max_seqs_, n_seqs);
  max_pages_ = std::max(max_pages_, n_pages);
  device_ = card_->allocate(bytes());
  TD_CHECK(device_ != nullptr, "no device memory for the table of a step (%zu bytes)", bytes());
  for (std::byte*& host : host_) host = card_->allocate_host(bytes());
  ++epoch_;
  return true;
}

void StepStage::put(const Step& step, std::span<const int32_t> ids) {
  int n_pages = 0;
  for (const SeqStep& seq : step.seqs) n_pages += int(seq.pages.size());
  // Twice what is asked for: a sequence grows by a page now and then.
  const int n_seqs = int(step.seqs.size());
  if (step.n_rows > max_rows_ || n_seqs > max_seqs_ || n_pages > max_pages_) {
    reserve(std::max(step.n_rows, max_rows_), std::max(n_seqs, max_seqs_),
            n_pages > max_pages_ ? 2 * n_pages : max_pages_);
  }
  if (next_ == 0) card_->wait();  // the copies made from these buffers last time are done
  std::byte* host = host_[next_];
  next_ = (next_ + 1) % kBuffers;

  const size_t at_rows = aligned(size_t(max_seqs_) * sizeof(SeqEntry));
  const size_t at_ids = at_rows + aligned(size_t(max_rows_) * sizeof(int32_t));
  const size_t at_pages = at_ids + aligned(size_t(max_rows_) * sizeof(int32_t));
  auto* seqs = reinterpret_cast<SeqEntry*>(host);
  auto* row_seq = reinterpret_cast<int32_t*>(host + at_rows);
  auto* pages = reinterpret_cast<int32_t*>(host + at_pages);
  int page = 0;
  for (int i = 0; i < n_seqs; ++i) {
    const SeqStep& seq = step.seqs[size_t(i)];
    seqs[i] = entry_of(seq, page);
    std::fill_n(row_seq + seq.first_row, seq.n_rows, i);
    std::copy(seq.pages.begin(), seq.pages.end(), pages + page);
    page += int(seq.pages.size());
  }
  std::copy(ids.begin(), ids.end(), reinterpret_cast<int32_t*>(host + at_ids));
  card_->copy_in(device_, host, at_pages + size_t(page) * sizeof(int32_t));
  table_ = {reinterpret_cast<const SeqEntry*>(device_), reinterpret_cast<const int32_t*>(device_ + at_rows),
            reinterpret_cast<const int32_t*>(device_ + at_pages),
            reinterpret_cast<const int32_t*>(device_ + at_ids)};
}

}  // namespace tandem::cuda
