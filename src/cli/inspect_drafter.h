// tandem inspect: what a DFlash drafter's folder is for, and which drafters a model has.
#pragma once

#include <functional>
#include <string>

#include "cli/json.h"
#include "cli/model_flags.h"
#include "format/drafter_config.h"
#include "model/checkpoint_source.h"

namespace tandem {

struct DrafterFacts {
  Json json;
  std::string text;  // lines
};

// Of the drafter in `folder`: method, block, what it reads of its target, and whether the model beside it
// (the folder's name without -dflash) is one it fits.
DrafterFacts drafter_facts(const std::string& folder, const DrafterConfig& drafter);
// The drafters that --drafter auto would find for the model in `folder`.
DrafterFacts drafters_of_model(const std::string& folder, const ModelConfig& model,
                               const CheckpointExtras& extras);
// Reads every tensor of the drafter that --model names; where the model beside it fits, loads both as well.
// `warn` hears of values that are no numbers. Errors: what is missing, misshapen or does not load.
Status check_drafter(const ModelFlags& flags, const std::function<void(const std::string&)>& warn);

}  // namespace tandem
