// --drafter NAME -> a Drafter for a loaded model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/loaded_model.h"
#include "speculate/dflash_drafter.h"
#include "speculate/drafter.h"

namespace tandem {

// Where a model's DFlash drafter is looked for: beside it, under its name with this behind.
inline constexpr std::string_view kDflashSuffix = "-dflash";
std::string dflash_folder_of(const std::string& model);

struct DrafterOptions {
  // none, auto, dflash, mtp, ngram, dflash+ngram, mtp+ngram (lookup_first.h), or simulated:P (accepted by lot
  // with probability P each). auto: what is there of the folder
  // `<model>-dflash` beside the model, the model's own MTP head, and lookup.
  std::string name = "auto";
  std::string folder;  // of a DFlash drafter; empty: `<model>-dflash`
  int bits = 8;        // quantise a drafter's dense weights so, as it is loaded; 0: leave them as they are
  DraftLimits limits;
  std::string draft_vocab = {};        // of the MTP head, a file (format/draft_vocab.h); empty: all tokens
  std::optional<MtpOptions> mtp = {};  // of the MTP head, in place of what config.json says
};

// Errors: a name that is none of the above; a probability outside (0, 1].
Status check_drafter_name(const std::string& name);

// The drafters that a name stands for, the one to begin with first: several for auto (or its first only, with
// `first_only`: a single answer uses no more), none for none. A model that fits in the caches is bound by
// arithmetic, so its one-layer MTP head comes before a block drafter's whole pass; else memory is the limit,
// and one pass for many tokens is cheaper. Errors: a folder or a head that is missing; a drafter that does
// not fit the model; memory.
Result<std::vector<std::unique_ptr<Drafter>>> load_drafters(LoadedModel& model, const DrafterOptions& options,
                                                            bool first_only = false);

// The first of them; null for none.
Result<std::unique_ptr<Drafter>> load_drafter(LoadedModel& model, const DrafterOptions& options);

}  // namespace tandem
