#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/check.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

int pages_of(int positions) { return (positions + kPageTokens - 1) / kPageTokens; }

constexpr size_t kFinishedKept = 256;

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(Decoder& decoder, const EngineOptions& wanted) {
  EngineOptions options = wanted;
  TD_CHECK(options.prefill_chunk > 0 && options.prefill_chunk % kChunkTokens == 0, "prefill chunk of %d rows",
           options.prefill_chunk);
  options.prefill_chunk =
      std::min(options.prefill_chunk, decoder.limits().max_rows / kChunkTokens * kChunkTokens);
  TD_CHECK(options.max_sequences > 0 && options.max_sequences <= decoder.limits().max_rows &&
               options.prefill_chunk > 0,
           "%d sequences, steps of %d rows", options.max_sequences, decoder.limits().max_rows);
  if (options.max_positions == 0) options.max_positions = decoder.shape().max_positions;
  if (options.n_text_tokens <= 0 || options.n_text_tokens > decoder.shape().n_vocab) {
    options.n_text_tokens = decoder.shape().n_vocab;
  }
  int draft = 0;
  bool trees = false;
  for (const Drafter* d : options.drafters) {
    draft = std::max(draft, std::min(kMaxDraft, d->max_draft()));
    trees = trees || d->makes_trees();
  }
  options.tree_nodes = trees ? std::clamp(options.tree_nodes, 0, kMaxDraft) : 0;
  StateLimits limits{.max_sequences = options.max_sequences,
                     .max_positions = options.max_positions,
                     .tape_rows = 1 + std::max(draft, options.tree_nodes)};
  TD_CHECK(options.checkpoint_interval > 0 && options.checkpoint_interval % kChunkTokens == 0,
           "a checkpoint every %d positions", options.checkpoint_interval);
  if (const size_t bytes = options.prefix_cache_bytes; bytes > 0) {
    const StateShape shape = decoder.state_shape();
    const size_t page = size_t(shape.n_attention_layers) * decoder.backend().kv_page_bytes(shape.attention);
    const size_t checkpoint = StatePool::checkpoint_bytes(shape);
    const size_t for_pages = checkpoint > 0 ? bytes / 2 : bytes;
    limits.extra_pages = page > 0 ? int(for_pages / page) : 0;
    limits.checkpoints = checkpoint > 0 ? int(std::max<size_t>(1, (bytes - for_pages) / checkpoint)) : 0;
  }
  TD_ASSIGN_OR_RETURN(StatePool pool, StatePool::create(decoder.backend(), decoder.state_shape(), limits));
  return std::unique_ptr<Engine>(new Engine(decoder, options, std::move(pool)));
}

Engine::Engine(Decoder& decoder, const EngineOptions& options, StatePool pool)
    : decoder_(&decoder), options_(options), pool_(std::move(pool)), sampler_(decoder.shape().n_vocab) {
  if (options_.prefix_cache_bytes > 0) prefixes_.emplace(pool_);
  const auto n = size_t(options.max_sequences);
  active_.reserve(n);
  seqs_.reserve(n);
  stepping_.reserve(n);
  requests_.reserve(n);
  observations_.reserve(n);
  rows_.reserve(size_t(decoder.limits().max_rows));
  ids_.reserve(size_t(decoder.limits().max_rows));
  for (Drafter* d : options.drafters) arms_.emplace_back(*d);
  if (options.accept.mode != AcceptMode::coupled) probabilities_.resize(size_t(options_.n_text_tokens));
  finished_.reserve(kFinishedKept + 1);
}

Result<int> Engine::submit(Request request) {
  const DecoderShape& shape = decoder_->shape();
  if (request.prompt.empty()) return Error{"the prompt is empty: give at least one token"};
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (const TokenId id = request.prompt[i]; id < 0 || id >= shape.n_vocab) {
      return Error{fmt::format("prompt token {} at index {} is outside the vocabulary of {} tokens", id, i,
                               shape.n_vocab)};
    }
  }
  const int context = std::min(shape.max_positions, options_.max_positions);
  if (request.prompt.size() >= size_t(context)) {
    return Error{fmt::format(
        "the prompt has {} tokens, the context holds {} and the answer needs at least one: shorten "
        "the prompt or raise --context",
        request.prompt.size(), context)};
  }
  if (request.max_tokens < 1)
    return Error{fmt::format("max_tokens is {}, expected at least 1", request.max_tokens)};
  TD_RETURN_IF_ERROR(validate(request.sampling, shape.n_vocab));
  waiting_.push_back({next_number_, std::move(request), now_s()});
  return next_number_++;
}

