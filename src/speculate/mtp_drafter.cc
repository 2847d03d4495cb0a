#include "speculate/mtp_drafter.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace tandem {

Result<std::unique_ptr<MtpDrafter>> MtpDrafter::create(std::unique_ptr<MtpHead> head, Decoder& target,
                                                       const DraftLimits& limits,
                                                       std::vector<TokenId> draft_ids) {
  TD_ASSIGN_OR_RETURN(
      StatePool pool,
      StatePool::create(target.backend(), head->state_shape(),
                        {.max_sequences = limits.max_sequences,
                         .max_positions = limits.max_positions + limits.max_sequences * kMaxDecodeRows,
                         .tape_rows = kMaxDecodeRows}));
  std::unique_ptr<MtpDrafter> drafter(new MtpDrafter(std::move(head), target, std::move(pool), limits));
  TD_RETURN_IF_ERROR(drafter->allocate());
  const size_t n_logits = draft_ids.empty() ? size_t(target.shape().n_vocab) : draft_ids.size();
  TD_CHECK(size_t(drafter->head_->n_logits()) == n_logits, "a head of %d logits for %zu tokens",
           drafter->head_->n_logits(), n_logits);
  if (draft_ids.empty()) return drafter;
  const auto bytes = std::as_bytes(std::span(draft_ids));
  TD_ASSIGN_OR_RETURN(drafter->draft_ids_memory_,
                      target.backend().allocate(bytes.size(), "draft vocabulary"));
  target.backend().copy_in(drafter->draft_ids_memory_.data(), bytes);
  drafter->draft_ids_view_ = drafter->draft_ids_memory_.view(DType::i32, 1, int(draft_ids.size()));
  drafter->wide_.resize(size_t(target.shape().n_vocab));
  drafter->draft_ids_ = std::move(draft_ids);
  return drafter;
}

MtpDrafter::MtpDrafter(std::unique_ptr<MtpHead> head, Decoder& target, StatePool pool,
                       const DraftLimits& limits)
    : head_(std::move(head)),
      target_(&target),
      pool_(std::move(pool)),
      choice_(target.shape().n_vocab, limits.max_sequences),
      sequences_(size_t(limits.max_sequences)) {}

Status MtpDrafter::allocate() {
  const int rows = target_->limits().max_rows, d = head_->d_model();
  const int n_waiting = int(sequences_.size()) * kMaxWaiting;
  const size_t row_bytes = size_t(d) * sizeof(float);
  TD_ASSIGN_OR_RETURN(memory_,
                      target_->backend().allocate(size_t(n_waiting + 2 * rows + kMaxWaiting) * row_bytes,
                                                  "hidden states for the MTP head"));
  waiting_ = memory_.view(DType::f32, n_waiting, d);
  hidden_ = memory_.view(DType::f32, rows + kMaxWaiting, d, size_t(n_waiting) * row_bytes);
  chain_ = memory_.view(DType::f32, rows, d, size_t(n_waiting + rows + kMaxWaiting) * row_bytes);
  return {};
}

Status MtpDrafter::begin(int slot, const DraftedSequence& sequence) {
  TD_ASSIGN_OR_RETURN(SequenceState state, SequenceState::create(pool_));
  Sequence& s = sequences_[size_t(slot)];
  s.state = std::move(state);
  s.base = sequence.start;
  s.n_waiting = 0;
  choice_.begin(slot, sequence);
  return {};
}

void MtpDrafter::observe(std::span<const Observation> steps) {
  for (const Observation& o : steps) {
    Sequence& s = sequences_[size_t(o.slot)];
    const int n = int(o.rows.size()), total = s.n_waiting + n;
    TD_CHECK(s.base + s.state->length() + s.n_waiting == o.start,
             "slot %d: positions from %d on, the head has %d + %d", o.slot, o.start,
             s.base + s.state->length(), s.n_waiting);
    if (n == 0) continue;
    if (total <= kMaxWaiting) {  // the next draft will take them along
      head_->hidden_of_target(o.rows, waiting(o.slot, s.n_waiting, n));
      s.n_waiting = total;
      continue;
    }
    const MutView hidden = hidden_.row_range(0, total);
    if (s.n_waiting > 0) {
      target_->backend().copy_rows(waiting(o.slot, 0, s.n_waiting), {}, hidden.row_range(0, s.n_waiting));
    }
    head_->hidden_of_target(o.rows, hidden.row_range(s.n_waiting, n));
    ingest(s, o, hidden);
  }
}

