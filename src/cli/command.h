// The subcommands of the one binary, and what all of them share: exit codes and the form of messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tandem {

// What a subcommand returns to the shell. interrupted: Ctrl-C (or SIGTERM or SIGHUP) ended it,
// as shells count (128 + SIGINT).
enum ExitCode : int { kDone = 0, kFailed = 1, kWrongUsage = 2, kInterrupted = 130 };

using Arguments = std::span<const std::string>;  // those after the subcommand's name

int run_generate(Arguments args);
int run_chat(Arguments args);
int run_score(Arguments args);
int run_tokenize(Arguments args);
int run_inspect(Arguments args);
int run_quantize(Arguments args);
int run_draft_vocab(Arguments args);
int run_serve(Arguments args);
int run_doctor(Arguments args);
int run_bench(Arguments args);

// "tandem generate: message" on standard error. Return kFailed and kWrongUsage.
int fail(std::string_view command, std::string_view message);
int misuse(std::string_view command, std::string_view message);
void warn(std::string_view command, std::string_view message);

}  // namespace tandem
