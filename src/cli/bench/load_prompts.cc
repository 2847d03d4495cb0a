#include "cli/bench/load_prompts.h"

#include <fmt/format.h>

namespace tandem::bench {
namespace {

constexpr const char* kThings[] = {"river",   "letter",  "garden",  "engine", "harbour", "village",
                                   "teacher", "clock",   "market",  "bridge", "library", "storm",
                                   "printer", "orchard", "ship",    "window", "signal",  "farmer",
                                   "road",    "battery", "choir",   "doctor", "valley",  "archive",
                                   "kitchen", "lantern", "machine", "forest", "judge",   "station"};
constexpr const char* kQualities[] = {"old",  "quiet", "narrow",   "unfinished", "bright", "heavy",
                                      "late", "small", "careful",  "distant",    "empty",  "northern",
                                      "warm", "plain", "stubborn", "familiar",   "broken", "generous"};
constexpr const char* kDoings[] = {"reaches", "repairs",  "follows",   "describes", "forgets",  "supports",
                                   "crosses", "measures", "explains",  "replaces",  "watches",  "feeds",
                                   "delays",  "protects", "remembers", "surrounds", "improves", "divides"};
constexpr const char* kLinks[] = {"because", "although", "while",    "until",
                                  "so that", "before",   "whenever", "since"};
constexpr const char* kVerbs[] = {"load",   "count", "merge", "parse", "filter",
                                  "update", "find",  "write", "sort",  "check"};
constexpr const char* kNouns[] = {"rows",   "items", "users", "paths",  "lines",
                                  "values", "nodes", "names", "orders", "events"};
constexpr const char* kFields[] = {"size",  "key",   "name",  "price", "state",
                                   "index", "limit", "owner", "date",  "score"};

}  // namespace

std::string PromptWriter::sentence() {
  const auto who = [&] { return fmt::format("the {} {}", one_of(kQualities), one_of(kThings)); };
  std::string text = fmt::format("{} {} {} {} {} {} {}", who(), one_of(kDoings), who(), one_of(kLinks), who(),
                                 one_of(kDoings), who());
  text[0] = 'T';
  return text + (random_() % 5 == 0 ? ".\n\n" : ". ");
}

std::string PromptWriter::function() {
  const char* const items = one_of(kNouns);
  const char* const field = one_of(kFields);
  const auto number = random_() % 1000;
  return fmt::format(
      "def {0}_{1}_{2}({1}, {2}={3}):\n"
      "    \"\"\"Return the {1} whose {2} is above a limit.\"\"\"\n"
      "    result = []\n"
      "    for item in {1}:\n"
      "        if item.{2} > {2}:\n"
      "            result.append(item)\n"
      "    return result\n\n\n",
      one_of(kVerbs), items, field, number);
}

std::string PromptWriter::text(size_t n_bytes) {
  std::string text = fmt::format("{}{:016x}: ", kind_ == Kind::code ? "# " : "", random_());
  if (kind_ == Kind::code) text += "functions\n";
  while (text.size() < n_bytes) {
    text += kind_ == Kind::natural ? sentence() : kind_ == Kind::code ? function() : "a ";
  }
  return text;
}

Result<Prompt> PromptWriter::of_tokens(int n_tokens, const Tokenise& tokenise) {
  Prompt prompt;
  std::string more = text(size_t(n_tokens) * 6 + 64);
  while (true) {
    prompt.text += more;
    TD_ASSIGN_OR_RETURN(prompt.ids, tokenise(prompt.text));
    if (prompt.ids.size() >= size_t(n_tokens)) break;
    more = text(prompt.text.size());
  }
  prompt.ids.resize(size_t(n_tokens));
  return prompt;
}

}  // namespace tandem::bench