// Feeds all rows but the last one: a draft begins with it, and at the end of a prompt its next token is not
// known yet.
void MtpDrafter::ingest(Sequence& s, const Observation& o, MutView hidden) {
  const int start = s.state->length(), n = hidden.rows - 1;
  const Status room = s.state->begin_prefill(n);
  TD_CHECK(room.ok(), "%s", room.error().message.c_str());  // sized for the target's positions
  const SeqStep seq = s.state->rows(0);
  head_->ingest({.path = Path::prefill, .n_rows = n, .seqs = {&seq, 1}},
                o.text.subspan(size_t(s.base + start) + 1, size_t(n)), hidden.row_range(0, n), pool_);
  s.state->end_prefill();
  s.n_waiting = hidden.rows - n;
  if (s.n_waiting > 0) {
    target_->backend().copy_rows(hidden.row_range(n, s.n_waiting), {}, waiting(o.slot, 0, s.n_waiting));
  }
}

void MtpDrafter::propose(std::span<const DraftRequest> requests) {
  // As many sequences at a time as fit a pass, each with all it may have waiting.
  const auto most = size_t(std::max(1, std::min(head_->max_rows(), hidden_.rows) / kMaxWaiting));
  for (size_t i = 0; i < requests.size(); i += most) {
    start_drafts(requests.subspan(i, std::min(most, requests.size() - i)));
    if (drafting_.empty()) continue;
    if (const int n_choices = greedy_choices(); n_choices > 0) {
      draft_chains(n_choices);
    } else {
      append_tokens(last_rows_);
      for (int done = 1; !drafting_.empty(); ++done) continue_drafts(done);
    }
  }
}

// Feeds what waits, with the tokens that are known by now; the last row of each sequence makes its first
// draft.
void MtpDrafter::start_drafts(std::span<const DraftRequest> requests) {
  seqs_.clear();
  ids_.clear();
  rows_.clear();
  last_rows_.clear();
  drafting_.clear();
  for (const DraftRequest& r : requests) {
    Sequence& s = sequences_[size_t(r.slot)];
    const int n = s.n_waiting, start = s.state->length();
    TD_CHECK(n > 0 && s.base + start + n + 1 == int(r.text.size()), "slot %d: %zu tokens, %d + %d observed",
             r.slot, r.text.size(), s.base + start, n);
    if (start + n + r.max > head_->max_positions() || !s.state->begin_prefill(n).ok()) continue;
    drafting_.push_back(&r);
  }
  if (drafting_.empty()) return;
  std::sort(drafting_.begin(), drafting_.end(),
            [](const DraftRequest* a, const DraftRequest* b) { return a->max > b->max; });
  for (const DraftRequest* r : drafting_) {
    const Sequence& s = sequences_[size_t(r->slot)];
    seqs_.push_back(s.state->rows(int(ids_.size())));
    const auto tokens = r->text.last(size_t(s.n_waiting));  // row t takes the token after position t
    ids_.insert(ids_.end(), tokens.begin(), tokens.end());
    for (int i = 0; i < s.n_waiting; ++i) rows_.push_back(r->slot * kMaxWaiting + i);
    last_rows_.push_back(int32_t(ids_.size()) - 1);
  }
  const int n = int(ids_.size());
  target_->backend().copy_rows(waiting_, rows_, hidden_.row_range(0, n));
  head_->forward({.path = Path::prefill, .n_rows = n, .seqs = seqs_}, ids_, hidden_.row_range(0, n), pool_);
  for (const DraftRequest* r : drafting_) {
    Sequence& s = sequences_[size_t(r->slot)];
    s.state->end_prefill();
    s.n_waiting = 0;
  }
}

int MtpDrafter::greedy_choices() const {
  if (int(drafting_.size()) > head_->max_logit_rows()) return 0;
  const auto of = [&](const DraftRequest& r) -> size_t {
    if (choice_.sampling(r.slot).temperature != 0) return 0;
    const size_t n_tokens = choice_.n_choices(r.slot);
    if (draft_ids_.empty()) return n_tokens;
    return size_t(std::lower_bound(draft_ids_.begin(), draft_ids_.end(), TokenId(n_tokens)) -
                  draft_ids_.begin());
  };
  const size_t n = of(*drafting_[0]);
  for (const DraftRequest* r : drafting_) {
    if (of(*r) != n) return 0;
  }
  return int(n);
}

