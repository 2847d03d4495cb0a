// tandem: one binary, a table of subcommands.
#include <fmt/format.h>

#include <csignal>
#include <exception>
#include <string>
#include <vector>

#include "base/file_fault.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/version.h"

namespace tandem {
namespace {

struct Command {
  const char* name;
  const char* about;
  int (*run)(Arguments);
};

constexpr Command kCommands[] = {
    {"generate", "continue a prompt, or answer it", run_generate},
    {"chat", "talk with a model", run_chat},
    {"serve", "answer over HTTP, as the OpenAI API does", run_serve},
    {"score", "log-probabilities of given tokens, perplexity of a text", run_score},
    {"tokenize", "text to token ids and back", run_tokenize},
    {"inspect", "what is in a checkpoint, what it needs, what will run it", run_inspect},
    {"quantize", "a checkpoint folder with fewer bits per weight", run_quantize},
    {"draft-vocab", "which tokens an MTP head drafts from", run_draft_vocab},
    {"bench", "decode, verify and prefill speed against the machine's limits", run_bench},
    {"doctor", "check this machine and say what is missing", run_doctor},
};

std::string usage() {
  std::string text =
      "tandem runs large language models: the same answer as ever, sooner.\n"
      "Usage: tandem SUBCOMMAND [OPTIONS]\n\n"
      "Subcommands:\n";
  for (const Command& c : kCommands) text += fmt::format("  {:<12}{}\n", c.name, c.about);
  text +=
      "  help        this, or the help of a subcommand: tandem help generate\n\n"
      "Options:\n"
      "  -h,--help   Show this and end\n"
      "  --version   Show version and commit and end\n\n"
      "Exit code: 0 done, 1 failed at work, 2 wrong usage.\n\n"
      "Examples:\n"
      "  tandem generate --model models/tandem-demo --prompt 'def fibonacci(n):'\n"
      "  tandem help bench\n";
  return text;
}

int print(std::string_view text) {
  Output out;
  out.write(text);
  return out.finish("", kDone);
}

int run(std::vector<std::string> args) {
  if (args.empty()) {
    say(usage());
    return kWrongUsage;
  }
  std::string name = args[0];
  args.erase(args.begin());
  if (name == "--version") return print(fmt::format("tandem {} ({})\n", version(), commit()));
  if (name == "-h" || name == "--help" || name == "help") {
    if (name != "help" || args.empty()) return print(usage());
    name = args[0];
    args.erase(args.begin());
    args.push_back("--help");
  }
  for (const Command& c : kCommands) {
    if (name == c.name) return c.run(args);
  }
  return misuse("", fmt::format("'{}' is not a subcommand (see tandem --help)", name));
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::fill_standard_descriptors();
  // A reader that goes away and a file that grows too large are errors of write(), not the end of the
  // process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  tandem::explain_file_faults();
  try {
    return tandem::run(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  } catch (const std::bad_alloc&) {
    return tandem::fail("", "out of memory");
  } catch (const std::exception& e) {
    return tandem::fail("", fmt::format("unexpected: {}", e.what()));
  }
}
