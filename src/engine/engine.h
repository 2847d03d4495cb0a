// Requests -> steps -> tokens. The engine owns the sequences' state and is the one writer of it; generate,
// chat, bench and the tests speak to it directly, a server through a queue.
//
//   submit -> waiting -> (a slot is free) prefill in chunks -> first token -> decode rounds -> finished
//
// One thread calls. Each step() runs one chunk of one prompt, if there is one (the shortest first, so that a
// long prompt does not hold up a short one), and one round of every sequence that has begun to answer, so
// that a prompt holds up answers by a chunk at most. A round is draft -> verify (one step of the target) ->
// accept -> commit; without a drafter, or where drafting does not pay, the draft is empty and the round is a
// plain decode step.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/draft_arms.h"
#include "engine/speculation_stats.h"
#include "model/decoder.h"
#include "sample/accept.h"
#include "sample/logprobs.h"
#include "sample/sampler.h"
#include "speculate/drafter.h"
#include "speculate/length.h"
#include "state/prefix_tree.h"
#include "state/state_pool.h"

namespace tandem {

struct Request {
  std::vector<TokenId> prompt;
  SamplingParams
      sampling;          // its stop_ids end the answer and are not part of it; empty: nothing ends it early
  int max_tokens = 256;  // cut to what the context still holds
  std::optional<int> top_logprobs;  // give every token's log-probability, and those of this many best
  bool prefix_cache = true;         // false: neither reads nor fills the engine's prefix tree
  std::string cache_salt = {};      // requests of different salts share no cached prefix
  // Where other requests may part from this prompt (the end of the system segment, the last user turn): a
  // model with recurrent layers keeps its state there. Positions in the prompt, in any order.
  std::vector<int> fork_points = {};
};

enum class FinishReason : uint8_t { none, stop, length, error };

// One generated token, or the end of an answer, or both. Lives for the callback only.
struct Event {
  int request = 0;
  std::optional<TokenId> token = {};  // none when a stop token or an error ended the answer
  const Logprobs* logprobs = nullptr;
  FinishReason finish = FinishReason::none;
  const std::string* error = nullptr;
};

struct RequestStats {
  int prompt_tokens = 0;
  int cached_tokens = 0;  // of the prompt, not computed again
  int generated_tokens = 0;
  double queue_s = 0;    // from submit until it was given a slot
  double ttft_s = 0;     // from submit until the first token was chosen
  double prefill_s = 0;  // computing, until the first token was chosen
  double decode_s = 0;   // after it
  SpeculationStats speculation;
  // Of the tokens after the first.
  double decode_tokens_per_s() const { return decode_s > 0 ? (generated_tokens - 1) / decode_s : 0; }
};

struct EngineOptions {
  int max_sequences = 1;
  int max_positions = 0;           // of all sequences together; 0: one full context
  int prefill_chunk = 512;         // rows, a multiple of 64
  size_t prefix_cache_bytes = 0;   // memory for prefixes of earlier prompts, made at once; 0: none
  int checkpoint_interval = 4096;  // of recurrent state in long prompts, a multiple of 64
  int n_text_tokens = 0;           // ids from here on have no text and are never chosen; 0: all may be
  // Must outlive the engine and have room for max_sequences each. Several: a sequence gets the one that has
  // sped up most so far (draft_arms.h), the first of them at first.
  std::vector<Drafter*> drafters = {};
  LengthOptions length = {};
  AcceptOptions accept = {};
  int tree_nodes = 0;  // > 0: trees of so many drafted tokens, every round, where the drafter makes them
};

class Engine {
 public:
  using Sink = std::function<void(const Event&)>;

  // `decoder` must outlive the engine. Errors: not enough memory for the state (bytes named).
  static Result<std::unique_ptr<Engine>> create(Decoder& decoder, const EngineOptions& options);

  // Checks everything a request can get wrong. Returns its number. Errors: an empty prompt, a token outside
  // the vocabulary, a prompt that leaves no room in the context, sampling parameters out of range.
  Result<int> submit(Request request);

  bool idle() const { return waiting_.empty() && active_.empty(); }
  // One scheduling step; calls sink for every token chosen. A failure of one request is its event, not the
  // step's.
  void step(const Sink& sink);
  // Steps until idle.
  void run(const Sink& sink);
  // Ends a request without an event. Unknown numbers are ignored.
  void cancel(int request);

  // Null without a prefix cache.
  const PrefixTree* prefix_tree() const { return prefixes_ ? &*prefixes_ : nullptr; }
  void clear_prefix_cache();
  const StatePool& pool() const { return pool_; }
  // Of the request that finished last, or of an active one.
  const RequestStats& stats(int request) const;
  // Of all requests that have finished with a drafter.
  const SpeculationStats& total_speculation() const { return total_speculation_; }

