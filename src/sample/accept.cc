#include "sample/accept.h"

#include <fmt/format.h>

#include <charconv>

#include "base/check.h"

namespace tandem {

Result<AcceptOptions> parse_accept_options(std::string_view text) {
  constexpr std::string_view lenient = "lenient:";
  if (text == "coupled") return AcceptOptions{AcceptMode::coupled, 1};
  if (text == "rejection") return AcceptOptions{AcceptMode::rejection, 1};
  if (text.starts_with(lenient)) {
    const std::string_view number = text.substr(lenient.size());
    double exponent = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), exponent);
    if (error == std::errc() && end == number.data() + number.size() && exponent > 0 && exponent <= 1) {
      return AcceptOptions{AcceptMode::lenient, exponent};
    }
    return Error{
        fmt::format("accept mode \"{}\": the exponent after \"lenient:\" must be a number above 0 and "
                    "at most 1 (1 is exact)",
                    text)};
  }
  return Error{
      fmt::format("accept mode \"{}\" is unknown; use coupled, rejection or lenient:A (A from 0 to 1, "
                  "not lossless)",
                  text)};
}

Verdict accept_coupled(std::span<const TokenId> draft, std::span<const TokenId> target) {
  TD_CHECK(target.size() == draft.size() + 1,
           "want one target token more than drafts, got %zu for %zu drafts", target.size(), draft.size());
  size_t n = 0;
  while (n < draft.size() && draft[n] == target[n]) ++n;
  return {int(n), target[n]};
}

}  // namespace tandem
