// tandem draft-vocab: the part of the vocabulary that an MTP head shall draft from.
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/model_flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "engine/make_draft_vocab.h"
#include "format/safetensors_writer.h"

namespace tandem {
namespace {

constexpr const char* kCommand = "draft-vocab";

constexpr const char* kExamples =
    "tandem draft-vocab --model DIR --text sample.txt --size 32000 --output draft_vocab.json\n"
    "tandem generate --model DIR --drafter mtp --draft-vocab draft_vocab.json --prompt 'def main():'";

struct Flags {
  ModelFlags model;
  std::string text, output;
  int size = 32000;
  bool json = false;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(
      kCommand,
      "Chooses the tokens that an MTP head drafts from: its head has one row for each and is read "
      "for every draft. Tokens outside are never drafted, and still chosen by the model.",
      kExamples);
  flags.model.add_model(options);
  options.add("--text", &flags.text, "FILE",
              "Text of the kind that the model shall write; - is standard input", {.required = true});
  options.add("-o,--output", &flags.output, "FILE", "Where to write it", {.required = true});
  options.section("Options");
  options.add("--size", &flags.size, "N", fmt::format("Tokens [{}]", flags.size), {.min = 1});
  options.flag("--json", flags.json, "Print one JSON object");
  flags.model.add_backend(options);
  return options.parse(args);
}

Result<DraftVocab> make(const Flags& flags) {
  TD_RETURN_IF_ERROR(flags.model.check_reads_text());
  TD_ASSIGN_OR_RETURN(const std::string text, read_text(flags.text));
  TD_ASSIGN_OR_RETURN(const LoadedModel model, flags.model.load(kCommand, kMaxDecodeRows));
  if (!model.tokenizer) return Error{model.name + ": has no tokenizer to read the text with"};
  TD_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, model.tokenizer->encode(text, SpecialTokens::plain));
  watch_interrupt();
  TD_ASSIGN_OR_RETURN(DraftVocab vocab, make_draft_vocab(model, ids, flags.size, interrupted));
  const std::string file = draft_vocab_text(vocab);
  TD_RETURN_IF_ERROR(write_file_atomically(flags.output, std::as_bytes(std::span(file))));
  return vocab;
}

}  // namespace

int run_draft_vocab(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  const Result<DraftVocab> vocab = make(flags);
  if (!vocab.ok()) {
    fail(kCommand, vocab.error().message);
    return interrupted() ? kInterrupted : kFailed;
  }
  Output out;
  out.write(
      flags.json
          ? json_line({{"output", flags.output},
                       {"size", vocab->ids.size()},
                       {"vocab_size", vocab->vocab_size},
                       {"coverage", vocab->coverage}})
          : fmt::format("{}: {} of {} tokens, {:.1f}% of what the model says in text that was held back\n",
                        flags.output, vocab->ids.size(), vocab->vocab_size, 100 * vocab->coverage));
  return out.finish(kCommand, kDone);
}

}  // namespace tandem
