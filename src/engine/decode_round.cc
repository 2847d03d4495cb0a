// One round of every sequence that answers: draft, verify in one step, accept, commit.
#include <algorithm>
#include <chrono>
#include <exception>

#include "base/check.h"
#include "engine/engine.h"
#include "sample/philox.h"
#include "sample/rejection.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A drafter is not trusted: what it says is cut where it stops making sense. Trees must come depth first: a
// token's parent is the one before it or an ancestor of that.
void cut_bad_tokens(Draft& draft, int most, int n_tokens) {
  const int n = std::clamp(draft.n, 0, std::min(most, kMaxDraft));
  for (draft.n = 0; draft.n < n; ++draft.n) {
    const TokenId token = draft.tokens[size_t(draft.n)];
    const int parent = draft.parents[size_t(draft.n)];
    int above = draft.n - 1;
    while (above >= 0 && above != parent) above = draft.parents[size_t(above)];
    if (token < 0 || token >= n_tokens || above != parent) return;
  }
}

}  // namespace

void Engine::decode_all(const Sink& sink) {
  const Clock::time_point start = Clock::now();
  draft_s_ = verify_s_ = 0;
  for (DraftArm& arm : arms_) {
    for (DraftSource& source : arm.sources) source.round_draft_s = 0;
  }
  plan_drafts();
  if (!begin_step(sink)) return;
  const Clock::time_point verify = Clock::now();
  decoder_->forward_with_head({.path = Path::decode, .n_rows = int(ids_.size()), .seqs = seqs_}, ids_, pool_,
                              row_choice(stepping_));
  verify_s_ += seconds_since(verify);
  accept_rows(sink);
  commit_rows();
  learn(seconds_since(start));
}

// Who steps, how many drafts of each shall be verified, and which.
void Engine::plan_drafts() {
  stepping_.clear();
  int context = 0;
  for (const auto& a : active_) {
    if (!a->answering || a->done) continue;
    stepping_.push_back(a.get());
    a->draft.clear();
    a->source = nullptr;
    a->n_wanted = 0;
    context = std::max(context, a->state.length());
  }
  if (arms_.empty()) return;
  const int batch = int(stepping_.size());
  int room = decoder_->limits().max_rows - batch;
  for (Active* a : stepping_) {
    const int left = a->limit - a->stats.generated_tokens;  // a round gives one token more than it drafts
    for (size_t i = 0; a->arm != nullptr && i < a->arm->sources.size(); ++i) {
      const int most = std::min(options_.length.max_draft, a->arm->sources[i].drafter->max_draft());
      a->lengths[i].plan = {
          .limit = std::clamp(std::min(left - 1, room), 0, most), .batch = batch, .context = context};
    }
  }
  look_up();
  int rows = batch - 1;
  double tokens = 0;
  for (Active* a : stepping_) {
    if (a->arm == nullptr) continue;
    for (size_t i = 0; i < a->arm->sources.size(); ++i) {
      RoundPlan& plan = a->lengths[i].plan;
      if (a->arm->sources[i].looks_up()) {  // what it has found is all there is to verify
        plan.limit = std::min(plan.limit, a->draft.n);
        plan.match = a->draft.match;
      }
      plan.limit = std::min(plan.limit, room);
      plan.other_rows = rows;
      plan.other_tokens = tokens;
    }
    if (options_.tree_nodes > 0) {  // as deep as the drafter goes and the answer may still grow
      const int depth = a->lengths[a->arm->sources.size() - 1].plan.limit;
      const bool fits = depth > 0 && room >= options_.tree_nodes;
      a->draft.clear();
      a->source = fits ? &a->arm->sources.back() : nullptr;
      a->n_wanted = fits ? depth : 0;
      room -= fits ? options_.tree_nodes : 0;
      continue;
    }
    choose_source(*a);
    rows += a->n_wanted;
    room -= a->n_wanted;
    tokens += a->expected_tokens;
  }
  for (DraftArm& arm : arms_) {
    for (DraftSource& source : arm.sources) {
      if (!source.looks_up() || options_.tree_nodes > 0) propose(source, false);
    }
  }
}

