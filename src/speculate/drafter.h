// Drafter: who guesses the next tokens of a sequence. Whatever it says, the output stays the target's: a bad
// draft costs time and nothing else.
//
//   begin(slot, sequence) -> { observe(rows of a target step) ... propose(requests) } ... -> end(slot)
//
// Slots are numbers below the engine's max_sequences. One thread calls, between steps of the target.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backend/step.h"
#include "base/ids.h"
#include "base/result.h"
#include "sample/params.h"
#include "speculate/draft_cost.h"

namespace tandem {

static_assert(kMaxDraft == kMaxDecodeRows - 1, "the anchor takes a row too");

// A draft: a chain, or a tree of alternatives (parents before children, depth first).
struct Draft {
  int n = 0;
  std::array<TokenId, kMaxDraft> tokens;
  std::array<int8_t, kMaxDraft> parents;  // index of the token before; -1: the anchor. A chain: i - 1
  // Chains for rejection sampling: the distributions that the tokens were drawn from, [n, n_vocab]; empty:
  // all mass on each token.
  std::vector<float> q;
  int match = 0;  // a lookup: equal tokens before the place where it was found; else 0

  bool is_chain() const {
    for (int i = 0; i < n; ++i) {
      if (parents[size_t(i)] != i - 1) return false;
    }
    return true;
  }
  void clear() {
    n = 0;
    match = 0;
    q.clear();
  }
  // Appends to a chain. False if it is full.
  bool push(TokenId token) {
    if (n == kMaxDraft) return false;
    parents[size_t(n)] = int8_t(n - 1);
    tokens[size_t(n++)] = token;
    return true;
  }
};

// A sequence as it begins. Spans live for the call only.
struct DraftedSequence {
  std::span<const TokenId> prompt;
  // The first position that will be observed; those before came from a cache. Drafts may be worse for it.
  int start = 0;
  const SamplingParams* sampling = nullptr;
  int n_tokens = 0;      // ids from here on are never chosen
  bool wants_q = false;  // rejection sampling: say what drafts were drawn from
};

// Rows of the target's last step that are committed now: row rows[i] is position start + i of the sequence in
// `slot`.
struct Observation {
  int slot = 0;
  int start = 0;
  std::span<const int32_t> rows;
  std::span<const TokenId>
      text;  // all that is known so far: the prompt, or prompt and output with the new anchor
};

struct DraftRequest {
  int slot = 0;
  int max = 0;         // tokens wanted at most (of a path, in a tree), >= 1
  int tree_nodes = 0;  // 0: a chain; else a tree of at most so many tokens
  std::span<const TokenId>
      text;                // prompt and output; the last one is the anchor, all before it have been observed
  Draft* draft = nullptr;  // cleared; stays empty where the drafter has nothing to say
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual std::string_view name() const = 0;
  virtual DraftCost cost() const = 0;  // how the time of a draft depends on its length
  virtual int max_draft() const = 0;   // tokens of a chain at most, <= kMaxDraft
  virtual bool makes_trees() const { return false; }
  // Who is asked for drafts: in each round one of these, the one that promises most. Those whose drafts are
  // free come first. At most kMaxSources, the same at every call; they live in this drafter.
  virtual std::vector<Drafter*> sources() { return {this}; }
  static constexpr int kMaxSources = 2;
  // 0: an honest drafter. Else drafts are accepted with this probability each, whatever the target says: the
  // output is a simulation, for measuring speed at shapes without weights.
  virtual double simulated_acceptance() const { return 0; }

  // Errors: no room for the sequence.
  virtual Status begin(int slot, const DraftedSequence& sequence) = 0;
  virtual void end(int slot) = 0;
  // Prompt chunks and verify steps alike. Every position from DraftedSequence::start on is observed once, in
  // order.
  virtual void observe(std::span<const Observation> steps) = 0;
  virtual void propose(std::span<const DraftRequest> requests) = 0;
};

}  // namespace tandem
