// `tandem quantize`: a Hugging Face checkpoint folder -> a quantised one in the layout of MLX (see
// mlx_plan.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "format/config.h"

namespace tandem {

struct QuantizeProgress {
  std::string_view tensor;  // being written; valid during the call
  uint64_t bytes_done = 0;  // of the output
  uint64_t bytes_total = 0;
};

struct QuantizeOptions {
  std::string input;   // folder with config.json and safetensors, not quantised
  std::string output;  // must not exist, or be an empty folder (no link, no mount point)
  QuantParams params;
  int n_threads = 1;
  uint64_t max_shard_bytes = 5'000'000'000;
  std::function<void(const QuantizeProgress&)>
      on_progress;                  // may be empty; called often, from the calling thread
  std::function<bool()> stop = {};  // may be empty; asked as often: true ends the work and removes its files
};

struct QuantizeReport {
  size_t n_tensors = 0;    // of the checkpoint that were used
  size_t n_quantised = 0;  // matrices, a stack of experts counting as one
  size_t n_shards = 0;
  uint64_t input_bytes = 0, output_bytes = 0;  // of tensors
  double relative_rms_error = 0;    // of all quantised matrices: |w - decoded| / |w|, Euclidean norms
  std::vector<std::string> plain;   // matrices left as they are: rows are no whole number of groups
  size_t n_vision = 0;              // tensors of a vision tower that were left out
  std::vector<std::string> copied;  // files taken over: tokenizer, chat template, generation_config
};

// Writes into a temporary folder beside `output` and renames it at the end: `output` is complete or absent.
// Tensors are streamed a few MiB at a time; besides that only the scales and biases of one matrix are held.
// Each output file follows the input bit for bit, whatever n_threads. Errors: `stop`; everything that opening
// the input can say; a value that is NaN or infinite (tensor and index); output that exists; a disk that
// cannot be written or is too small (how much is needed).
Result<QuantizeReport> quantize_folder(const QuantizeOptions& options);

}  // namespace tandem