void MtpDrafter::draft_chains(int n_choices) {
  const auto wanted = [&](size_t i) { return std::min(drafting_[i]->max, kMaxDraft); };
  head_->begin_chains(last_rows_, n_choices, draft_ids_view_);
  size_t n = drafting_.size();
  for (int length = 1; length < wanted(0);) {
    while (wanted(n - 1) <= length) --n;  // who has enough
    const int end = wanted(n - 1);
    seqs_.clear();
    for (int t = length; t < end; ++t) {
      for (size_t i = 0; i < n; ++i) {
        SequenceState& state = *sequences_[size_t(drafting_[i]->slot)].state;
        const Status room = state.begin_verify(1);
        TD_CHECK(room.ok(), "%s", room.error().message.c_str());
        seqs_.push_back(state.rows(int(i)));
        state.commit(1);
      }
    }
    steps_.clear();
    for (size_t first = 0; first < seqs_.size(); first += n) {
      steps_.push_back({.n_rows = int(n), .seqs = std::span(seqs_).subspan(first, n)});
    }
    head_->extend_chains(steps_, pool_);
    length = end;
  }
  head_->fetch_chains();
  for (size_t i = 0; i < drafting_.size(); ++i) {
    const DraftRequest& r = *drafting_[i];
    for (int t = 0; t < wanted(i); ++t) {
      const TokenId token = head_->chain_token(int(i), t);
      if (token < 0 || !r.draft->push(token)) break;
    }
    // Drafted rows hold guesses: the cache keeps committed positions only.
    Sequence& s = sequences_[size_t(r.slot)];
    s.state->truncate(int(r.text.size()) - 1 - s.base);
  }
}

// One more token for every sequence that still drafts, from the head's own hidden states.
void MtpDrafter::continue_drafts(int done) {
  seqs_.clear();
  ids_.clear();
  for (const DraftRequest* r : drafting_) {
    SequenceState& state = *sequences_[size_t(r->slot)].state;
    const Status room = state.begin_verify(1);
    TD_CHECK(room.ok(), "%s", room.error().message.c_str());
    seqs_.push_back(state.rows(int(ids_.size())));
    ids_.push_back(r->draft->tokens[size_t(done - 1)]);
  }
  const int n = int(ids_.size());
  head_->forward({.n_rows = n, .seqs = seqs_}, ids_, chain_.row_range(0, n), pool_);
  for (const DraftRequest* r : drafting_) sequences_[size_t(r->slot)].state->commit(1);
  rows_.resize(size_t(n));
  std::iota(rows_.begin(), rows_.end(), 0);
  append_tokens(rows_);
}

std::span<float> MtpDrafter::over_vocabulary(std::span<float> logits) {
  if (draft_ids_.empty()) return logits;
  constexpr float kNever = -1e30f;  // finite also at the lowest temperature
  std::fill(wide_.begin(), wide_.end(), kNever);
  for (size_t i = 0; i < draft_ids_.size(); ++i) wide_[size_t(draft_ids_[i])] = logits[i];
  return wide_;
}

RowChoice MtpDrafter::wanted_choice() const {
  const RowChoice choice{.what = Choose::best, .n_tokens = int(choice_.n_choices(drafting_[0]->slot))};
  if (!draft_ids_.empty()) return {};
  for (const DraftRequest* r : drafting_) {
    if (!choice_.takes_best(r->slot) || int(choice_.n_choices(r->slot)) != choice.n_tokens) return {};
  }
  return choice;
}

bool MtpDrafter::append_token(const DraftRequest& r, size_t i) {
  const auto position = uint32_t(r.text.size()) + uint32_t(r.draft->n);
  const BestLogits best = head_->row_best(i);
  if (!best.ids.empty() && choice_.append_best(r.slot, best.values, best.ids, position, *r.draft))
    return true;
  return choice_.append(r.slot, over_vocabulary(head_->row_logits(i)), position, *r.draft);
}

// Chooses a token for each drafting sequence from its row of the last pass; keeps the states of those that go
// on.
void MtpDrafter::append_tokens(std::span<const int32_t> rows) {
  going_on_.clear();
  const auto most = size_t(head_->max_logit_rows());
  for (size_t first = 0; first < rows.size(); first += most) {
    const std::span<const int32_t> some = rows.subspan(first, std::min(most, rows.size() - first));
    head_->head(some, wanted_choice());
    const int kept = int(going_on_.size());
    chain_rows_.clear();
    for (size_t i = 0; i < some.size(); ++i) {
      const DraftRequest& r = *drafting_[first + i];
      if (append_token(r, i) && r.draft->n < std::min(r.max, kMaxDraft)) {
        going_on_.push_back(&r);
        chain_rows_.push_back(int32_t(i));
      } else {
        // Drafted rows hold guesses: the cache keeps committed positions only.
        SequenceState& state = *sequences_[size_t(r.slot)].state;
        state.truncate(int(r.text.size()) - 1 - sequences_[size_t(r.slot)].base);
      }
    }
    if (!chain_rows_.empty()) {
      head_->chain_hidden(some, chain_rows_, chain_.row_range(kept, int(chain_rows_.size())));
    }
  }
  drafting_.swap(going_on_);
}

}  // namespace tandem