 private:
  struct Active {
    int number;
    Request request;
    SequenceState state;
    TokenHistory history;
    int n_prefilled = 0;
    std::vector<int> stops = {};     // chunks of its prompt end here at the latest, ascending
    double submitted = 0;            // seconds of the steady clock
    int limit = 0;                   // tokens that may be generated
    std::vector<TokenId> text = {};  // prompt and output; the last one is chosen, not yet fed
    bool answering = false;
    bool done = false;
    RequestStats stats = {};
    DraftArm* arm = nullptr;  // null: decoded plainly
    // Of the arm's sources.
    struct Lengths {
      std::optional<LengthControl> control = {};
      RoundPlan plan = {};
    };
    std::array<Lengths, Drafter::kMaxSources> lengths = {};
    // The round. Row 0 is the anchor, row i + 1 token i of the draft.
    DraftSource* source = nullptr;  // who drafts; null: nobody
    Draft draft = {};
    double expected_tokens = 1;
    int n_wanted = 0;              // drafts that shall be verified
    int first_row = 0, start = 0;  // in the step; the anchor's position
    size_t n_text_before = 0;
    bool judging = false;
    int node = 0;                                     // the last row kept
    int n_kept = 0;                                   // rows to commit
    std::array<int, kMaxDecodeRows> path = {};        // those rows
    std::array<int8_t, kMaxDecodeRows> parents = {};  // of rows, in a tree
  };

  Engine(Decoder& decoder, const EngineOptions& options, StatePool pool);
  void admit();
  struct Waiting {
    int number;
    Request request;
    double submitted;
  };
  // False: it must wait until others finish.
  bool admit(Waiting& waiting);
  bool uses_cache(const Request& request) const { return prefixes_ && request.prefix_cache; }
  std::vector<int> chunk_stops(const Request& request, const PrefixTree::Match& match) const;
  int chunk_end(const Active& a) const;
  void keep_prefix(Active& a);
  void begin_drafting(Active& a);
  // Whose prompt gets the next chunk: the one with the least left, but none waits for others for long.
  Active* next_to_prefill();
  void prefill_one(const Sink& sink);
  // One round (decode_round.cc), in its parts.
  void decode_all(const Sink& sink);
  void plan_drafts();
  // Which of the sources of a's arm drafts, and how much: the one that promises most.
  void choose_source(Active& a);
  // Of the sources that look up as much as they find, then of those that were chosen what is wanted.
  void look_up();
  void propose(DraftSource& source, bool as_much_as_fits);
  void add_draft_time(DraftSource& source, double seconds);
  bool begin_step(const Sink& sink);
  Status begin_rows(Active& a);
  void accept_rows(const Sink& sink);
  void judge(Active& a, const Sink& sink);
  void commit_rows();
  void learn(double round_s);
  void learn_costs(double other_s);
  void judge_tree(Active& a, const Sink& sink);
  // What a's next token takes of a row, if not the logits.
  Choose wanted_by(const Active& a) const;
  // What any of `sequences` wants.
  RowChoice row_choice(std::span<Active* const> sequences) const;
  // What the target says after a row: the token that it chooses, or else the logits, which may be edited.
  struct Said {
    std::optional<TokenId> token = {};
    std::span<float> logits = {};
  };
  Said said_after(const Active& a, int row);
  // Chooses the next token and reports it. `draft`: the token that was drafted for this place, if any; true
  // if that is what came out and the answer goes on.
  bool choose(Active& a, const Said& said, std::optional<TokenId> draft, const Sink& sink);
  Result<TokenId> token_of(Active& a, const Said& said, std::optional<TokenId> draft);
  void finish(Active& a, FinishReason reason, std::optional<TokenId> token, const Logprobs* logprobs,
              const Sink& sink);
  void fail(Active& a, const std::string& error, const Sink& sink);
  void drop_done();

  Decoder* decoder_;
  EngineOptions options_;
  StatePool pool_;
  std::optional<PrefixTree> prefixes_;
  Sampler sampler_;
  int next_number_ = 0;
  std::deque<Waiting> waiting_;
  std::vector<std::unique_ptr<Active>> active_;
  std::vector<std::pair<int, RequestStats>> finished_;  // the last few
  std::vector<DraftArm> arms_;
  SpeculationStats total_speculation_;
  // Working memory of a step.
  std::vector<float> probabilities_;  // [n_vocab], rejection sampling
  std::vector<DraftRequest> requests_;
  std::vector<Observation> observations_;
  std::vector<int32_t> rows_;
  double draft_s_ = 0, verify_s_ = 0;  // of the round
  std::vector<SeqStep> seqs_;
  std::vector<TokenId> ids_;
  std::vector<Active*> stepping_;
};

}  // namespace tandem
