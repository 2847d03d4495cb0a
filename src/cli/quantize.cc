// tandem quantize: a Hugging Face checkpoint folder -> a quantised one.
#include "quant/quantize_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "engine/loaded_model.h"
#include "quant/affine.h"

namespace tandem {
namespace {

constexpr const char* kCommand = "quantize";

constexpr const char* kExamples =
    "tandem quantize --model DIR --output DIR-4bit --bits 4\n"
    "tandem quantize --model DIR --output DIR-8bit --bits 8 --group 32 --json";

struct Flags {
  std::string model, output;
  int bits = 8, group = 64, threads = 0, shard_mb = 5000;
  bool json = false;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(
      kCommand,
      "Writes a checkpoint folder with quantised matrices in the layout of MLX; tokenizer, template "
      "and defaults come along. The output is complete or absent.",
      kExamples);
  options.add("-m,--model", &flags.model, "DIR", "Checkpoint folder, not quantised", {.required = true});
  options.add("-o,--output", &flags.output, "DIR", "Folder to make; must not exist or be empty",
              {.required = true});
  options.add("--bits", &flags.bits, "N", "2, 3, 4, 5, 6 or 8 bits per weight [8]");
  options.add("--group", &flags.group, "N", "Weights that share a scale: 32, 64 or 128 [64]");
  options.add("--shard-mb", &flags.shard_mb, "N", "Largest output file in MB [5000]", {.min = 1});
  options.add("--threads", &flags.threads, "N", "Threads [one per core]", {.min = 1, .max = 1024});
  options.flag("--json", flags.json, "Print one JSON object");
  if (const auto code = options.parse(args)) return code;
  if (!is_affine_bits(flags.bits)) {
    return misuse(kCommand, fmt::format("--bits: expected one of {}, found {}", fmt::join(kAffineBits, ", "),
                                        flags.bits));
  }
  if (!is_affine_group(flags.group)) {
    return misuse(kCommand, fmt::format("--group: expected one of {}, found {}",
                                        fmt::join(kAffineGroups, ", "), flags.group));
  }
  return std::nullopt;
}

Json to_json(const QuantizeReport& r, const Flags& flags) {
  return {{"output", flags.output},
          {"bits", flags.bits},
          {"group_size", flags.group},
          {"tensors", r.n_tensors},
          {"quantised", r.n_quantised},
          {"plain", r.plain},
          {"vision_left_out", r.n_vision},
          {"files", r.n_shards},
          {"copied", r.copied},
          {"input_bytes", r.input_bytes},
          {"output_bytes", r.output_bytes},
          {"relative_rms_error", r.relative_rms_error}};
}

std::string to_text(const QuantizeReport& r, const Flags& flags) {
  std::string out = fmt::format(
      "{}: {} of {} tensors with {} bits in groups of {}; {:.2f} MB -> {:.2f} MB; relative RMS error "
      "{:.2e}\n",
      flags.output, r.n_quantised, r.n_tensors, flags.bits, flags.group, double(r.input_bytes) / 1e6,
      double(r.output_bytes) / 1e6, r.relative_rms_error);
  if (!r.plain.empty()) {
    out += fmt::format("left as they are, because a row is no whole number of groups: {}\n",
                       fmt::join(r.plain, ", "));
  }
  if (r.n_vision > 0) out += fmt::format("left out: {} tensors of a vision tower\n", r.n_vision);
  if (!r.copied.empty()) out += fmt::format("taken over: {}\n", fmt::join(r.copied, ", "));
  return out;
}

}  // namespace

int run_quantize(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  // What could not be loaded now could not be loaded afterwards: found before anything is written.
  if (const Status status = check_model(flags.model, {}); !status.ok())
    return fail(kCommand, status.error().message);
  watch_interrupt();
  auto progress = std::make_unique<Progress>("quantising");
  const Result<QuantizeReport> result = quantize_folder(
      {.input = flags.model,
       .output = flags.output,
       .params = {.bits = flags.bits, .group_size = flags.group},
       .n_threads = flags.threads > 0 ? flags.threads : usable_cores(),
       .max_shard_bytes = uint64_t(flags.shard_mb) * 1'000'000,
       .on_progress =
           [&](const QuantizeProgress& p) { progress->update(p.bytes_done, p.bytes_total, p.tensor); },
       .stop = interrupted});
  progress.reset();
  if (!result.ok()) {
    fail(kCommand, result.error().message);
    return interrupted() ? kInterrupted : kFailed;
  }
  Output out;
  out.write(flags.json ? json_line(to_json(*result, flags)) : to_text(*result, flags));
  return out.finish(kCommand, kDone);
}

}  // namespace tandem
