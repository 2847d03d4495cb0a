#include "format/draft_vocab.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/mapped_file.h"
#include "format/json.h"

namespace tandem {

Result<DraftVocab> parse_draft_vocab(std::span<const std::byte> text, const std::string& path) {
  constexpr int64_t kMaxVocab = 1 << 22;
  TD_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, path));
  TD_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of_root(document, path));
  DraftVocab vocab;
  TD_ASSIGN_OR_RETURN(const int64_t size, fields.require_integer("vocab_size", 1, kMaxVocab));
  vocab.vocab_size = int(size);
  TD_ASSIGN_OR_RETURN(vocab.coverage, fields.require_number("coverage", 0, 1));
  TD_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, fields.integers("ids", 0, size - 1));
  if (ids.empty()) return fields.error("ids", "expected token ids, found none");
  for (const int64_t id : ids) {
    if (!vocab.ids.empty() && id <= vocab.ids.back()) {
      return fields.error("ids",
                          fmt::format("expected ascending ids, found {} after {}", id, vocab.ids.back()));
    }
    vocab.ids.push_back(TokenId(id));
  }
  if (vocab.coverage < kLeastDraftCoverage) {
    return fields.error("coverage", fmt::format("expected at least {}, found {}: too many drafts would be "
                                                "refused; make a larger one with tandem draft-vocab",
                                                kLeastDraftCoverage, vocab.coverage));
  }
  return vocab;
}

Result<DraftVocab> load_draft_vocab(const std::string& path) {
  TD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return parse_draft_vocab(file.bytes(), path);
}

std::string draft_vocab_text(const DraftVocab& vocab) {
  return fmt::format("{{\"vocab_size\": {}, \"coverage\": {}, \"ids\": [{}]}}\n", vocab.vocab_size,
                     vocab.coverage, fmt::join(vocab.ids, ", "));
}

}  // namespace tandem
