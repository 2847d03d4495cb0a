#include "state/state_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace tandem {
namespace {

// Floats of one layer's slots, in the order they lie in memory.
struct DeltaLayout {
  size_t s, conv, tape_g, tape_k, tape_delta, tape_conv;
  size_t total() const { return s + conv + tape_g + tape_k + tape_delta + tape_conv; }
};

DeltaLayout delta_layout(const DeltaShape& d, const StateLimits& limits) {
  const auto slots = size_t(limits.max_sequences);
  const size_t tape_rows = slots * 2 * size_t(limits.tape_rows);
  const auto up = [](size_t n) { return (n + 15) / 16 * 16; };  // every array starts on a cache line
  return {.s = up(slots * size_t(d.value_dim()) * size_t(d.d_k)),
          .conv = up(slots * (kConvTaps - 1) * size_t(d.conv_dim())),
          .tape_g = up(tape_rows * size_t(d.n_v_heads)),
          .tape_k = up(tape_rows * size_t(d.key_dim())),
          .tape_delta = up(tape_rows * size_t(d.value_dim())),
          .tape_conv = up(tape_rows * size_t(d.conv_dim()))};
}

int page_count(const StateLimits& limits) {
  // Each sequence may leave its last page partly empty.
  return (limits.max_positions + kPageTokens - 1) / kPageTokens + limits.max_sequences + limits.extra_pages;
}

}  // namespace

size_t StatePool::bytes(const Backend& backend, const StateShape& shape, const StateLimits& limits) {
  size_t total = 0;
  if (shape.n_delta_layers > 0) {
    total += size_t(shape.n_delta_layers) * delta_layout(shape.delta, limits).total() * sizeof(float);
  }
  total += size_t(limits.checkpoints) * checkpoint_bytes(shape);
  if (shape.n_attention_layers > 0) {
    total += size_t(shape.n_attention_layers) * size_t(page_count(limits)) *
             backend.kv_page_bytes(shape.attention);
  }
  return total;
}

Result<StatePool> StatePool::create(Backend& backend, const StateShape& shape, const StateLimits& limits) {
  TD_CHECK(limits.tape_rows >= 1 && limits.tape_rows <= kMaxDecodeRows && limits.max_sequences >= 1,
           "tape of %d rows, %d sequences", limits.tape_rows, limits.max_sequences);
  StatePool pool(backend, shape, limits);
  if (shape.n_delta_layers > 0) {
    const size_t bytes =
        size_t(shape.n_delta_layers) * delta_layout(shape.delta, limits).total() * sizeof(float);
    TD_ASSIGN_OR_RETURN(
        pool.recurrent_,
        backend.allocate(bytes, fmt::format("recurrent state of {} sequences", limits.max_sequences)));
  }
  if (const size_t bytes = size_t(limits.checkpoints) * checkpoint_bytes(shape); bytes > 0) {
    TD_ASSIGN_OR_RETURN(
        pool.checkpoints_,
        backend.allocate(bytes, fmt::format("{} checkpoints of recurrent state", limits.checkpoints)));
  }
  if (shape.n_attention_layers > 0) {
    pool.n_pages_ = page_count(limits);
    pool.page_bytes_ = backend.kv_page_bytes(shape.attention);
    const size_t bytes = size_t(shape.n_attention_layers) * size_t(pool.n_pages_) * pool.page_bytes_;
    TD_ASSIGN_OR_RETURN(
        pool.pages_, backend.allocate(bytes, fmt::format("KV cache of {} positions", limits.max_positions)));
  } else {
    pool.n_pages_ = page_count(limits);
  }
  pool.free_pages_.reserve(size_t(pool.n_pages_));
  pool.holders_.resize(size_t(pool.n_pages_));
  for (int i = pool.n_pages_ - 1; i >= 0; --i) pool.free_pages_.push_back(i);
  pool.free_slots_.reserve(size_t(limits.max_sequences));
  for (int i = limits.max_sequences - 1; i >= 0; --i) pool.free_slots_.push_back(i);
  return pool;
}

size_t StatePool::checkpoint_bytes(const StateShape& shape) {
  const DeltaShape& d = shape.delta;
  return size_t(shape.n_delta_layers) * sizeof(float) *
         (size_t(d.value_dim()) * size_t(d.d_k) + (kConvTaps - 1) * size_t(d.conv_dim()));
}

void StatePool::hold(int32_t page) {
  TD_CHECK(holders_[size_t(page)] > 0, "page %d is held by nobody", page);
  ++holders_[size_t(page)];
}

void StatePool::drop(int32_t page) {
  TD_CHECK(holders_[size_t(page)] > 0, "page %d is held by nobody", page);
  if (--holders_[size_t(page)] == 0) free_pages_.push_back(page);
}

int32_t StatePool::take_page() {
  const int32_t page = free_pages_.back();
  free_pages_.pop_back();
  holders_[size_t(page)] = 1;
  return page;
}

