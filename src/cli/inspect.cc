// tandem inspect: what is in a checkpoint, what it needs in memory, what will run where.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/mapped_file.h"
#include "cli/command.h"
#include "cli/inspect_drafter.h"
#include "cli/inspect_mtp.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/machine.h"
#include "cli/model_flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "format/checkpoint.h"
#include "format/drafter_config.h"
#include "format/generation_config.h"
#include "model/checkpoint_source.h"
#include "model/load.h"
#include "model/published_shapes.h"
#include "state/state_pool.h"

namespace tandem {
namespace {

constexpr const char* kCommand = "inspect";

constexpr const char* kExamples =
    "tandem inspect --model models/tandem-demo\n"
    "tandem inspect --model synth:qwen3.5-27b@4\n"
    "tandem inspect --model DIR --check --json\n"
    "tandem inspect --model DIR --probe-mtp --prompts bench/prompts/code.jsonl";

struct Flags {
  ModelFlags model;
  bool check = false, json = false, probe_mtp = false;
  std::string prompts;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(kCommand, "Shows what a checkpoint holds, what memory it needs and what will run it.",
                  kExamples);
  flags.model.add_model(options);
  options.section("Options");
  options.flag("--check", flags.check,
               "Load it too: finds wrong shapes, missing tensors and values that are no numbers");
  options.flag(
      "--probe-mtp", flags.probe_mtp,
      "Draft with the MTP head, from hidden states before and after the norms: which it was made for");
  options.add(
      "--prompts", &flags.prompts, "FILE",
      "For --probe-mtp: JSON lines, {\"prompt\": text} or {\"prompt_tokens\": [ids]} [20 of our own]");
  options.flag("--json", flags.json, "Print one JSON object");
  flags.model.add_backend(options);
  if (const auto code = options.parse(args)) return code;
  if (!flags.prompts.empty() && !flags.probe_mtp)
    return misuse(kCommand, "--prompts is for --probe-mtp: give both or neither");
  return std::nullopt;
}

std::string size_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.2f} MB", bytes / 1e6);
  return fmt::format("{:.1f} kB", bytes / 1e3);
}

std::string count_text(double n) {
  if (n >= 1e9) return fmt::format("{:.2f} billion", n / 1e9);
  if (n >= 1e6) return fmt::format("{:.2f} million", n / 1e6);
  return fmt::format("{:.0f}", n);
}

Json quantisation_json(const ModelConfig& c) {
  if (!c.quantised()) return nullptr;
  return {{"bits", c.quantization.global->bits},
          {"group_size", c.quantization.global->group_size},
          {"exceptions", c.quantization.modules.size()}};
}

Json config_json(const ModelConfig& c) {
  Json out{{"model_type", c.model_type},
           {"architecture_class", c.architecture_class},
           {"n_layers", c.n_layers},
           {"n_full_attention_layers", c.n_full_attention_layers()},
           {"n_delta_layers", c.n_layers - c.n_full_attention_layers()},
           {"d_model", c.d_model},
           {"d_ff", c.d_ff},
           {"n_heads", c.n_heads},
           {"n_kv_heads", c.n_kv_heads},
           {"d_head", c.d_head},
           {"vocab_size", c.vocab_size},
           {"context", c.context},
           {"tied_embeddings", c.tied_embeddings},
           {"dtype", std::string(dtype_name(c.dtype))},
           {"quantisation", quantisation_json(c)}};
  if (c.hybrid()) {
    out["delta"] = {{"n_k_heads", c.n_linear_k_heads},
                    {"n_v_heads", c.n_linear_v_heads},
                    {"d_k", c.d_linear_k},
                    {"d_v", c.d_linear_v}};
  }
  if (c.moe()) {
    out["experts"] = {
        {"n", c.n_experts}, {"top_k", c.top_k}, {"d", c.d_expert}, {"d_shared", c.d_shared_expert}};
  }
  return out;
}