void Engine::admit() {
  while (!waiting_.empty() && pool_.free_slots() > 0 && int(active_.size()) < options_.max_sequences) {
    if (!admit(waiting_.front())) break;
    waiting_.pop_front();
  }
}

bool Engine::admit(Waiting& waiting) {
  Request& request = waiting.request;
  const int prompt = int(request.prompt.size());
  const int context = std::min(decoder_->shape().max_positions, options_.max_positions);
  const int limit = std::min(request.max_tokens, context - prompt);
  PrefixTree::Match match;
  if (uses_cache(request)) match = prefixes_->find(request.prompt, request.cache_salt);
  // Pages that active sequences may still take are promised: none of them can fail for want of one.
  int wanted = pages_of(prompt + limit) - int(match.pages.size());
  for (const auto& a : active_) {
    wanted += pages_of(int(a->request.prompt.size()) + a->limit) - int(a->state.pages().size());
  }
  // Before anything is copied; those found are held by more than the tree from then on.
  if (wanted > pool_.free_pages() + (prefixes_ ? prefixes_->pages_held_alone() : 0)) return false;
  Result<SequenceState> state = SequenceState::create(pool_);
  TD_CHECK(state.ok(), "a free slot could not be taken: %s", state.error().message.c_str());
  if (uses_cache(request)) state->begin_with(match.pages, match.checkpoint);
  if (wanted > pool_.free_pages()) {
    if (!prefixes_ || wanted > pool_.free_pages() + prefixes_->pages_held_alone()) return false;
    prefixes_->evict_pages(wanted - pool_.free_pages());
  }
  std::vector<int> stops;
  if (uses_cache(request)) stops = chunk_stops(request, match);
  TokenHistory history(request.prompt, request.sampling, limit);
  auto a = std::make_unique<Active>(Active{.number = waiting.number,
                                           .request = std::move(request),
                                           .state = *std::move(state),
                                           .history = std::move(history)});
  a->limit = limit;
  a->n_prefilled = a->state.length();
  a->stops = std::move(stops);
  a->submitted = waiting.submitted;
  a->stats.prompt_tokens = prompt;
  a->stats.cached_tokens = a->state.length();
  a->stats.queue_s = now_s() - waiting.submitted;
  a->text.reserve(size_t(prompt + limit));
  a->text = a->request.prompt;
  begin_drafting(*a);
  active_.push_back(std::move(a));
  return true;
}

// A model without recurrent layers can begin after any page. Others need their state, which is kept where a
// later prompt may part from this one: where this one has parted from another, at the places the request
// names, now and then in a long prompt, and at its last page.
std::vector<int> Engine::chunk_stops(const Request& request, const PrefixTree::Match& match) const {
  if (pool_.shape().n_delta_layers == 0) return {};
  const int last = (int(request.prompt.size()) - 1) / kChunkTokens * kChunkTokens;
  const int begin = int(match.pages.size()) * kPageTokens;
  std::vector<int> stops = {last, match.n_matched};
  for (const int at : request.fork_points) stops.push_back(at / kChunkTokens * kChunkTokens);
  for (int at = options_.checkpoint_interval; at < last; at += options_.checkpoint_interval) {
    stops.push_back(at);
  }
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  std::erase_if(stops, [&](int at) { return at <= begin || at > last; });
  return stops;
}

// Chunks end at absolute multiples of 64, so that results do not depend on where the prompt was cut.
int Engine::chunk_end(const Active& a) const {
  const int end = std::min(int(a.request.prompt.size()),
                           (a.n_prefilled + options_.prefill_chunk) / kChunkTokens * kChunkTokens);
  const auto stop = std::upper_bound(a.stops.begin(), a.stops.end(), a.n_prefilled);
  return stop == a.stops.end() ? end : std::min(end, *stop);
}

// What a chunk has computed is there for others at once, and stays when the request is cancelled.
void Engine::keep_prefix(Active& a) {
  if (!uses_cache(a.request)) return;
  prefixes_->insert(a.state, a.request.prompt, a.request.cache_salt,
                    std::binary_search(a.stops.begin(), a.stops.end(), a.n_prefilled));
}

void Engine::clear_prefix_cache() {
  if (prefixes_) prefixes_->clear();
}

