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

void StepStage::reserve(int n_rows, int n_seqs, int n_pages) {
  if (n_rows <= max_rows_ && n_seqs <= max_seqs_ && n_pages <= max_pages_) return;
  release();
  max_rows_ = std::max(max_rows_, n_rows);
  max_seqs_ = std::max(max_seqs_, n_seqs);
  max_pages_ = std::max(max_pages_, n_pages);
  device_ = card_->allocate(bytes());
  TD_CHECK(device_ != nullptr, "no device memory for the table of a step (%zu bytes)", bytes());
  for (std::byte*& host : host_) host = card_->allocate_host(bytes());
  ++epoch_;
}

// Sequences of all steps, then the rows of all, the tokens, the pages. A run's later steps have the pages of
// its first, where they are the same list.
void StepStage::put(std::span<const Step> steps, std::span<const int32_t> ids) {
  const auto shares_pages = [&](const Step& step, size_t i) {
    const std::span<const int32_t> first =
        i < steps[0].seqs.size() ? steps[0].seqs[i].pages : step.seqs[i].pages;
    return &step != &steps[0] && first.data() == step.seqs[i].pages.data() &&
           first.size() == step.seqs[i].pages.size();
  };
  int n_rows = 0, n_seqs = 0, n_pages = 0;
  for (const Step& step : steps) {
    n_rows += step.n_rows;
    n_seqs += int(step.seqs.size());
    for (size_t i = 0; i < step.seqs.size(); ++i) {
      if (!shares_pages(step, i)) n_pages += int(step.seqs[i].pages.size());
    }
  }
  // Twice what is asked for: a sequence grows by a page now and then.
  reserve(n_rows, n_seqs, n_pages > max_pages_ ? 2 * n_pages : max_pages_);
  if (next_ == 0) card_->wait();  // the copies made from these buffers last time are done
  std::byte* host = host_[next_];
  next_ = (next_ + 1) % kBuffers;

  const size_t at_rows = aligned(size_t(n_seqs) * sizeof(SeqEntry));
  const size_t at_ids = at_rows + aligned(size_t(n_rows) * sizeof(int32_t));
  const size_t at_pages = at_ids + aligned(ids.size_bytes());
  auto* entries = reinterpret_cast<SeqEntry*>(host);
  auto* row_seq = reinterpret_cast<int32_t*>(host + at_rows);
  auto* pages = reinterpret_cast<int32_t*>(host + at_pages);
  tables_.clear();
  int entry = 0, row = 0, page = 0;
  for (const Step& step : steps) {
    tables_.push_back({reinterpret_cast<const SeqEntry*>(device_) + entry,
                       reinterpret_cast<const int32_t*>(device_ + at_rows) + row,
                       reinterpret_cast<const int32_t*>(device_ + at_pages),
                       reinterpret_cast<const int32_t*>(device_ + at_ids)});
    for (size_t i = 0; i < step.seqs.size(); ++i) {
      const SeqStep& seq = step.seqs[i];
      std::fill_n(row_seq + row + seq.first_row, seq.n_rows, int32_t(i));
      const bool shared = shares_pages(step, i);
      entries[entry++] = entry_of(seq, shared ? entries[i].first_page : page);
      if (shared) continue;
      std::copy(seq.pages.begin(), seq.pages.end(), pages + page);
      page += int(seq.pages.size());
    }
    row += step.n_rows;
  }
  std::copy(ids.begin(), ids.end(), reinterpret_cast<int32_t*>(host + at_ids));
  card_->copy_in(device_, host, at_pages + size_t(page) * sizeof(int32_t));
}

}  // namespace tandem::cuda
