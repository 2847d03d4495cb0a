#include "speculate/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "base/check.h"

namespace tandem {
namespace {

constexpr int kWindow = 3;       // samples whose smallest moves a time up
constexpr double kUp = 0.5;      // how far, in logarithms
constexpr double kDown = 0.25;   // how far one smaller sample moves it down
constexpr double kShared = 0.8;  // the part of a move that all other times follow
constexpr double kLeap = 0.15;   // from here on it is no noise: moves all the way

bool is_time(double seconds) { return seconds > 0 && std::isfinite(seconds); }

}  // namespace

void MeasuredTime::add(double seconds, double& level, double shared) {
  const double now = this->seconds(level);
  if (++n_samples_ <= kWindow) {  // the smallest of the first few
    per_level_ = float((n_samples_ == 1 ? seconds : std::min(now, seconds)) / level);
    return;
  }
  const float sample = float(seconds / level);
  window_min_ = n_window_ == 0 ? sample : std::min(window_min_, sample);
  double gain = kDown;
  if (seconds >= now) {
    if (++n_window_ < kWindow) return;
    gain = kUp;
  }
  n_window_ = 0;
  double move = std::log(std::clamp(double(window_min_ / per_level_), 0.1, 10.0));
  if (std::abs(move) < kLeap) move *= gain;
  level = std::clamp(level * std::exp(shared * move), 1e-3, 1e3);
  per_level_ = float(now * std::exp(move) / level);
}

CostModel::CostModel(DraftCost draft_cost, double row_slope)
    : draft_cost_(draft_cost),
      row_slope_(row_slope),
      cells_(size_t{kBatchBuckets} * kContextBuckets * kRowBuckets),
      n_measured_(size_t{kBatchBuckets} * kContextBuckets),
      plain_level_(size_t{kBatchBuckets} * kContextBuckets) {}

int CostModel::row_bucket(int rows) {
  if (rows <= kExactRows) return std::max(rows, 1) - 1;
  return std::min(kExactRows + (rows - kExactRows - 1) / 8, kRowBuckets - 1);
}

int CostModel::rows_of(int bucket) {
  return bucket < kExactRows ? bucket + 1 : kExactRows + 4 + 8 * (bucket - kExactRows);
}

int CostModel::batch_bucket(int batch) {  // 1, 2, 3-4, 5-8, 9-16, more
  return std::min(int(std::bit_width(unsigned(std::max(batch, 1) - 1))), kBatchBuckets - 1);
}

int CostModel::context_bucket(int context) {  // below 512, 1024, 2048, ...
  return std::min(int(std::bit_width(unsigned(std::max(context, 0)) / 512)), kContextBuckets - 1);
}

size_t CostModel::table(int batch_bucket, int context_bucket) {
  return size_t(batch_bucket) * kContextBuckets + size_t(context_bucket);
}

const MeasuredTime& CostModel::cell(const StepShape& shape) const {
  const size_t t = table(batch_bucket(shape.batch), context_bucket(shape.context));
  return cells_[t * kRowBuckets + size_t(row_bucket(shape.rows))];
}

int CostModel::donor(int batch_bucket, int context_bucket) const {
  int best = -1, best_distance = 0;
  for (int b = 0; b < kBatchBuckets; ++b) {
    for (int c = 0; c < kContextBuckets; ++c) {
      const size_t t = table(b, c);
      if (n_measured_[t] == 0 || (b == batch_bucket && c == context_bucket)) continue;
      const int distance = kContextBuckets * std::abs(b - batch_bucket) + std::abs(c - context_bucket);
      if (best < 0 || distance < best_distance) best = int(t), best_distance = distance;
    }
  }
  return best;
}

void CostModel::enter(size_t t, const StepShape& shape) {
  const int from = donor(batch_bucket(shape.batch), context_bucket(shape.context));
  if (from < 0 || size_t(from) / kContextBuckets != t / kContextBuckets) return;  // none of this batch
  std::copy_n(&cells_[size_t(from) * kRowBuckets], kRowBuckets, &cells_[t * kRowBuckets]);
  n_measured_[t] = n_measured_[size_t(from)];
  plain_level_[t] = plain_level_[size_t(from)];
}

void CostModel::add_verify(const StepShape& shape, double seconds) {
  TD_CHECK(shape.batch > 0 && shape.rows >= shape.batch, "a step of %d rows for %d sequences", shape.rows,
           shape.batch);
  if (!is_time(seconds)) return;
  const size_t t = table(batch_bucket(shape.batch), context_bucket(shape.context));
  MeasuredTime& cell = cells_[t * kRowBuckets + size_t(row_bucket(shape.rows))];
  if (n_measured_[t] == 0) enter(t, shape);
  n_measured_[t] += !cell.known();
  // A plain step says nothing of longer ones: what a draft makes a step cost can change by itself.
  const bool plain = shape.rows == shape.batch;
  cell.add(seconds, level_, plain ? 0 : kShared);
  if (plain) {
    plain_level_[t] = level_;
    ++n_plain_[size_t(batch_bucket(shape.batch))];
    n_since_plain_ = 0;
  } else {
    ++n_since_plain_;
  }
}

void CostModel::add_draft(int width, double seconds) {
  TD_CHECK(width >= 0 && width <= kMaxWidth, "a draft of %d tokens, at most %d", width, kMaxWidth);
  if (is_time(seconds)) draft_[size_t(width)].add(seconds, draft_level_, kShared);
}

void CostModel::add_plain_other(double seconds) {
  double level = 1;
  if (is_time(seconds)) plain_other_.add(seconds, level, 0);
}

void CostModel::add_draft_other(double seconds) {
  double level = 1;
  if (is_time(seconds)) draft_other_.add(seconds, level, 0);
}

void CostModel::fit(size_t table, std::span<double> curve) const {
  const Row cells = Row(cells_).subspan(table * kRowBuckets, curve.size());
  double left_ratio = 0;
  int left = -1;
  for (int i = 0; i < int(curve.size()); ++i) {
    if (!cells[size_t(i)].known()) continue;
    const double here = cells[size_t(i)].seconds(level_);
    const double ratio = here / curve[size_t(i)];
    const double from = left < 0 ? ratio : left_ratio;
    const double step = (ratio - from) / (rows_of(i) - (left < 0 ? 0 : rows_of(left)));
    for (int j = left + 1; j < i; ++j) {
      curve[size_t(j)] *= from + step * (rows_of(j) - (left < 0 ? 0 : rows_of(left)));
    }
    curve[size_t(i)] = here;
    left = i;
    left_ratio = ratio;
  }
  if (left < 0) return;
  for (int j = left + 1; j < int(curve.size()); ++j) curve[size_t(j)] *= left_ratio;
}

bool CostModel::plain_is_old(const StepShape& shape) const {
  const double then = plain_level_[table(batch_bucket(shape.batch), context_bucket(shape.context))];
  return then > 0 && std::abs(std::log(level_ / then)) > kLeap;
}

void CostModel::verify_curve(const StepShape& shape, std::span<double> out) const {
  TD_CHECK(shape.rows > 0 && out.size() <= kMaxWidth, "a curve of %zu steps from %d rows", out.size(),
           shape.rows);
  if (out.empty()) return;
  std::array<double, kRowBuckets> buffer;
  const int last = row_bucket(shape.rows + int(out.size()) - 1);
  const std::span<double> curve(buffer.data(), size_t(std::max(last + 1, kExactRows)));
  for (size_t i = 0; i < curve.size(); ++i) curve[i] = 1 + row_slope_ * (rows_of(int(i)) - 1);
  const int b = batch_bucket(shape.batch), c = context_bucket(shape.context);
  const size_t own = table(b, c);
  // A donor helps where the own table has gaps; next to many measured times it only costs time.
  if (n_measured_[own] < 8) {
    if (const int other = donor(b, c); other >= 0) fit(size_t(other), curve);
  }
  fit(own, curve);
  // Fewer rows never need to cost more than more rows: where they seem to, their few samples were disturbed.
  for (size_t i = curve.size() - 1; i-- > 0;) curve[i] = std::min(curve[i], curve[i + 1]);
  for (size_t i = 0; i < out.size(); ++i) out[i] = curve[size_t(row_bucket(shape.rows + int(i)))];
}

double CostModel::verify(const StepShape& shape) const {
  double seconds = 0;
  verify_curve(shape, {&seconds, 1});
  return seconds;
}

double CostModel::draft(int width) const {
  if (width <= 0) return draft_[0].seconds(draft_level_);
  width = std::min(width, kMaxWidth);
  if (draft_[size_t(width)].known()) return draft_[size_t(width)].seconds(draft_level_);
  const auto growth = [&](int w) { return draft_cost_ == DraftCost::chain ? double(w) : 1.0; };
  int left = width, right = width;
  while (left > 0 && !draft_[size_t(left)].known()) --left;
  while (right <= kMaxWidth && !draft_[size_t(right)].known()) ++right;
  const auto ratio = [&](int w) { return draft_[size_t(w)].seconds(draft_level_) / growth(w); };
  if (left == 0 && right > kMaxWidth) return 0;  // nothing known: cheap enough to be tried
  if (left == 0) return ratio(right) * growth(width);
  if (right > kMaxWidth) return ratio(left) * growth(width);
  const double at = double(width - left) / (right - left);
  return ((1 - at) * ratio(left) + at * ratio(right)) * growth(width);
}

}  // namespace tandem