void Engine::choose_source(Active& a) {
  double most = 0;
  a.expected_tokens = 1;
  for (size_t i = 0; i < a.arm->sources.size(); ++i) {
    DraftSource& source = a.arm->sources[i];
    LengthControl& control = *a.lengths[i].control;
    const int n = control.next(a.lengths[i].plan, source.knowledge);
    if (n == 0 || control.advantage() <= most) continue;
    most = control.advantage();
    a.source = &source;
    a.n_wanted = n;
    a.expected_tokens = control.expected_tokens();
  }
  if (a.source != nullptr && a.source->looks_up()) {
    a.draft.n = std::min(a.draft.n, a.n_wanted);
  } else {
    a.draft.clear();
  }
}

void Engine::look_up() {
  for (DraftArm& arm : arms_) {
    if (options_.tree_nodes == 0 && arm.sources[0].looks_up()) propose(arm.sources[0], true);
  }
}

void Engine::propose(DraftSource& source, bool as_much_as_fits) {
  const Clock::time_point start = Clock::now();
  requests_.clear();
  const auto is_asked = [&](const Active& a) {
    return as_much_as_fits ? a.arm != nullptr && a.arm->sources.data() == &source : a.source == &source;
  };
  const auto wanted = [&](const Active& a) { return as_much_as_fits ? a.lengths[0].plan.limit : a.n_wanted; };
  for (Active* a : stepping_) {
    if (!is_asked(*a) || wanted(*a) == 0) continue;
    requests_.push_back({.slot = a->state.slot(),
                         .max = wanted(*a),
                         .tree_nodes = options_.tree_nodes,
                         .text = a->text,
                         .draft = &a->draft});
  }
  if (requests_.empty()) return;
  try {
    source.drafter->propose(requests_);
  } catch (const std::exception&) {  // a drafter's failure costs its draft, never an answer
    for (const DraftRequest& r : requests_) r.draft->clear();
  }
  for (Active* a : stepping_) {
    if (!is_asked(*a)) continue;
    int most = wanted(*a);
    if (most > 0 && options_.tree_nodes > 0) most = options_.tree_nodes;
    cut_bad_tokens(a->draft, most, options_.n_text_tokens);
  }
  add_draft_time(source, seconds_since(start));
}

void Engine::add_draft_time(DraftSource& source, double seconds) {
  source.round_draft_s += seconds;
  draft_s_ += seconds;
}

bool Engine::begin_step(const Sink& sink) {
  seqs_.clear();
  ids_.clear();
  for (Active* a : stepping_) {
    if (const Status status = begin_rows(*a); !status.ok()) {
      fail(*a, status.error().message, sink);
      continue;
    }
    a->first_row = int(ids_.size());
    seqs_.push_back(a->state.rows(a->first_row));
    ids_.push_back(a->text.back());
    ids_.insert(ids_.end(), a->draft.tokens.begin(), a->draft.tokens.begin() + a->draft.n);
    a->n_text_before = a->text.size();
    a->node = 0;
    a->path[0] = 0;
    a->n_kept = 1;
    a->judging = true;
  }
  std::erase_if(stepping_, [](const Active* a) { return a->done; });
  return !stepping_.empty();
}

Status Engine::begin_rows(Active& a) {
  if (a.draft.is_chain()) return a.state.begin_verify(1 + a.draft.n);
  a.parents[0] = -1;
  for (int i = 0; i < a.draft.n; ++i) a.parents[size_t(i) + 1] = int8_t(a.draft.parents[size_t(i)] + 1);
  return a.state.begin_verify(std::span<const int8_t>(a.parents.data(), size_t(a.draft.n) + 1));
}