void StatePool::save_recurrent(int slot, int checkpoint) { copy_recurrent(slot, checkpoint, true); }
void StatePool::load_recurrent(int checkpoint, int slot) { copy_recurrent(slot, checkpoint, false); }

void StatePool::copy_recurrent(int slot, int checkpoint, bool save) {
  TD_CHECK(checkpoint >= 0 && checkpoint < limits_.checkpoints, "checkpoint %d of %d", checkpoint,
           limits_.checkpoints);
  const DeltaShape& d = shape_.delta;
  float* kept = reinterpret_cast<float*>(checkpoints_.data() + size_t(checkpoint) * checkpoint_bytes(shape_));
  const auto copy = [&](float* live, int rows, int cols) {
    const MutView in_slot{live + size_t(slot) * size_t(rows) * size_t(cols), DType::f32, rows, cols, cols};
    const MutView in_checkpoint{kept, DType::f32, rows, cols, cols};
    save ? backend_->copy_rows(in_slot, {}, in_checkpoint) : backend_->copy_rows(in_checkpoint, {}, in_slot);
    kept += size_t(rows) * size_t(cols);
  };
  for (int layer = 0; layer < shape_.n_delta_layers; ++layer) {
    const DeltaState state = delta(layer);
    copy(state.s, d.value_dim(), d.d_k);
    copy(state.conv, kConvTaps - 1, d.conv_dim());
  }
}

size_t StatePool::recurrent_bytes() const {
  const DeltaShape& d = shape_.delta;
  const size_t conv = (kConvTaps - 1) * size_t(d.conv_dim());
  return size_t(shape_.n_delta_layers) * 2 * sizeof(float) * (size_t(d.value_dim()) * size_t(d.d_k) + conv);
}

size_t StatePool::kv_bytes_per_position() const {
  return size_t(shape_.n_attention_layers) * page_bytes_ / kPageTokens;
}

DeltaState StatePool::delta(int layer) const {
  TD_CHECK(layer >= 0 && layer < shape_.n_delta_layers, "delta layer %d of %d", layer, shape_.n_delta_layers);
  const DeltaLayout l = delta_layout(shape_.delta, limits_);
  float* p = reinterpret_cast<float*>(recurrent_.data()) + size_t(layer) * l.total();
  DeltaState state;
  state.tape_rows = limits_.tape_rows;
  state.s = p;
  state.conv = state.s + l.s;
  state.tape_g = state.conv + l.conv;
  state.tape_k = state.tape_g + l.tape_g;
  state.tape_delta = state.tape_k + l.tape_k;
  state.tape_conv = state.tape_delta + l.tape_delta;
  return state;
}

KvLayer StatePool::kv(int layer) const {
  TD_CHECK(layer >= 0 && layer < shape_.n_attention_layers, "attention layer %d of %d", layer,
           shape_.n_attention_layers);
  return {.pages = pages_.data() + size_t(layer) * size_t(n_pages_) * page_bytes_, .page_bytes = page_bytes_};
}

Result<SequenceState> SequenceState::create(StatePool& pool) {
  if (pool.free_slots_.empty()) {
    return Error{fmt::format("all {} sequence slots are in use", pool.limits_.max_sequences)};
  }
  SequenceState state(pool);
  state.slot_ = pool.free_slots_.back();
  pool.free_slots_.pop_back();
  state.pages_.reserve(size_t(pool.n_pages_));  // so that no step allocates
  return state;
}

SequenceState::SequenceState(SequenceState&& other) noexcept { swap(other); }

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  swap(other);
  return *this;
}

SequenceState::~SequenceState() { release(); }

void SequenceState::swap(SequenceState& other) {
  std::swap(pool_, other.pool_);
  std::swap(slot_, other.slot_);
  std::swap(length_, other.length_);
  std::swap(step_rows_, other.step_rows_);
  std::swap(n_parents_, other.n_parents_);
  std::swap(parents_, other.parents_);
  std::swap(tape_, other.tape_);
  std::swap(n_pending_, other.n_pending_);
  std::swap(pending_, other.pending_);
  std::swap(pages_, other.pages_);
}

void SequenceState::release() {
  if (pool_ == nullptr || slot_ < 0) return;
  pool_->free_slots_.push_back(slot_);
  for (const int32_t page : pages_) pool_->drop(page);
  slot_ = -1;
}

Status SequenceState::reserve_pages(int positions) {
  const auto want = size_t((positions + kPageTokens - 1) / kPageTokens);
  if (pages_.size() >= want) return {};
  const size_t missing = want - pages_.size();
  if (pool_->free_pages_.size() < missing) {
    return Error{
        fmt::format("the KV cache is full: {} positions need {} more pages of {} tokens, {} are free",
                    positions, missing, kPageTokens, pool_->free_pages_.size())};
  }
  for (size_t i = 0; i < missing; ++i) {
    pages_.push_back(pool_->take_page());
  }
  return {};
}

