// The options of one subcommand: what it takes, its --help, and errors that name the flag. The option library
// stays behind this header.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cli/command.h"

namespace tandem {

// Where a value goes; untouched while the option is not given. A vector of strings collects a repeated
// option, a vector of numbers is one list with commas ("1,2,4").
using OptionTarget = std::variant<std::string*, std::optional<std::string>*, int*, std::optional<int>*,
                                  uint64_t*, std::optional<double>*, std::vector<std::string>*,
                                  std::vector<int>*, std::optional<std::vector<int>>*>;

// What a value may be. Numbers: min to max, both allowed. Words: one of `choices`, if there are any.
struct OptionRule {
  double min = std::numeric_limits<int>::min();
  double max = std::numeric_limits<int>::max();
  std::vector<std::string> choices = {};
  bool required = false;
};

class Options {
 public:
  // command: "generate", "bench decode". about: a sentence. examples: lines of a shell, without indentation.
  Options(std::string command, const std::string& about, const std::string& examples);
  ~Options();

  // Options added from here on stand under this heading in --help.
  void section(const std::string& heading);
  // names: "--seed" or "-o,--output"; without dashes it is an argument by position.
  void add(const std::string& names, OptionTarget target, const std::string& value_name,
           const std::string& help, OptionRule rule = {});
  void flag(const std::string& name, bool& on, const std::string& help);
  // --name and --no-name, unset while neither is given.
  void toggle(const std::string& name, std::optional<bool>& value, const std::string& help);

  // Nothing: all is well, go on. Else the exit code: help was printed, or the error was.
  std::optional<int> parse(Arguments args);

  const std::string& command() const { return command_; }

 private:
  struct Parser;
  std::string command_;
  std::string section_ = "Options";
  std::unique_ptr<Parser> parser_;
};

}  // namespace tandem
