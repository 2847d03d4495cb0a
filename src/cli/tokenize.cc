// tandem tokenize: text to token ids and back.
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/json.h"
#include "cli/model_flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "model/published_shapes.h"
#include "text/tokenizer.h"

namespace tandem {
namespace {

constexpr const char* kCommand = "tokenize";

constexpr const char* kExamples =
    "tandem tokenize --model models/tandem-demo --text 'def f(x):'\n"
    "tandem tokenize --model DIR --file essay.txt --json\n"
    "tandem tokenize --model DIR --decode 1,2,3";

struct Flags {
  std::string model;
  std::optional<std::string> text, file;
  std::optional<std::vector<int>> decode;
  bool plain = false, skip_special = false, json = false;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(kCommand, "Turns text into token ids and ids into text.", kExamples);
  options.add("-m,--model", &flags.model, "DIR", "Checkpoint folder with a tokenizer.json",
              {.required = true});
  options.section("What (one of)");
  options.add("-t,--text", &flags.text, "TEXT", "Text to encode; no special tokens are added");
  options.add("-f,--file", &flags.file, "FILE", "The text of a file; - is standard input");
  options.add("-d,--decode", &flags.decode, "1,2,3", "Ids to decode", {.min = 0});
  options.section("Options");
  options.flag("--plain", flags.plain, "Read special-token strings in the text as ordinary characters");
  options.flag("--skip-special", flags.skip_special, "Leave special tokens out of decoded text");
  options.flag("--json", flags.json, "Print one JSON object");
  if (const auto code = options.parse(args)) return code;
  if (int(flags.text.has_value()) + int(flags.file.has_value()) + int(flags.decode.has_value()) != 1) {
    return misuse(kCommand, "expected one of --text, --file and --decode");
  }
  return std::nullopt;
}

// A token's bytes on one line: what is not printable ASCII or part of a character above it is escaped.
std::string shown(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\') {
      out += "\\\\";
    } else if (u < 0x20 || u >= 0x7f) {
      out += fmt::format("\\x{:02x}", u);
    } else {
      out += c;
    }
  }
  return out;
}

Result<std::string> encode(const Flags& flags, const Tokenizer& tokenizer) {
  std::string text = flags.text.value_or("");
  if (flags.file) {
    TD_ASSIGN_OR_RETURN(text, read_text(*flags.file));
  }
  TD_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                      tokenizer.encode(text, flags.plain ? SpecialTokens::plain : SpecialTokens::recognise));
  if (flags.json) return json_line({{"ids", ids}});
  std::string out;
  for (const TokenId id : ids) {
    out += fmt::format("{:>8}  {}{}\n", id, shown(tokenizer.token_bytes(id)),
                       tokenizer.is_special(id) ? "  (special)" : "");
  }
  return out + fmt::format("{} tokens, {} bytes\n", ids.size(), text.size());
}

Result<std::string> decode(const Flags& flags, const Tokenizer& tokenizer) {
  for (const TokenId id : *flags.decode) {
    if (!tokenizer.has_token(id)) {
      return Error{fmt::format("--decode: {} is no token of this tokenizer, whose ids end at {}", id,
                               tokenizer.n_tokens() - 1)};
    }
  }
  const std::string text =
      tokenizer.decode(*flags.decode, flags.skip_special ? SpecialText::skip : SpecialText::keep);
  return flags.json ? json_line({{"text", text}}) : text + "\n";
}

}  // namespace

int run_tokenize(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  if (is_synthetic(flags.model)) {
    return fail(kCommand, flags.model + " has random weights and no tokenizer: give a checkpoint folder");
  }
  const Result<Tokenizer> tokenizer = Tokenizer::load(flags.model);
  if (!tokenizer.ok()) return fail(kCommand, tokenizer.error().message);
  const Result<std::string> text = flags.decode ? decode(flags, *tokenizer) : encode(flags, *tokenizer);
  if (!text.ok()) return fail(kCommand, text.error().message);
  Output out;
  out.write(*text);
  return out.finish(kCommand, kDone);
}

}  // namespace tandem
