// Serves compare.mjs: tandem's tokenizer on JSON lines.
//   tokenizer_lines FOLDER < requests > answers
// A request is a string (answer: its ids, special tokens recognised) or a list of ids (answer: [text with
// special tokens, text without]). Exit code 1 with a message on stderr for anything else.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer.h"

namespace {

int fail(const std::string& message) {
  fmt::print(stderr, "tokenizer_lines: {}\n", message);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return fail("usage: tokenizer_lines FOLDER < requests");
  const auto tokenizer = tandem::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) return fail(tokenizer.error().message);
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto request = nlohmann::json::parse(line, nullptr, false);
    nlohmann::json answer;
    if (request.is_string()) {
      const auto ids = tokenizer->encode(request.get<std::string>(), tandem::SpecialTokens::recognise);
      if (!ids.ok()) return fail(ids.error().message);
      answer = *ids;
    } else if (request.is_array()) {
      const auto ids = request.get<std::vector<tandem::TokenId>>();
      answer = {tokenizer->decode(ids, tandem::SpecialText::keep),
                tokenizer->decode(ids, tandem::SpecialText::skip)};
    } else {
      return fail("neither a string nor a list of ids: " + line);
    }
    std::cout << answer.dump() << '\n';
  }
  return 0;
}
