#include "engine/speculation_stats.h"

namespace tandem {

void SpeculationStats::add(const SpeculationStats& o) {
  drafter = rounds == 0 || drafter == o.drafter ? o.drafter : "several";
  simulated = simulated || o.simulated;
  rounds += o.rounds;
  drafted += o.drafted;
  accepted += o.accepted;
  tokens += o.tokens;
  for (size_t i = 0; i < judged_at.size(); ++i) {
    judged_at[i] += o.judged_at[i];
    accepted_at[i] += o.accepted_at[i];
  }
  draft_s += o.draft_s;
  verify_s += o.verify_s;
  other_s += o.other_s;
  plain_s += o.plain_s;
  compared_s += o.compared_s;
}

}  // namespace tandem
