// Files of prompts: JSON lines, {"prompt": text} or {"prompt_tokens": [ids]}.
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/loaded_model.h"

namespace tandem {

// Errors: the file and line, with what is wrong; texts without a tokenizer; no prompts.
Result<std::vector<std::vector<TokenId>>> read_prompts(const std::string& path, const LoadedModel& model);

}  // namespace tandem