// A drafter without room for a sequence is no reason to refuse it: it is decoded plainly.
void Engine::begin_drafting(Active& a) {
  DraftArm* arm = choose_arm(arms_);
  if (arm == nullptr) return;
  const DraftedSequence sequence{.prompt = a.request.prompt,
                                 .start = a.n_prefilled,
                                 .sampling = &a.request.sampling,
                                 .n_tokens = options_.n_text_tokens,
                                 .wants_q = options_.accept.mode != AcceptMode::coupled};
  if (!arm->drafter->begin(a.state.slot(), sequence).ok()) return;
  a.arm = arm;
  TD_CHECK(!arm->sources.empty() && arm->sources.size() <= a.lengths.size(), "%zu sources of drafts",
           arm->sources.size());
  for (size_t i = 0; i < arm->sources.size(); ++i) {
    LengthOptions length = options_.length;
    length.max_draft = std::min(length.max_draft, arm->sources[i].drafter->max_draft());
    a.lengths[i].control.emplace(length);
  }
  a.stats.speculation.drafter = arm->drafter->name();
  a.stats.speculation.simulated = arm->drafter->simulated_acceptance() > 0;
}

void Engine::step(const Sink& sink) {
  admit();
  decode_all(sink);
  prefill_one(sink);
  drop_done();
}

void Engine::run(const Sink& sink) {
  while (!idle()) step(sink);
}

Engine::Active* Engine::next_to_prefill() {
  constexpr double kPatience = 10;  // seconds
  const double now = now_s();
  Active* next = nullptr;
  for (const auto& a : active_) {  // in the order of arrival
    if (a->answering || a->done) continue;
    if (now - a->submitted > kPatience) return a.get();
    const auto left = [](const Active& x) { return int(x.request.prompt.size()) - x.n_prefilled; };
    if (next == nullptr || left(*a) < left(*next)) next = a.get();
  }
  return next;
}

void Engine::prefill_one(const Sink& sink) {
  Active* const next = next_to_prefill();
  if (next == nullptr) return;
  Active& a = *next;
  const Clock::time_point start = Clock::now();
  const auto total = int(a.request.prompt.size());
  const int end = chunk_end(a);
  const int n = end - a.n_prefilled;
  if (const Status status = a.state.begin_prefill(n); !status.ok())
    return fail(a, status.error().message, sink);
  seqs_.assign(1, a.state.rows(0));
  const Step step{.path = Path::prefill, .n_rows = n, .seqs = seqs_};
  decoder_->forward(step, std::span(a.request.prompt).subspan(size_t(a.n_prefilled), size_t(n)), pool_);
  a.state.end_prefill();
  if (a.arm != nullptr) {
    rows_.resize(size_t(n));
    std::iota(rows_.begin(), rows_.end(), 0);
    observations_.assign(1, {.slot = a.state.slot(), .start = a.n_prefilled, .rows = rows_, .text = a.text});
    a.arm->drafter->observe(observations_);
  }
  a.n_prefilled = end;
  keep_prefix(a);
  if (end == total) {
    Active* const one[] = {&a};
    decoder_->head(n - 1, 1, row_choice(one));
    const Said said = said_after(a, n - 1);
    a.answering = true;
    a.stats.prefill_s += seconds_since(start);
    a.stats.ttft_s = now_s() - a.submitted;
    choose(a, said, std::nullopt, sink);
    return;
  }
  a.stats.prefill_s += seconds_since(start);
}

void Engine::finish(Active& a, FinishReason reason, std::optional<TokenId> token, const Logprobs* logprobs,
                    const Sink& sink) {
  a.done = true;
  sink({.request = a.number, .token = token, .logprobs = logprobs, .finish = reason});
}

void Engine::fail(Active& a, const std::string& error, const Sink& sink) {
  a.done = true;
  sink({.request = a.number, .finish = FinishReason::error, .error = &error});
}

void Engine::drop_done() {
  for (const auto& a : active_) {
    if (!a->done) continue;
    if (a->arm != nullptr) a->arm->drafter->end(a->state.slot());
    if (a->arm != nullptr) total_speculation_.add(a->stats.speculation);
    finished_.emplace_back(a->number, a->stats);
  }
  if (finished_.size() > kFinishedKept) finished_.erase(finished_.begin(), finished_.end() - kFinishedKept);
  std::erase_if(active_, [](const auto& a) { return a->done; });
}

void Engine::cancel(int request) {
  std::erase_if(waiting_, [&](const auto& w) { return w.number == request; });
  for (const auto& a : active_) {
    if (a->number == request) a->done = true;
  }
  drop_done();
}

const RequestStats& Engine::stats(int request) const {
  for (const auto& a : active_) {
    if (a->number == request) return a->stats;
  }
  for (const auto& [number, stats] : finished_) {
    if (number == request) return stats;
  }
  static constexpr RequestStats kNone{};
  return kNone;
}

}  // namespace tandem