// Rows in order, in blocks that the head takes; a sequence's rows may lie in two blocks.
void Engine::accept_rows(const Sink& sink) {
  const int n_rows = int(ids_.size()), most = decoder_->limits().max_logit_rows;
  size_t at = 0;  // the first sequence that has rows from here on
  for (int first = 0; first < n_rows; first += most) {
    const int n = std::min(most, n_rows - first);
    const Clock::time_point start = Clock::now();
    if (first > 0) decoder_->head(first, n, row_choice(stepping_));
    verify_s_ += seconds_since(start);
    for (size_t s = at; s < stepping_.size() && stepping_[s]->first_row < first + n; ++s) {
      Active& a = *stepping_[s];
      // Children lie behind their parents, so the walk never turns back to an earlier block.
      while (a.judging && a.first_row + a.node < first + n) {
        judge(a, sink);
      }
      if (a.first_row + 1 + a.draft.n <= first + n) at = s + 1;
    }
  }
}

// Chooses the token after row a.node, and moves on to the row that drafted it, if there is one.
void Engine::judge(Active& a, const Sink& sink) {
  if (!a.draft.is_chain()) return judge_tree(a, sink);
  std::optional<TokenId> drafted;
  if (a.node < a.draft.n) drafted = a.draft.tokens[size_t(a.node)];
  const auto place = size_t(a.node);
  const bool accepted = choose(a, said_after(a, a.first_row + a.node), drafted, sink);
  if (drafted) ++a.stats.speculation.judged_at[place];
  a.judging = false;
  if (!accepted) return;
  ++a.stats.speculation.accepted_at[place];
  ++a.node;
  if (a.done) return;
  a.path[size_t(a.n_kept++)] = a.node;
  a.judging = true;
}

// In a tree the target's token is looked for among the children of the row.
void Engine::judge_tree(Active& a, const Sink& sink) {
  const size_t before = a.text.size();
  choose(a, said_after(a, a.first_row + a.node), std::nullopt, sink);
  a.judging = false;
  if (a.text.size() == before) return;
  const auto depth = size_t(a.n_kept - 1);
  bool has_children = false;
  for (int i = a.node; i < a.draft.n; ++i) {
    if (a.draft.parents[size_t(i)] != a.node - 1) continue;
    has_children = true;
    if (a.draft.tokens[size_t(i)] != a.text.back()) continue;
    ++a.stats.speculation.accepted_at[depth];
    if (!a.done) {
      a.node = i + 1;
      a.path[size_t(a.n_kept++)] = a.node;
      a.judging = true;
    }
    break;
  }
  a.stats.speculation.judged_at[depth] += has_children;
}

void Engine::commit_rows() {
  for (Active* a : stepping_) {
    a->start = a->state.length();
    if (a->draft.is_chain()) {
      a->state.commit(a->n_kept);
    } else {
      a->state.commit(std::span<const int>(a->path.data(), size_t(a->n_kept)));
    }
  }
  for (DraftArm& arm : arms_) {
    const Clock::time_point start = Clock::now();
    observations_.clear();
    rows_.clear();  // spans into it stay valid: it has room for all rows of a step
    for (const Active* a : stepping_) {
      if (a->arm != &arm || a->done) continue;
      for (int i = 0; i < a->n_kept; ++i) rows_.push_back(a->first_row + a->path[size_t(i)]);
      observations_.push_back({.slot = a->state.slot(),
                               .start = a->start,
                               .rows = std::span(rows_).last(size_t(a->n_kept)),
                               .text = a->text});
    }
    if (observations_.empty()) continue;
    arm.drafter->observe(observations_);
    add_draft_time(arm.sources.back(), seconds_since(start));
  }
}