std::string config_text(const ModelConfig& c) {
  const int full = c.n_full_attention_layers();
  std::string out = fmt::format("architecture   {}{}\n", c.model_type,
                                c.architecture_class.empty() ? "" : " (" + c.architecture_class + ")");
  out += c.hybrid() ? fmt::format("layers         {}: {} Gated DeltaNet, {} full attention\n", c.n_layers,
                                  c.n_layers - full, full)
                    : fmt::format("layers         {}\n", c.n_layers);
  out += fmt::format("width          {}{}\n", c.d_model,
                     c.d_ff > 0 ? fmt::format(", feed-forward {}", c.d_ff) : "");
  if (c.moe()) {
    out += fmt::format("experts        {} of width {}, {} per token{}\n", c.n_experts, c.d_expert, c.top_k,
                       c.d_shared_expert > 0 ? fmt::format(", a shared one of {}", c.d_shared_expert) : "");
  }
  out += fmt::format("attention      {} heads of {}, {} KV heads\n", c.n_heads, c.d_head, c.n_kv_heads);
  if (c.hybrid()) {
    out += fmt::format("delta          {} key heads of {}, {} value heads of {}\n", c.n_linear_k_heads,
                       c.d_linear_k, c.n_linear_v_heads, c.d_linear_v);
  }
  out += fmt::format("vocabulary     {}{}\n", c.vocab_size,
                     c.tied_embeddings ? ", head tied to the embedding" : "");
  out += fmt::format("context        {}\n", c.context);
  out += c.quantised() ? fmt::format("weights        {} bits, groups of {}{}\n", c.quantization.global->bits,
                                     c.quantization.global->group_size,
                                     c.quantization.modules.empty()
                                         ? ""
                                         : fmt::format(", {} exceptions", c.quantization.modules.size()))
                       : fmt::format("weights        {}\n", dtype_name(c.dtype));
  return out;
}

// Weights of the model as numbers, whatever they are stored as: a quantised matrix counts its values, not its
// codes.
uint64_t parameters_of(const Checkpoint& checkpoint, const ModelConfig& config) {
  uint64_t n = 0;
  for (const HostTensor& t : checkpoint.tensors()) {
    const auto module_of = [&](std::string_view suffix) {
      return t.name.substr(0, t.name.size() - suffix.size());
    };
    if (t.name.ends_with(".biases") && checkpoint.has(module_of("biases") + "scales")) continue;
    if (t.name.ends_with(".scales")) {
      const auto params = config.quantization.params_for(module_of(".scales"));
      n += uint64_t(t.elements()) * uint64_t(params ? params->group_size : 0);
    } else if (!t.name.ends_with(".weight") || !checkpoint.has(module_of("weight") + "scales")) {
      n += uint64_t(t.elements());
    }
  }
  return n;
}

// Those that change anything: a greedy answer too.
std::string penalties_text(const SamplingParams& p) {
  std::string out;
  if (p.repetition_penalty != 1) out += fmt::format(", repetition penalty {}", p.repetition_penalty);
  if (p.presence_penalty != 0) out += fmt::format(", presence penalty {}", p.presence_penalty);
  if (p.frequency_penalty != 0) out += fmt::format(", frequency penalty {}", p.frequency_penalty);
  return out;
}

// What was found, as text and as JSON, up to the first thing that is wrong.
class Report {
 public:
  Report(const Flags& flags) : flags_(flags) { json_["model"] = flags.model.model; }

