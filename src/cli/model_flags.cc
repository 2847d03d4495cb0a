#include "cli/model_flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "backend/step.h"
#include "base/mapped_file.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "model/published_shapes.h"

namespace tandem {

void ModelFlags::add_model(Options& options) {
  options.add("-m,--model", &model, "DIR", "Checkpoint folder, or synth:NAME[@bits][,layers=N]",
              {.required = true});
}

void add_backend_choice(Options& options, BackendOptions& backend) {
  std::vector<std::string> names = backend_names();
  names.insert(names.begin(), "auto");
  options.add("--backend", &backend.name, "NAME", "auto, reference, cpu or (where built in) cuda [auto]",
              {.choices = names});
  options.add("--isa", &backend.isa, "NAME", "auto, portable, avx2 or avx512 [auto]",
              {.choices = {"auto", "portable", "avx2", "avx512"}});
  options.add(
      "--delta", &backend.delta, "FORM",
      "Delta rule where drafts are verified: exact, or closed, where near-ties may fall otherwise than in "
      "plain decoding [exact]",
      {.choices = {"exact", "closed"}});
}

void ModelFlags::add_backend(Options& options) {
  options.section("Device");
  options.add("--threads", &backend.threads, "N", "Threads [one per core]", {.min = 1, .max = 1024});
  add_backend_choice(options, backend);
}

void ModelFlags::add_limits(Options& options) {
  options.add("--context", &context, "N", "Positions for prompt and answer together [the model's]",
              {.min = 1});
  options.add("--prefill-chunk", &prefill_chunk, "N", "Prompt tokens per step, a multiple of 64 [512]",
              {.min = kChunkTokens, .max = 65536});
}

Status ModelFlags::check() const {
  if (prefill_chunk % kChunkTokens != 0) {
    return Error{
        fmt::format("--prefill-chunk: expected a multiple of {}, found {}", kChunkTokens, prefill_chunk)};
  }
  return {};
}

Status ModelFlags::check_reads_text() const {
  if (!is_synthetic(model) && (is_absent(model) || !is_absent(model + "/tokenizer.json"))) return {};
  return Error{fmt::format(
      "{}: no tokenizer.json, so text cannot be read: give token ids, as --prompt-tokens", model)};
}

Result<LoadedModel> ModelFlags::load(std::string_view command, int max_logit_rows) const {
  Progress progress("loading");
  return load_model({.model = model,
                     .backend = backend,
                     .limits = {.max_rows = prefill_chunk, .max_logit_rows = max_logit_rows},
                     .progress = [&](uint64_t done, uint64_t total,
                                     const std::string& what) { progress.update(done, total, what); },
                     .warn = [&](const std::string& text) { warn(command, text); }});
}

Result<int> ModelFlags::context_of(const LoadedModel& loaded) const {
  const int most = loaded.config.context;
  if (context && *context > most) {
    return Error{fmt::format("--context {}: the model's context is {}", *context, most)};
  }
  return context.value_or(most);
}

void SamplingFlags::add_to(Options& options) {
  constexpr double kLeastShare = 1e-6;  // of what the sampler takes above 0
  options.section("Answer");
  options.add("--max-tokens", &max_tokens, "N", fmt::format("Most tokens of the answer [{}]", max_tokens),
              {.min = 1});
  options.add("--temperature", &temperature, "T",
              "0: always the most probable token [the checkpoint's, else 0]", {.min = 0, .max = 1e6});
  options.add("--top-k", &top_k, "K", "Choose among the K most probable; 0: all [the checkpoint's]",
              {.min = 0});
  options.add("--top-p", &top_p, "P", "Choose among the most probable of this mass [the checkpoint's]",
              {.min = kLeastShare, .max = 1});
  options.add("--min-p", &min_p, "P", "Drop what is less probable than P times the best [the checkpoint's]",
              {.min = 0, .max = 1});
  options.add("--repetition-penalty", &repetition_penalty, "R", "Of tokens seen so far; 1: none",
              {.min = kLeastShare, .max = 10});
  options.add("--presence-penalty", &presence_penalty, "X", "Of tokens in the answer, once each; 0: none",
              {.min = -2, .max = 2});
  options.add("--frequency-penalty", &frequency_penalty, "X", "Of tokens in the answer, per use; 0: none",
              {.min = -2, .max = 2});
  options.add("--seed", &seed, "N", "The same seed draws the same answer [0]");
  options.add("--stop", &stop, "TEXT", "End before this text; may be repeated");
  options.flag("--ignore-eos", ignore_eos, "Take end-of-text tokens as ordinary ones");
}

Status SamplingFlags::check() const {
  if (std::find(stop.begin(), stop.end(), "") != stop.end())
    return Error{"--stop: expected a text to stop at, found nothing"};
  return {};
}

void SpeculationFlags::add_to(Options& options, std::vector<std::string>* names) {
  options.section(
      "Speculation (changes no token, except by simulated:P, --delta closed, --accept but coupled)");
  const std::string help =
      "auto, dflash, mtp, ngram, dflash+ngram, mtp+ngram, simulated:P or none; auto: the fastest of "
      "DIR-dflash "
      "beside the model, its own MTP head and lookup [auto]";
  if (names != nullptr) {
    options.add("--drafter", names, "NAME", "May be repeated: " + help);
  } else {
    options.add("--drafter", &drafter, "NAME", help);
  }
  options.add("--draft", &folder, "DIR", "Folder of a DFlash drafter [the model's with -dflash]");
  options.add("--draft-bits", &draft_bits, "N",
              "Quantise a drafter's dense weights as it is loaded: 8 or 4; 0: as they are [8]",
              {.min = 0, .max = 8});
  options.add("--draft-vocab", &draft_vocab, "FILE",
              "Tokens that an MTP head drafts from, made by tandem draft-vocab [all]");
  options.add("--draft-length", &length, "L", "auto, fixed:N or kod [auto]");
  options.add("--tree", &tree_nodes, "N",
              "Verify trees of N drafted tokens, where the drafter makes them; 0: chains [0]",
              {.min = 0, .max = kMaxDraft});
  options.add(
      "--accept", &accept, "RULE",
      "coupled: the tokens of plain decoding; rejection: their distribution; lenient:A: neither [coupled]");
}

Status SpeculationFlags::check() const {
  if (const Status known = check_drafter_name(drafter); !known.ok()) {
    return Error{"--drafter: " + known.error().message};
  }
  if (draft_bits != 0 && draft_bits != 4 && draft_bits != 8) {
    return Error{fmt::format("--draft-bits: expected 0, 4 or 8, found {}", draft_bits)};
  }
  if (const auto parsed = parse_length_options(length); !parsed.ok()) {
    return Error{"--draft-length: " + parsed.error().message};
  }
  if (const auto parsed = parse_accept_options(accept); !parsed.ok()) {
    return Error{"--accept: " + parsed.error().message};
  }
  return {};
}

Result<SpeculationFlags::Drafters> SpeculationFlags::load(LoadedModel& model, const DraftLimits& limits,
                                                          bool for_one) const {
  TD_ASSIGN_OR_RETURN(Drafters loaded, load_drafters(model,
                                                     {.name = drafter,
                                                      .folder = folder,
                                                      .bits = draft_bits,
                                                      .limits = limits,
                                                      .draft_vocab = draft_vocab},
                                                     for_one));
  TD_ASSIGN_OR_RETURN(const LengthOptions wanted, parse_length_options(length));
  int most = 0;
  bool trees = false;
  for (const auto& d : loaded) {
    most = std::max(most, d->max_draft());
    trees = trees || d->makes_trees();
  }
  if (tree_nodes > 0 && !loaded.empty() && !trees) {
    return Error{fmt::format("--tree {}: the drafter {} makes no trees: use --drafter dflash", tree_nodes,
                             loaded[0]->name())};
  }
  if (wanted.kind == LengthOptions::Kind::fixed && !loaded.empty() && wanted.fixed > most) {
    return Error{fmt::format("--draft-length fixed:{}: the drafter {} makes at most {} tokens at a time",
                             wanted.fixed, loaded[0]->name(), most)};
  }
  return loaded;
}

void SpeculationFlags::apply(const Drafters& loaded, EngineOptions& options) const {
  for (const auto& d : loaded) options.drafters.push_back(d.get());
  options.tree_nodes = tree_nodes;
  if (const auto parsed = parse_length_options(length); parsed.ok()) options.length = *parsed;
  if (const auto parsed = parse_accept_options(accept); parsed.ok()) options.accept = *parsed;
}

SamplingParams SamplingFlags::params(const LoadedModel& model) const {
  SamplingParams p = default_sampling(model.generation);
  const auto set = [](auto& target, const auto& given) {
    if (given) target = std::remove_reference_t<decltype(target)>(*given);
  };
  set(p.temperature, temperature);
  set(p.top_k, top_k);
  set(p.top_p, top_p);
  set(p.min_p, min_p);
  set(p.repetition_penalty, repetition_penalty);
  set(p.presence_penalty, presence_penalty);
  set(p.frequency_penalty, frequency_penalty);
  p.seed = seed;
  if (!ignore_eos) p.stop_ids = model.stop_ids;
  return p;
}

Result<std::string> read_text(const std::string& path) {
  if (path.empty()) return Error{"the file to read has no name (- is standard input)"};
  const bool standard = path == "-";
  const auto close = [](std::FILE* f) {
    if (f != stdin) std::fclose(f);
  };
  const std::unique_ptr<std::FILE, decltype(close)> file(standard ? stdin : std::fopen(path.c_str(), "rb"),
                                                         close);
  const std::string shown = standard ? "standard input" : path;
  if (!file) return Error{fmt::format("{}: {}", shown, std::strerror(errno))};
  std::string text;
  char block[1 << 16];
  constexpr size_t kMax = size_t{1} << 30;  // what a tokenizer takes
  // A short read is the end: reading on would ask a terminal for a second Ctrl-D.
  size_t n = sizeof block;
  while (n == sizeof block) {
    n = std::fread(block, 1, sizeof block, file.get());
    text.append(block, n);
    if (text.size() > kMax)
      return Error{fmt::format("{}: more than {} bytes of text, which is the most", shown, kMax)};
  }
  if (std::ferror(file.get())) return Error{fmt::format("{}: {}", shown, std::strerror(errno))};
  return text;
}

}  // namespace tandem
