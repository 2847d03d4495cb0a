#include "engine/make_draft_vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/score.h"

namespace tandem {
namespace {

constexpr size_t kWindow = 512;      // tokens that are read at a time
constexpr size_t kLeastText = 2048;  // so that a quarter can show a coverage of 97% within about 1.5%

// Tokens that no text may lack, whatever its subject.
std::vector<TokenId> always(const LoadedModel& model) {
  std::vector<TokenId> ids = model.stop_ids;
  for (TokenId id = 0; id < model.n_text_tokens(); ++id) {
    const std::string_view bytes = model.tokenizer->token_bytes(id);
    const auto all = [&](std::string_view of) {
      return bytes.find_first_not_of(of) == std::string_view::npos;
    };
    if (model.tokenizer->is_special(id) || (!bytes.empty() && (all(" \t\r\n") || all("0123456789")))) {
      ids.push_back(id);
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// The most probable token after each of `text`, in order, but for the last of each window.
Result<std::vector<TokenId>> said_after(const LoadedModel& model, std::span<const TokenId> text,
                                        const std::function<bool()>& stop) {
  std::vector<TokenId> said;
  const size_t window = std::min(kWindow, size_t(model.config.context));
  for (size_t first = 0; first < text.size(); first += window) {
    TD_RETURN_IF_ERROR(score_tokens(
        *model.decoder, text.subspan(first, std::min(window, text.size() - first)), 1,
        [&](int, const Logprobs& l) { said.push_back(l.top[0].id); }, stop));
  }
  return said;
}

}  // namespace

Result<DraftVocab> make_draft_vocab(const LoadedModel& model, std::span<const TokenId> text, int size,
                                    const std::function<bool()>& stop) {
  const auto n_vocab = size_t(model.config.vocab_size);
  if (!model.tokenizer) return Error{model.name + ": no tokenizer.json: its special tokens are not known"};
  const std::vector<TokenId> fixed = always(model);
  if (size < int(fixed.size()) || size > model.config.vocab_size) {
    return Error{
        fmt::format("a draft vocabulary of {} tokens: expected from {} (special tokens, white space and "
                    "digits) to {} (all)",
                    size, fixed.size(), n_vocab)};
  }
  if (text.size() < kLeastText) {
    return Error{fmt::format("the text has {} tokens, expected at least {}", text.size(), kLeastText)};
  }
  const std::span<const TokenId> seen = text.first(text.size() / 4 * 3), unseen = text.subspan(seen.size());
  TD_ASSIGN_OR_RETURN(const std::vector<TokenId> said, said_after(model, seen, stop));
  std::vector<int64_t> counts(n_vocab, 0);
  for (const TokenId id : seen) ++counts[size_t(id)];
  for (const TokenId id : said) ++counts[size_t(id)];
  for (const TokenId id : fixed) counts[size_t(id)] = std::numeric_limits<int64_t>::max();
  DraftVocab vocab{
      .vocab_size = model.config.vocab_size, .coverage = 0, .ids = std::vector<TokenId>(n_vocab)};
  std::iota(vocab.ids.begin(), vocab.ids.end(), 0);
  std::stable_sort(vocab.ids.begin(), vocab.ids.end(),
                   [&](TokenId a, TokenId b) { return counts[size_t(a)] > counts[size_t(b)]; });
  vocab.ids.resize(size_t(size));
  std::sort(vocab.ids.begin(), vocab.ids.end());
  TD_ASSIGN_OR_RETURN(const std::vector<TokenId> held_out, said_after(model, unseen, stop));
  const auto covered = std::count_if(held_out.begin(), held_out.end(), [&](TokenId id) {
    return std::binary_search(vocab.ids.begin(), vocab.ids.end(), id);
  });
  vocab.coverage = double(covered) / double(held_out.size());
  if (vocab.coverage < kLeastDraftCoverage) {
    return Error{
        fmt::format("{} tokens hold {:.1f}% of what {} says in the last quarter of the text, expected "
                    "at least {:.0f}%: give a larger size, or more text of the kind that it shall write",
                    size, 100 * vocab.coverage, model.name, 100 * kLeastDraftCoverage)};
  }
  return vocab;
}

}  // namespace tandem
