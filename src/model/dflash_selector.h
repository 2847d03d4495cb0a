// What the candidate selector of a DFlash 2 drafter holds: two codebooks of the vocabulary and a projection
// of the block's hidden states. speculate/candidate_selector.h makes scores of their rows.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/ids.h"
#include "format/drafter_config.h"
#include "model/tensor_source.h"

namespace tandem {

class DflashSelector {
 public:
  // max_rows: slots of one call. The backend must outlive the selector. Errors: what the source says; memory.
  static Result<std::unique_ptr<DflashSelector>> load(TensorSource& source, const DrafterConfig& config,
                                                      Backend& backend, int max_rows);
  // Looks for every tensor that load() would take. Errors: as load().
  static Status check(TensorSource& source, const DrafterConfig& config);

  int rank() const { return rank_; }
  int top_k() const { return top_k_; }
  // W_h h of normed hidden rows [n, d_model], n <= max_rows: [n, rank] fp32.
  std::span<const float> project(View hidden);
  // Rows of a codebook, [ids.size(), rank] fp32; at most max_rows (top_k + 1) ids of the vocabulary. All
  // results last until the same function is called again.
  std::span<const float> predecessors(std::span<const TokenId> ids);
  std::span<const float> successors(std::span<const TokenId> ids);

 private:
  // Memory of the backend and, where the host cannot read it, a copy.
  struct Rows {
    DeviceBuffer memory;
    MutView all;
    std::vector<float> copy;
  };

  DflashSelector(const DrafterConfig& config, Backend& backend)
      : backend_(&backend), rank_(config.v2->selector_rank), top_k_(config.v2->selector_top_k) {}
  std::span<const float> on_host(Rows& rows, int n);
  std::span<const float> gather(const Weight& codebook, std::span<const TokenId> ids, Rows& rows);

  Backend* backend_;
  int rank_, top_k_;
  std::unique_ptr<Weight> predecessor_, successor_;  // [V, rank]
  std::unique_ptr<Weight> projection_;               // [rank, d_model]
  Rows hidden_, before_, after_;
};

}  // namespace tandem