// What the round says about the cost of steps and of each source's drafts.
void Engine::learn_costs(double other_s) {
  const int batch = int(stepping_.size());
  int n_drafted = 0, context = 0;
  for (const Active* a : stepping_) {
    n_drafted += a->draft.n;
    context = std::max(context, a->lengths[0].plan.context);
  }
  const auto learn_cost = [&](const DraftArm& arm, DraftSource& source) {
    int n_here = 0, n_drafting = 0, width = 0;
    for (const Active* a : stepping_) {
      n_here += a->arm == &arm;
      if (a->source != &source) continue;
      ++n_drafting;
      width = std::max(width, a->n_wanted);
    }
    // The first draft touches memory and code for the first time, the longer step as well: no measure of
    // later ones.
    if (n_drafting > 0 && !source.is_warm) {
      source.is_warm = true;
      return;
    }
    CostModel& cost = source.knowledge.cost;
    cost.add_verify({.rows = int(ids_.size()), .batch = batch, .context = context}, verify_s_);
    if (n_here > 0) cost.add_draft(width, source.round_draft_s / (n_drafting > 0 ? n_drafting : n_here));
    n_drafted > 0 ? cost.add_draft_other(other_s) : cost.add_plain_other(other_s);
  };
  for (DraftArm& arm : arms_) {
    for (DraftSource& source : arm.sources) learn_cost(arm, source);
  }
}

// Statistics of the round, and what it teaches about costs and acceptance.
void Engine::learn(double round_s) {
  const double other_s = std::max(0.0, round_s - draft_s_ - verify_s_);
  learn_costs(other_s);
  for (Active* a : stepping_) {
    a->stats.decode_s += round_s;
    SpeculationStats& stats = a->stats.speculation;
    // The last token of an answer is not followed by another row.
    const int n_accepted = a->draft.is_chain() ? a->node : a->n_kept - 1;
    const int n_tokens = int(a->text.size() - a->n_text_before);
    ++stats.rounds;
    stats.drafted += a->draft.n;
    stats.accepted += n_accepted;
    stats.tokens += n_tokens;
    stats.draft_s += draft_s_;
    stats.verify_s += verify_s_;
    stats.other_s += other_s;
    if (a->arm == nullptr) continue;
    const DraftSource& source = a->source != nullptr ? *a->source : a->arm->sources.back();
    const CostModel& cost = source.knowledge.cost;
    if (const int batch = int(stepping_.size()); cost.ready(batch)) {
      // Both from the measured times without their disturbances: a plain step is not measured when a
      // disturbed round is.
      const auto step_s = [&](int rows) {
        return cost.verify({.rows = rows, .batch = batch, .context = a->lengths[0].plan.context});
      };
      const double plain_s = step_s(batch) + cost.plain_other();
      const double round_cost_s = step_s(int(ids_.size())) + cost.draft(a->n_wanted) +
                                  (a->draft.n > 0 ? cost.draft_other() : cost.plain_other());
      a->arm->add_round(n_tokens * plain_s, round_cost_s);
      stats.plain_s += n_tokens * plain_s;
      stats.compared_s += round_cost_s;
    }
    if (options_.tree_nodes > 0) continue;
    // A round tells of the source that drafted; a plain one is a plain round of all of them.
    for (size_t i = 0; i < a->arm->sources.size(); ++i) {
      DraftSource& of = a->arm->sources[i];
      if (a->source != nullptr && a->source != &of) continue;
      a->lengths[i].control->observe(a->lengths[i].plan,
                                     {.n_verified = a->draft.n, .n_accepted = n_accepted, .seconds = round_s},
                                     of.knowledge);
    }
  }
}

Choose Engine::wanted_by(const Active& a) const {
  const SamplingParams& sampling = a.request.sampling;
  if (a.request.top_logprobs || changes_logits(sampling, a.history, {})) return Choose::nothing;
  if (sampling.temperature == 0) return Choose::greedy;
  const bool by_best = options_.accept.mode == AcceptMode::coupled && sampling.top_k > 0 &&
                       sampling.top_k < std::min(Backend::kMostBest, options_.n_text_tokens);
  return by_best ? Choose::best : Choose::nothing;
}