void SequenceState::begin_with(std::span<const int32_t> pages, int checkpoint) {
  TD_CHECK(length_ == 0 && pages_.empty() && step_rows_ == 0, "begin_with() after %d positions", length_);
  for (const int32_t page : pages) {
    pool_->hold(page);
    pages_.push_back(page);
  }
  length_ = int(pages.size()) * kPageTokens;
  if (length_ > 0 && pool_->shape_.n_delta_layers > 0) pool_->load_recurrent(checkpoint, slot_);
}

void SequenceState::share_page(size_t index, int32_t page) {
  TD_CHECK(int(index + 1) * kPageTokens <= length_ && step_rows_ == 0, "page %zu is not full", index);
  pool_->hold(page);
  pool_->drop(std::exchange(pages_[index], page));
}

Status SequenceState::begin_prefill(int n) {
  TD_CHECK(step_rows_ == 0 && n > 0, "begin_prefill(%d) inside a step of %d rows", n, step_rows_);
  TD_RETURN_IF_ERROR(reserve_pages(length_ + n));
  flush();
  step_rows_ = n;
  return {};
}

void SequenceState::end_prefill() {
  TD_CHECK(step_rows_ > 0, "end_prefill without begin_prefill (length %d)", length_);
  length_ += step_rows_;
  step_rows_ = 0;
}

Status SequenceState::begin_verify(int n) {
  TD_CHECK(step_rows_ == 0 && n > 0 && n <= pool_->tape_rows(),
           "begin_verify(%d), tape of %d rows, inside a step of %d", n, pool_->tape_rows(), step_rows_);
  TD_RETURN_IF_ERROR(reserve_pages(length_ + n));
  step_rows_ = n;
  return {};
}

Status SequenceState::begin_verify(std::span<const int8_t> parents) {
  TD_RETURN_IF_ERROR(begin_verify(int(parents.size())));
  std::copy(parents.begin(), parents.end(), parents_.begin());
  n_parents_ = step_rows_;
  return {};
}

void SequenceState::commit(int n_keep) {
  TD_CHECK(n_keep >= 0 && n_keep <= step_rows_, "commit(%d) of %d rows", n_keep, step_rows_);
  std::array<int, kMaxDecodeRows> kept;
  std::iota(kept.begin(), kept.end(), 0);
  commit(std::span<const int>(kept).first(size_t(n_keep)));
}

void SequenceState::commit(std::span<const int> kept) {
  TD_CHECK(step_rows_ > 0 && int(kept.size()) <= step_rows_, "commit of %zu of %d rows", kept.size(),
           step_rows_);
  const SeqStep step = rows(0);
  for (size_t i = 0; i < kept.size(); ++i) {
    const int above = i == 0 ? -1 : kept[i - 1];
    TD_CHECK(kept[i] > above && kept[i] < step_rows_ && step.parent(kept[i]) == above,
             "commit of row %d after row %d, of %d rows: not a path", kept[i], above, step_rows_);
    pending_[i] = uint8_t(kept[i]);
  }
  n_pending_ = int(kept.size());
  if (n_pending_ > 0 && kept.back() >= n_pending_) {  // else all lie where they belong
    for (int layer = 0; layer < pool_->shape_.n_attention_layers; ++layer) {
      pool_->backend_->move_kv(step, pool_->shape_.attention, pool_->kv(layer),
                               std::span(pending_).first(kept.size()));
    }
  }
  // The step has folded the old tape; its own rows are on the other one.
  tape_ = 1 - tape_;
  length_ += n_pending_;
  step_rows_ = n_parents_ = 0;
}

void SequenceState::truncate(int length) {
  TD_CHECK(step_rows_ == 0 && length >= 0 && length <= length_ && pool_->shape_.n_delta_layers == 0,
           "truncate(%d) of %d positions, %d recurrent layers", length, length_,
           pool_->shape_.n_delta_layers);
  length_ = length;
  n_pending_ = 0;
}

void SequenceState::flush() {
  TD_CHECK(step_rows_ == 0, "flush inside a step of %d rows", step_rows_);
  if (n_pending_ == 0) return;
  SeqStep seq = rows(0);
  seq.n_rows = 0;
  const Step step{.path = Path::decode, .n_rows = 0, .seqs = std::span(&seq, 1)};
  for (int layer = 0; layer < pool_->shape_.n_delta_layers; ++layer) {
    pool_->backend_->fold_states(step, pool_->shape_.delta, pool_->delta(layer));
  }
  n_pending_ = 0;
}

SeqStep SequenceState::rows(int first_row) const {
  return {.first_row = first_row,
          .n_rows = step_rows_,
          .start = length_,
          .parents = std::span(parents_).first(size_t(n_parents_)),
          .slot = slot_,
          .tape = tape_,
          .pending = std::span(pending_.data(), size_t(n_pending_)),
          .pages = pages_};
}

}  // namespace tandem
