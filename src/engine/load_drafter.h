// --drafter NAME -> a Drafter for a loaded model.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/loaded_model.h"
#include "speculate/dflash_drafter.h"
#include "speculate/drafter.h"

namespace tandem {

struct DrafterOptions {
  // none, auto, dflash, mtp, ngram, or simulated:P (accepted by lot with probability P each). auto: the
  // folder
  // `<model>-dflash` beside the model, else the model's own MTP head, else ngram.
  std::string name = "auto";
  std::string folder;  // of a DFlash drafter; empty: `<model>-dflash`
  int bits = 8;        // quantise a drafter's dense weights so, as it is loaded; 0: leave them as they are
  DraftLimits limits;
  std::optional<MtpOptions> mtp = {};  // of the MTP head, in place of what config.json says
};

// Errors: a name that is none of the above; a probability outside (0, 1].
Status check_drafter_name(const std::string& name);

// Null for none. Errors: an unknown name; a folder or a head that is missing; a drafter that does not fit the
// model; memory.
Result<std::unique_ptr<Drafter>> load_drafter(LoadedModel& model, const DrafterOptions& options);

}  // namespace tandem
