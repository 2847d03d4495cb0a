#include "speculate/dflash_drafter.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "speculate/draft_tree.h"

namespace tandem {
namespace {

constexpr size_t kTreeCandidates = 16;  // per slot: a tree has 31 nodes at most

}  // namespace

Result<std::unique_ptr<DflashDrafter>> DflashDrafter::create(std::unique_ptr<DflashNetwork> network,
                                                             Decoder& target, const DraftLimits& limits) {
  TD_RETURN_IF_ERROR(target.tap_layers(network->config().target_layers));
  const int block = network->config().block_size;
  TD_ASSIGN_OR_RETURN(StatePool pool,
                      StatePool::create(target.backend(), network->state_shape(),
                                        {.max_sequences = limits.max_sequences,
                                         .max_positions = limits.max_positions + limits.max_sequences * block,
                                         .tape_rows = kMaxDecodeRows}));
  std::unique_ptr<DflashDrafter> drafter(
      new DflashDrafter(std::move(network), target, std::move(pool), limits));
  const int rows = std::max(target.limits().max_rows, kMaxWaiting), cols = target.features_all_cols();
  const int n_waiting = limits.max_sequences * kMaxWaiting;
  const size_t row_bytes = size_t(cols) * sizeof(float);
  TD_ASSIGN_OR_RETURN(
      drafter->features_memory_,
      target.backend().allocate(size_t(n_waiting + rows) * row_bytes, "states for the drafter"));
  drafter->waiting_ = drafter->features_memory_.view(DType::f32, n_waiting, cols);
  drafter->gathered_ = drafter->features_memory_.view(DType::f32, rows, cols, size_t(n_waiting) * row_bytes);
  drafter->reserve(limits.max_sequences);
  return drafter;
}

DflashDrafter::DflashDrafter(std::unique_ptr<DflashNetwork> network, Decoder& target, StatePool pool,
                             const DraftLimits& limits)
    : network_(std::move(network)),
      target_(&target),
      pool_(std::move(pool)),
      choice_(target.shape().n_vocab, limits.max_sequences),
      sequences_(size_t(limits.max_sequences)) {}

// So that no round allocates.
void DflashDrafter::reserve(int n_sequences) {
  const auto n = size_t(n_sequences),
             rows = std::max(size_t(gathered_.rows), n * size_t(network_->config().block_size));
  rows_.reserve(rows);
  ids_.reserve(rows);
  owners_.reserve(rows);
  seqs_.reserve(n);
  slots_.reserve(n);
  drafting_.reserve(n);
}

int DflashDrafter::max_draft() const { return std::min(kMaxDraft, network_->config().n_drafts()); }

Status DflashDrafter::begin(int slot, const DraftedSequence& sequence) {
  TD_ASSIGN_OR_RETURN(SequenceState state, SequenceState::create(pool_));
  sequences_[size_t(slot)].state = std::move(state);
  sequences_[size_t(slot)].base = sequence.start;
  sequences_[size_t(slot)].n_waiting = 0;
  choice_.begin(slot, sequence);
  return {};
}

void DflashDrafter::observe(std::span<const Observation> steps) {
  Backend& backend = target_->backend();
  for (const Observation& o : steps) {
    Sequence& s = sequences_[size_t(o.slot)];
    TD_CHECK(s.base + s.state->length() + s.n_waiting == o.start,
             "slot %d: positions from %d on, the drafter has %d + %d", o.slot, o.start,
             s.base + s.state->length(), s.n_waiting);
    const int n = int(o.rows.size());
    if (n == 0) continue;
    if (s.n_waiting + n > kMaxWaiting) feed(std::span(&o.slot, 1));
    if (n <= kMaxWaiting) {
      backend.copy_rows(target_->features(), o.rows, waiting(o.slot, s.n_waiting, n));
      s.n_waiting += n;
    } else {  // a prompt
      backend.copy_rows(target_->features(), o.rows, gathered_.row_range(0, n));
      feed_rows(o.slot, gathered_.row_range(0, n));
    }
  }
}

void DflashDrafter::feed_rows(int slot, View features) {
  SequenceState& state = *sequences_[size_t(slot)].state;
  const Status room = state.begin_prefill(features.rows);
  TD_CHECK(room.ok(), "%s", room.error().message.c_str());  // sized for the target's positions
  const SeqStep seq = state.rows(0);
  network_->ingest({.path = Path::prefill, .n_rows = features.rows, .seqs = {&seq, 1}}, features, pool_);
  state.end_prefill();
}

// Feeds what waits in these slots, as many of them in a pass as there are rows for.
void DflashDrafter::feed(std::span<const int> slots) {
  for (size_t first = 0, end = 0; first < slots.size(); first = end) {
    rows_.clear();
    seqs_.clear();
    for (end = first; end < slots.size(); ++end) {
      Sequence& s = sequences_[size_t(slots[end])];
      if (int(rows_.size()) + s.n_waiting > gathered_.rows) break;
      if (s.n_waiting == 0) continue;
      const Status room = s.state->begin_prefill(s.n_waiting);
      TD_CHECK(room.ok(), "%s", room.error().message.c_str());  // sized for the target's positions
      seqs_.push_back(s.state->rows(int(rows_.size())));
      for (int i = 0; i < s.n_waiting; ++i) rows_.push_back(slots[end] * kMaxWaiting + i);
    }
    if (rows_.empty()) continue;
    const int n = int(rows_.size());
    target_->backend().copy_rows(waiting_, rows_, gathered_.row_range(0, n));
    network_->ingest({.path = Path::prefill, .n_rows = n, .seqs = seqs_}, gathered_.row_range(0, n), pool_);
    for (size_t i = first; i < end; ++i) {
      Sequence& s = sequences_[size_t(slots[i])];
      if (s.n_waiting > 0) s.state->end_prefill();
      s.n_waiting = 0;
    }
  }
}

void DflashDrafter::propose(std::span<const DraftRequest> requests) {
  const auto most = size_t(std::max(1, network_->max_rows() / network_->config().block_size));
  for (size_t i = 0; i < requests.size(); i += most) {
    draft_blocks(requests.subspan(i, std::min(most, requests.size() - i)));
  }
}

void DflashDrafter::draft_blocks(std::span<const DraftRequest> requests) {
  const DrafterConfig& config = network_->config();
  slots_.clear();
  for (const DraftRequest& r : requests) slots_.push_back(r.slot);
  feed(slots_);
  seqs_.clear();
  ids_.clear();
  drafting_.clear();
  for (const DraftRequest& r : requests) {
    const int base = sequences_[size_t(r.slot)].base;
    SequenceState& state = *sequences_[size_t(r.slot)].state;
    TD_CHECK(base + state.length() + 1 == int(r.text.size()), "slot %d: %zu tokens, %d observed", r.slot,
             r.text.size(), base + state.length());
    // Beyond the positions it was made for the drafter has nothing to say.
    if (state.length() + config.block_size > network_->max_positions()) continue;
    if (!state.begin_verify(config.block_size).ok()) continue;
    seqs_.push_back(state.rows(int(ids_.size())));
    ids_.push_back(r.text.back());
    ids_.insert(ids_.end(), size_t(config.block_size - 1), config.mask_id);
    drafting_.push_back(&r);
  }
  if (drafting_.empty()) return;
  network_->forward_block({.n_rows = int(ids_.size()), .seqs = seqs_}, ids_, pool_);
  const int first_slot = config.sample_from_anchor ? 0 : 1;
  rows_.clear();
  owners_.clear();
  for (size_t i = 0; i < drafting_.size(); ++i) {
    const DraftRequest& r = *drafting_[i];
    sequences_[size_t(r.slot)].state->commit(0);  // a block's keys are not context
    for (int j = 0; j < std::min(r.max, max_draft()); ++j) {
      rows_.push_back(int32_t(i) * config.block_size + first_slot + j);
      owners_.push_back(&r);
    }
  }
  const auto most = size_t(network_->max_logit_rows());
  const RowChoice choice = wanted_choice();
  for (size_t first = 0; first < rows_.size(); first += most) {
    const size_t n = std::min(most, rows_.size() - first);
    network_->head(std::span(rows_).subspan(first, n), choice);
    if (network_->selector() == nullptr) {
      choose_each(first, n);
    } else {
      choose_by_selector(first, n);
      collect_by_selector(first, n);
    }
  }
}

RowChoice DflashDrafter::wanted_choice() const {
  RowChoice choice{.what = network_->selector() != nullptr ? Choose::best : Choose::greedy,
                   .n_tokens = int(choice_.n_choices(drafting_[0]->slot))};
  if (network_->selector() != nullptr && network_->selector()->top_k() > Backend::kMostBest) return {};
  for (const DraftRequest* r : drafting_) {
    const bool greedy = choice_.sampling(r->slot).temperature == 0 && r->tree_nodes == 0 &&
                        !network_->config().changes_logits();
    if (choice.what == Choose::greedy && !greedy) return {};
    if (int(choice_.n_choices(r->slot)) != choice.n_tokens) return {};
  }
  return choice;
}

void DflashDrafter::find_best(size_t i, int slot, size_t k) {
  const BestLogits best = network_->row_best(i);
  if (best.ids.size() < k) return choice_.candidates(slot, network_->row_logits(i), k, best_);
  best_.clear();
  for (size_t j = 0; j < k; ++j) best_.push_back({best.values[j], best.ids[j]});
  std::sort(best_.begin(), best_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

int DflashDrafter::slot_of(size_t i) const {
  const DrafterConfig& config = network_->config();
  return rows_[i] % config.block_size - (config.sample_from_anchor ? 0 : 1);
}

bool DflashDrafter::ends_block(size_t i) const {
  return i + 1 == owners_.size() || owners_[i + 1] != owners_[i];
}

void DflashDrafter::choose_each(size_t first, size_t n) {
  const DrafterConfig& config = network_->config();
  for (size_t i = 0; i < n; ++i) {
    const DraftRequest& r = *owners_[first + i];
    const int slot = slot_of(first + i);
    if (r.tree_nodes > 0) {
      collect_candidates(network_->row_logits(i));
      if (ends_block(first + i)) finish_tree(r);
    } else if (r.draft->n == slot) {
      // (Else an earlier token of this draft could not be chosen.)
      if (const TokenId token = network_->row_choice(i); token >= 0) {
        r.draft->push(token);
        continue;
      }
      const std::span<float> row = network_->row_logits(i);
      if (config.changes_logits()) {
        for (float& x : row) x = config.output(x);
      }
      choice_.append(r.slot, row, uint32_t(r.text.size()) + uint32_t(slot), *r.draft);
    }
  }
}

void DflashDrafter::choose_by_selector(size_t first, size_t n) {
  DflashSelector& selector = *network_->selector();
  const size_t rank = size_t(selector.rank());
  walks_.clear();
  candidates_.clear();
  unary_.clear();
  for (size_t i = 0; i < n; ++i) {
    const DraftRequest& r = *owners_[first + i];
    if (r.tree_nodes > 0) continue;
    const size_t k = std::min(size_t(selector.top_k()), choice_.n_choices(r.slot));
    const int slot = slot_of(first + i);
    const bool continues = i > 0 && owners_[first + i - 1] == &r && !walks_.empty() &&
                           walks_.back().row + size_t(walks_.back().n_slots) == i;
    if (!continues && r.draft->n != slot) continue;  // an earlier token could not be chosen
    find_best(i, r.slot, k);
    if (best_.size() < k) continue;
    if (!continues) walks_.push_back({.row = i, .candidates = candidates_.size(), .n_slots = 0, .k = int(k)});
    ++walks_.back().n_slots;
    for (const Candidate& c : best_) {
      candidates_.push_back(c.id);
      unary_.push_back(network_->config().output(c.score));
    }
  }
  if (walks_.empty()) return;
  predecessors_ = candidates_;
  for (const Walk& w : walks_) {  // the tokens before the first slots
    const DraftRequest& r = *owners_[first + w.row];
    predecessors_.push_back(r.draft->n > 0 ? r.draft->tokens[size_t(r.draft->n - 1)] : r.text.back());
  }
  const std::span<const float> hidden = selector.project(network_->hidden());
  const std::span<const float> before = selector.predecessors(predecessors_);
  const std::span<const float> after = selector.successors(candidates_);
  for (size_t i = 0; i < walks_.size(); ++i) {
    const Walk& w = walks_[i];
    const DraftRequest& r = *owners_[first + w.row];
    const auto k = size_t(w.k), count = size_t(w.n_slots) * k;
    const std::span<const TokenId> ids = std::span(candidates_).subspan(w.candidates, count);
    const int walked = walk_.run({.n_slots = w.n_slots,
                                  .n_candidates = w.k,
                                  .rank = selector.rank(),
                                  .ids = ids,
                                  .unary = std::span(unary_).subspan(w.candidates, count),
                                  .hidden = hidden.subspan(w.row * rank, size_t(w.n_slots) * rank),
                                  .first = before.subspan((candidates_.size() + i) * rank, rank),
                                  .predecessors = before.subspan(w.candidates * rank, count * rank),
                                  .successors = after.subspan(w.candidates * rank, count * rank)},
                                 choice_.sampling(r.slot), uint32_t(r.text.size()) + uint32_t(r.draft->n));
    for (int j = 0; j < walked; ++j) {
      const std::span<const TokenId> of_slot = ids.subspan(size_t(j) * k, k);
      choice_.append(r.slot, of_slot[size_t(walk_.choice(j))], of_slot, walk_.probabilities(j), *r.draft);
    }
  }
}

// The best tokens of one slot; their probabilities among themselves are as good as any for choosing branches.
void DflashDrafter::collect_candidates(std::span<const float> logits) {
  TopSelection best(selection_, kTreeCandidates);
  for (size_t id = 0; id < logits.size(); ++id) best.offer(logits[id], TokenId(id));
  best.finish();
  for (Candidate& c : selection_) c.score = network_->config().output(c.score);
  std::sort(selection_.begin(), selection_.end(), better);
  tree_top_k_ = int(kTreeCandidates);
  tree_lists_ = 1;
  push_list(selection_.size(), kTreeCandidates);
}

// selection_, sorted, as log-probabilities among themselves, filled up to top_k with nothing.
void DflashDrafter::push_list(size_t n, size_t top_k) {
  double total = 0;
  for (size_t i = 0; i < n; ++i) total += std::exp(double(selection_[i].score - selection_[0].score));
  for (size_t i = 0; i < top_k; ++i) {
    candidate_ids_.push_back(i < n ? selection_[i].id : 0);
    candidate_log_probs_.push_back(
        i < n ? float(double(selection_[i].score - selection_[0].score) - std::log(total)) : -INFINITY);
  }
}

// The same by the selector: a list of each slot for every candidate of the slot before.
void DflashDrafter::collect_by_selector(size_t first, size_t n) {
  DflashSelector& selector = *network_->selector();
  const size_t rank = size_t(selector.rank());
  tree_rows_.clear();
  candidates_.clear();
  predecessors_.clear();
  unary_.clear();
  for (size_t i = 0; i < n; ++i) {
    const DraftRequest& r = *owners_[first + i];
    if (r.tree_nodes == 0) continue;
    const size_t k = std::min({kTreeCandidates, size_t(selector.top_k()), choice_.n_choices(r.slot)});
    find_best(i, r.slot, k);
    if (slot_of(first + i) == 0) slot_before_ = {r.text.back()};
    tree_rows_.push_back({.row = i,
                          .candidates = candidates_.size(),
                          .predecessors = predecessors_.size(),
                          .k = int(k),
                          .n_before = int(slot_before_.size())});
    predecessors_.insert(predecessors_.end(), slot_before_.begin(), slot_before_.end());
    best_.resize(k, {.score = NAN, .id = 0});  // too few numbers: the tree ends here
    slot_before_.clear();
    for (const Candidate& c : best_) {
      candidates_.push_back(c.id);
      slot_before_.push_back(c.id);
      unary_.push_back(network_->config().output(c.score));
    }
  }
  if (tree_rows_.empty()) return;
  const std::span<const float> hidden = selector.project(network_->hidden());
  const std::span<const float> before = selector.predecessors(predecessors_);
  const std::span<const float> after = selector.successors(candidates_);
  for (const TreeRow& row : tree_rows_) {
    const auto k = size_t(row.k);
    const SelectorSlots slot{.n_slots = 1,
                             .n_candidates = row.k,
                             .rank = selector.rank(),
                             .ids = std::span(candidates_).subspan(row.candidates, k),
                             .unary = std::span(unary_).subspan(row.candidates, k),
                             .hidden = hidden.subspan(row.row * rank, rank),
                             .first = {},
                             .predecessors = {},
                             .successors = after.subspan(row.candidates * rank, k * rank)};
    tree_top_k_ = tree_lists_ = row.k;
    scores_.resize(k);
    for (size_t list = 0; list < k; ++list) {
      selection_.clear();
      if (list < size_t(row.n_before)) {
        slot.scores(0, before.subspan((row.predecessors + list) * rank, rank), scores_);
        for (size_t i = 0; i < k; ++i) selection_.push_back({scores_[i], slot.ids[i]});
      }
      const bool numbers = std::all_of(selection_.begin(), selection_.end(),
                                       [](const Candidate& c) { return std::isfinite(c.score); });
      if (!numbers) selection_.clear();
      std::sort(selection_.begin(), selection_.end(), better);
      for (size_t i = 0; i < k; ++i) {
        const auto at = i < selection_.size()
                            ? std::find(slot.ids.begin(), slot.ids.end(), selection_[i].id) - slot.ids.begin()
                            : 0;
        next_lists_.push_back(uint8_t(at));
      }
      push_list(selection_.size(), k);
    }
    const size_t i = first + row.row;
    if (ends_block(i)) finish_tree(*owners_[i]);
  }
}

void DflashDrafter::finish_tree(const DraftRequest& r) {
  const SlotCandidates slots{.n_slots = int(candidate_ids_.size()) / (tree_top_k_ * tree_lists_),
                             .top_k = tree_top_k_,
                             .ids = candidate_ids_,
                             .log_probs = candidate_log_probs_,
                             .n_lists = tree_lists_,
                             .next_list = next_lists_};
  r.draft->n =
      build_draft_tree(slots, std::min(r.tree_nodes, kMaxDraft), r.draft->tokens, r.draft->parents).n;
  candidate_ids_.clear();
  candidate_log_probs_.clear();
  next_lists_.clear();
}

}  // namespace tandem