RowChoice Engine::row_choice(std::span<Active* const> sequences) const {
  RowChoice choice{.what = Choose::nothing, .n_tokens = options_.n_text_tokens};
  for (const Active* a : sequences) choice.what = std::max(choice.what, wanted_by(*a));
  return choice;
}

// The first question of a round waits for its step.
Engine::Said Engine::said_after(const Active& a, int row) {
  const Clock::time_point start = Clock::now();
  Said said;
  const Choose wanted = wanted_by(a);
  if (wanted == Choose::greedy) {
    if (const TokenId token = decoder_->choice(row); token >= 0) said.token = token;
  } else if (wanted == Choose::best) {
    const BestLogits best = decoder_->best(row);
    if (!best.ids.empty()) {
      said.token = sampler_.choose_among(best.values, best.ids, a.request.sampling, uint32_t(a.text.size()));
    }
  }
  if (!said.token) said.logits = decoder_->row_logits(row).first(size_t(options_.n_text_tokens));
  verify_s_ += seconds_since(start);
  return said;
}

Result<TokenId> Engine::token_of(Active& a, const Said& said, std::optional<TokenId> draft) {
  const auto position = uint32_t(a.text.size());
  const SampleRow row{
      .logits = said.logits, .params = a.request.sampling, .history = a.history, .position = position};
  const TokenPlace place{.seed = a.request.sampling.seed, .position = position};
  if (const double chance = a.arm != nullptr ? a.arm->drafter->simulated_acceptance() : 0;
      chance > 0 && draft) {
    const float lot =
        uniform_noise({.seed = place.seed, .position = position, .purpose = NoisePurpose::accept}, 0);
    if (lot <= chance) return *draft;
  }
  if (said.token) return *said.token;
  // Greedy: a draft is right if it is what the target says, in every mode.
  if (options_.accept.mode == AcceptMode::coupled || a.request.sampling.temperature == 0) {
    return sampler_.choose(row);
  }
  TD_RETURN_IF_ERROR(sampler_.distribution(row, probabilities_));
  if (!draft) return draw_target(probabilities_, place);
  const auto n = probabilities_.size();
  const auto index = size_t(a.node);
  const DraftDistribution q = a.draft.q.size() >= (index + 1) * n
                                  ? DraftDistribution::dense(std::span(a.draft.q).subspan(index * n, n))
                                  : DraftDistribution::point_mass();
  return test_draft(probabilities_, *draft, q, place, options_.accept.exponent).token;
}

bool Engine::choose(Active& a, const Said& said, std::optional<TokenId> draft, const Sink& sink) {
  const bool with_logprobs = a.request.top_logprobs.has_value();
  // The raw distribution must be read before processors edit the row; which token, only after the choice.
  Logprobs of_token;
  std::vector<float> untouched;
  if (with_logprobs) untouched.assign(said.logits.begin(), said.logits.end());
  const Result<TokenId> chosen = token_of(a, said, draft);
  if (!chosen.ok()) {
    fail(a, chosen.error().message, sink);
    return false;
  }
  const TokenId token = *chosen;
  const auto& stops = a.request.sampling.stop_ids;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    finish(a, FinishReason::stop, std::nullopt, nullptr, sink);
    return draft == token;
  }
  const Logprobs* logprobs_of_token = nullptr;
  if (with_logprobs) {
    of_token = logprobs(untouched, token, *a.request.top_logprobs);
    logprobs_of_token = &of_token;
  }
  a.history.push(token);
  a.text.push_back(token);
  ++a.stats.generated_tokens;
  if (a.stats.generated_tokens >= a.limit) {
    finish(a, FinishReason::length, token, logprobs_of_token, sink);
  } else {
    sink({.request = a.number, .token = token, .logprobs = logprobs_of_token});
  }
  return draft == token;
}

}  // namespace tandem
