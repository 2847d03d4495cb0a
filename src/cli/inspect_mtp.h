// tandem inspect --probe-mtp: which hidden states the model's MTP head was trained with.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/json.h"
#include "cli/model_flags.h"

namespace tandem {

struct MtpProbeReport {
  Json json;
  std::string text;
};

// prompts: a file of them (cli/prompts.h); empty: twenty of our own. Errors: no head that fits; prompts that
// cannot be read; Ctrl-C.
Result<MtpProbeReport> report_mtp_probe(const ModelFlags& flags, const std::string& prompts);

}  // namespace tandem
