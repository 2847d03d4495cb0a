// Text for prompts that no server has seen before.
#pragma once

#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cli/bench/load.h"

namespace tandem::bench {

// Text to ids, by whoever can: the model's tokenizer or the endpoint's.
using Tokenise = std::function<Result<std::vector<TokenId>>(const std::string& text)>;

class PromptWriter {
 public:
  enum class Kind : uint8_t { natural, code, atom };  // atom: "a a a", which drafters foresee too well
  PromptWriter(Kind kind, uint64_t seed) : kind_(kind), random_(seed) {}

  // At least n_bytes, beginning with words of its own, so that no cache knows it. Otherwise natural
  // sentences, Python functions, or one letter again and again.
  std::string text(size_t n_bytes);
  // Exactly n_tokens. Errors: those of `tokenise`.
  Result<Prompt> of_tokens(int n_tokens, const Tokenise& tokenise);

 private:
  std::string sentence();
  std::string function();
  const char* one_of(std::span<const char* const> words) { return words[random_() % words.size()]; }

  const Kind kind_;
  std::mt19937_64 random_;
};

}  // namespace tandem::bench