  Status inspect() {
    ModelConfig config;
    if (!is_synthetic(flags_.model.model) && is_drafter_folder(flags_.model.model)) return inspect_drafter();
    if (is_synthetic(flags_.model.model)) {
      TD_ASSIGN_OR_RETURN(config, parse_synthetic(flags_.model.model));
      add_config(config);
      ModelConfig plain = config;
      plain.quantization.global.reset();
      add_parameters(weight_bytes_of(plain) / dtype_bytes(plain.dtype));
    } else {
      TD_RETURN_IF_ERROR(add_files());
      TD_ASSIGN_OR_RETURN(config, load_model_config(flags_.model.model));
      add_config(config);
      TD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(flags_.model.model));
      const CheckpointExtras extras = checkpoint_extras(checkpoint);
      add_tensors(checkpoint, extras, config);
      const DrafterFacts drafters = drafters_of_model(flags_.model.model, config, extras);
      json_["drafters"] = drafters.json;
      text_ += drafters.text;
      TD_RETURN_IF_ERROR(add_text_files());
    }
    TD_RETURN_IF_ERROR(add_memory(config));
    if (flags_.check) TD_RETURN_IF_ERROR(check());
    return flags_.probe_mtp ? probe_mtp() : Status{};
  }

  int print(const Status& status) {
    Output out;
    if (!status.ok()) json_["error"] = status.error().message;
    if (flags_.json) {
      out.write(json_line(json_));
    } else if (!text_.empty()) {
      out.write(terminal_safe(flags_.model.model + "\n" + text_));
    }
    const int code = out.finish(kCommand, kDone);
    if (code != kDone || status.ok()) return code;
    fail(kCommand, status.error().message);
    return interrupted() ? kInterrupted : kFailed;
  }

 private:
  Status inspect_drafter() {
    const std::string& folder = flags_.model.model;
    TD_RETURN_IF_ERROR(add_files());
    TD_ASSIGN_OR_RETURN(const DrafterConfig config, load_drafter_config(folder));
    const DrafterFacts facts = drafter_facts(folder, config);
    json_["drafter"] = facts.json;
    text_ += facts.text;
    add_config(config.network);
    TD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
    add_tensors(checkpoint, {}, config.network);
    if (flags_.probe_mtp) return Error{folder + ": a DFlash drafter, which has no MTP head to probe"};
    if (!flags_.check) return {};
    std::vector<std::string> damaged;
    const Status status = check_drafter(flags_.model, [&](const std::string& w) { damaged.push_back(w); });
    return add_check(status, damaged, damaged, "");
  }

  Status add_files() {
    const std::string& folder = flags_.model.model;
    std::error_code error;
    std::map<std::string, uint64_t> files;
    for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
         it.increment(error)) {
      if (it->is_regular_file(error) && !error) files[it->path().filename().string()] = it->file_size(error);
    }
    if (error) return Error{fmt::format("{}: {}", folder, error.message())};
    json_["files"] = Json::array();
    for (const auto& [name, bytes] : files) {
      json_["files"].push_back({{"name", name}, {"bytes", bytes}});
      text_ += fmt::format("  {:<34} {:>10}\n", name, size_text(double(bytes)));
    }
    return {};
  }

  void add_config(const ModelConfig& config) {
    json_["config"] = config_json(config);
    text_ += config_text(config);
  }

  void add_parameters(uint64_t n) {
    json_["parameters"] = n;
    text_ += fmt::format("parameters     {}\n", count_text(double(n)));
  }

  void add_tensors(const Checkpoint& checkpoint, const CheckpointExtras& extras, const ModelConfig& config) {
    const auto n = int(checkpoint.tensors().size());
    json_["tensors"] = {{"text", n - extras.n_mtp - extras.n_vision},
                        {"mtp", extras.n_mtp},
                        {"vision", extras.n_vision},
                        {"bytes", checkpoint.total_bytes()}};
    text_ += fmt::format("tensors        {}, {}\n", n, size_text(double(checkpoint.total_bytes())));
    if (extras.n_mtp > 0) text_ += fmt::format("  of an MTP head {}\n", extras.n_mtp);
    if (extras.n_vision > 0) text_ += fmt::format("  of a vision tower {} (skipped)\n", extras.n_vision);
    add_parameters(parameters_of(checkpoint, config));
  }

  Status add_text_files() {
    const std::string& folder = flags_.model.model;
    json_["tokenizer"] = nullptr;
    json_["chat_template"] = false;
    if (!is_absent(folder + "/tokenizer.json")) {
      TD_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(folder));
      json_["tokenizer"] = {{"n_tokens", tokenizer.n_tokens()}};
      const Result<ChatTemplate> chat = ChatTemplate::load(folder);
      json_["chat_template"] = chat.ok();
      text_ += fmt::format("tokenizer      {} tokens; chat template: {}\n", tokenizer.n_tokens(),
                           chat.ok() ? "yes" : "no (" + chat.error().message + ")");
    } else {
      text_ += "tokenizer      none: prompts as --prompt-tokens only\n";
    }
    TD_ASSIGN_OR_RETURN(const GenerationConfig generation, load_generation_config(folder));
    const SamplingParams params = default_sampling(generation);
    json_["temperature"] = json_number(params.temperature);
    text_ += fmt::format("sampling       {}{}\n",
                         params.temperature > 0 ? fmt::format("temperature {}, top-k {}, top-p {}",
                                                              params.temperature, params.top_k, params.top_p)
                                                : "greedy",
                         penalties_text(params));
    return {};
  }

  Status add_memory(const ModelConfig& config) {
    TD_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, make_backend(flags_.model.backend));
    const StateShape shape = state_shape_of(config);
    StateShape recurrent = shape;
    recurrent.n_attention_layers = 0;
    const uint64_t weights = weight_bytes_of(config);
    const uint64_t sequence = StatePool::bytes(*backend, recurrent, {.max_sequences = 1, .max_positions = 0});
    const double kv_1000 = double(shape.n_attention_layers) *
                           double(backend->kv_page_bytes(shape.attention)) * 1000.0 / kPageTokens;
    const uint64_t available = backend->available_bytes();
    const double full = double(weights) + double(sequence) + kv_1000 * config.context / 1000.0;
    json_["memory"] = {{"weight_bytes", weights},
                       {"state_bytes_per_sequence", sequence},
                       {"kv_bytes_per_1000_tokens", uint64_t(kv_1000)},
                       {"full_context_bytes", uint64_t(full)},
                       {"available_bytes", available}};
    json_["backend"] = backend->description();
    text_ += fmt::format("memory         about {} of weights\n", size_text(double(weights)));
    if (sequence > 0) {
      text_ +=
          fmt::format("               {} of recurrent state per sequence\n", size_text(double(sequence)));
    }
    text_ += fmt::format("               {} of keys and values per 1000 tokens\n", size_text(kv_1000));
    text_ += fmt::format("               {} with one full context; {} are available\n", size_text(full),
                         size_text(double(available)));
    text_ += fmt::format("runs on        {}\n", backend->description());
    if (weights + sequence > available) text_ += "               too large for this machine\n";
    return {};
  }

  Status check() {
    std::vector<std::string> damaged, warnings;
    if (!is_synthetic(flags_.model.model)) {
      TD_RETURN_IF_ERROR(
          check_model(flags_.model.model, [&](const std::string& w) { damaged.push_back(w); }));
    }
    const Result<LoadedModel> model =
        load_model({.model = flags_.model.model,
                    .backend = flags_.model.backend,
                    .limits = {.max_rows = kChunkTokens, .max_logit_rows = 1},
                    .progress = {},
                    .warn = [&](const std::string& w) { warnings.push_back(w); }});
    std::erase_if(warnings, [&](const std::string& w) {  // said already
      return std::find(damaged.begin(), damaged.end(), w) != damaged.end();
    });
    warnings.insert(warnings.begin(), damaged.begin(), damaged.end());
    return add_check(model.ok() ? Status{} : model.error(), damaged, warnings,
                     model.ok() ? fmt::format("; loaded in {:.2f} s", model->load_s) : "");
  }

  // The end of a check. loaded: whether tensors are there and fit; damaged: a sentence for each that does but
  // holds no numbers, which `warnings` say too.
  Status add_check(const Status& loaded, const std::vector<std::string>& damaged,
                   const std::vector<std::string>& warnings, const std::string& more) {
    json_["warnings"] = warnings;
    for (const std::string& w : warnings) text_ += "warning        " + w + "\n";
    TD_RETURN_IF_ERROR(loaded);
    if (!damaged.empty()) {
      return Error{
          fmt::format("{}{}", damaged.front(),
                      damaged.size() > 1 ? fmt::format(" (and {} more tensors)", damaged.size() - 1) : "")};
    }
    text_ += "check          every tensor was read and is sound" + more + "\n";
    return {};
  }

  Status probe_mtp() {
    TD_ASSIGN_OR_RETURN(const MtpProbeReport probe, report_mtp_probe(flags_.model, flags_.prompts));
    json_["mtp_probe"] = probe.json;
    text_ += probe.text;
    return {};
  }

  const Flags& flags_;
  Json json_;
  std::string text_;
};

}  // namespace

int run_inspect(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  Report report(flags);
  return report.print(report.inspect());
}

}  // namespace tandem
