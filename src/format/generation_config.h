// generation_config.json: the defaults that a checkpoint's makers suggest for sampling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem {

// Absent fields are nullopt: the caller decides what no opinion means.
struct GenerationConfig {
  bool found = false;            // the folder has the file
  std::vector<int32_t> eos_ids;  // sorted, unique
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
  std::optional<bool> do_sample;
  std::optional<double> temperature;         // >= 0
  std::optional<int> top_k;                  // 0: off
  std::optional<double> top_p;               // in (0, 1]
  std::optional<double> min_p;               // in [0, 1]
  std::optional<double> repetition_penalty;  // in (0, 10]
  std::optional<double> presence_penalty;    // in [-2, 2]
  std::optional<double> frequency_penalty;   // in [-2, 2]
  std::optional<int> max_new_tokens;
};

// Ranges are those of SamplingParams, so that a bad default is an error here, which names file and field.
// Parses the text of a generation_config.json; fields that are not listed above are ignored.
Result<GenerationConfig> parse_generation_config(std::span<const std::byte> text, const std::string& path);

// Of folder/generation_config.json; a folder without the file gives an empty config with found = false.
Result<GenerationConfig> load_generation_config(const std::string& folder);

}  // namespace tandem
