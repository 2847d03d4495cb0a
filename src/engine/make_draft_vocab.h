// Chooses the part of the vocabulary that a drafter shall have a head for: what the model says most.
#pragma once

#include <functional>
#include <span>

#include "engine/loaded_model.h"
#include "format/draft_vocab.h"

namespace tandem {

// `size` ids: stop and special tokens, white space and digits first, then what the model finds most probable
// next, or is written, in the first three quarters of `text`, then the lowest ids. Coverage is measured on
// the last quarter. `stop` is asked between steps: true ends the work, an error. Errors: too short a text; a
// size that does not fit; too small a coverage.
Result<DraftVocab> make_draft_vocab(const LoadedModel& model, std::span<const TokenId> text, int size,
                                    const std::function<bool()>& stop = {});

}  // namespace tandem
