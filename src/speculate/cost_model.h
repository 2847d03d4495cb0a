// What a round costs on this machine, learned from measured times while it runs.
//
// A verify step costs by rows, batch and context; a draft by its width; the rest of a round is one number per
// kind of round. Nothing is assumed of the shape (verification is a staircase: tiles, kernels, experts
// touched): each bucket is measured by itself, and what was never measured is interpolated as a ratio to what
// is known (a nearby context or batch, or a gentle slope, so that an untried width looks cheap enough to be
// tried).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "speculate/draft_cost.h"

namespace tandem {

// One verify step of `batch` sequences: `rows` rows together (a plain step has rows == batch), the longest
// sequence `context` tokens long.
struct StepShape {
  int rows = 1;
  int batch = 1;
  int context = 0;
};

// A time that is disturbed upward only (other processes, interrupts): moves up by the smallest of three
// samples, down by each. All times of a model share a level, the speed of the machine, so that one that has
// not been measured lately moves with those that are.
class MeasuredTime {
 public:
  bool known() const { return n_samples_ > 0; }
  int n_samples() const { return n_samples_; }
  double seconds(double level) const { return double(per_level_) * level; }
  // `shared` of a move (in logarithms) moves the level.
  void add(double seconds, double& level, double shared);

 private:
  float per_level_ = 0;   // seconds / level
  float window_min_ = 0;  // the same, of the samples above it
  int n_window_ = 0, n_samples_ = 0;
};

class CostModel {
 public:
  // row_slope: guessed cost of a further row, as a share of a step of one row, until measured.
  explicit CostModel(DraftCost draft_cost, double row_slope = 0.03);

  // Times that are not positive and finite are ignored.
  void add_verify(const StepShape& shape, double seconds);
  // Per drafting sequence; width 0 is what the drafter costs in a round in which it drafts nothing.
  void add_draft(int width, double seconds);
  // All else in a round, for plain rounds and for those with drafts.
  void add_plain_other(double seconds);
  void add_draft_other(double seconds);

  // False until three plain steps of this batch were measured (in any context): no comparison with plain
  // decoding is possible before.
  bool ready(int batch) const { return n_plain_[size_t(batch_bucket(batch))] >= 3; }
  // Verify steps measured since the last plain one.
  int64_t n_since_plain() const { return n_since_plain_; }
  // The machine's speed seems to have changed since a plain step of this batch and context was measured.
  bool plain_is_old(const StepShape& shape) const;

  // Seconds; all finite and >= 0. out[i] is a step of shape.rows + i rows, up to 32 of them.
  void verify_curve(const StepShape& shape, std::span<double> out) const;
  double verify(const StepShape& shape) const;
  double draft(int width) const;
  // How often just this step was measured (its bucket).
  int n_measured(const StepShape& shape) const { return cell(shape).n_samples(); }
  double plain_other() const { return plain_other_.seconds(1); }
  double draft_other() const { return draft_other_.seconds(1); }

  static constexpr int kMaxWidth = 32;

 private:
  static constexpr int kExactRows = 32;  // beyond, one bucket for 8 rows
  static constexpr int kRowBuckets = kExactRows + 128;
  static constexpr int kBatchBuckets = 6, kContextBuckets = 12;
  using Row = std::span<const MeasuredTime>;

  static int row_bucket(int rows);
  static int rows_of(int bucket);
  static int batch_bucket(int batch);
  static int context_bucket(int context);
  static size_t table(int batch_bucket, int context_bucket);
  const MeasuredTime& cell(const StepShape& shape) const;
  // The table to lean on where this one has gaps: nearest batch, then nearest context; -1 if there is none.
  int donor(int batch_bucket, int context_bucket) const;
  // Gives a context its first times: those of the nearest one, to be corrected by what is measured.
  void enter(size_t table, const StepShape& shape);
  // Scales `curve` (buckets 0 ..) so that it meets every measured time of the table.
  void fit(size_t table, std::span<double> curve) const;

  DraftCost draft_cost_;
  double row_slope_;
  double level_ = 1, draft_level_ = 1;
  int64_t n_since_plain_ = 0;
  std::array<int, kBatchBuckets> n_plain_{};
  std::vector<MeasuredTime> cells_;  // [batch][context][rows]
  std::vector<int> n_measured_;      // [batch][context]
  std::vector<double> plain_level_;  // [batch][context] level at the last plain step; 0: none
  std::array<MeasuredTime, kMaxWidth + 1> draft_;
  MeasuredTime plain_other_, draft_other_;
};

}  // namespace tandem
