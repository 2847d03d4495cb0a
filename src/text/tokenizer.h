// Byte-level BPE tokenizer read from a checkpoint's tokenizer.json: text to token ids and back, as the
// Hugging Face tokenizers library does it for the same file.
//
// Encode: cut at added tokens, NFC (when the file asks for it), cut by the pre-tokenizer, merge byte pairs by
// rank. Special tokens are never added (no BOS, whatever the file's post_processor says): a chat template
// writes its own.
// Decode: the bytes of all tokens joined, then UTF-8 with U+FFFD for each maximal invalid part. The text of
// an added token is its content (in normal form when it is looked for in normal form), even where the
// reference would send its characters through the byte alphabet.
//
// Immutable after load; all const members may be called from many threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_vocab.h"

namespace tandem {

// How the strings of added tokens ("<|im_end|>", "<think>") that stand in a text are read.
enum class SpecialTokens {
  recognise,  // as their token: prompts written by hand, rendered chat templates
  plain,      // as the characters they are written with: what a user typed
};

// What decoding does with the special tokens it meets. Added tokens that are not special ("<think>") are
// always kept.
enum class SpecialText { keep, skip };

// A stretch of a text with one origin: the template's own words, or what a user wrote.
struct TextPart {
  std::string_view text;
  SpecialTokens mode = SpecialTokens::recognise;
};

class Tokenizer {
 public:
  // Reads `folder`/tokenizer.json and, when it is there, `folder`/tokenizer_config.json (for the named tokens
  // below). Errors: a file that cannot be read; a field that is missing, of the wrong type or out of range; a
  // part of the format that is not supported. All name the file and the field.
  static Result<Tokenizer> load(const std::string& folder);

  // The same from bytes. `config` is tokenizer_config.json, or empty for none.
  static Result<Tokenizer> parse(std::string_view tokenizer_json, std::string_view config = {});

  // Errors: the byte offset where the text stops being UTF-8; a text over 1 GiB; a byte without token.
  Result<std::vector<TokenId>> encode(std::string_view text, SpecialTokens mode) const;
  // The parts joined and encoded as one text, so that pieces may span the seams; an added token is recognised
  // only where all its characters come from recognised parts.
  Result<std::vector<TokenId>> encode(std::span<const TextPart> parts) const;

  // Ids without a token (padding rows of the vocabulary, out of range) decode to nothing.
  std::string decode(std::span<const TokenId> ids, SpecialText special) const;
  // The bytes a token stands for; they may end inside a character. Empty for an id without a token.
  std::string_view token_bytes(TokenId id) const { return vocab_.bytes(id); }

  bool has_token(TokenId id) const { return vocab_.has(id); }
  // Special in the sense of the file: left out of text on request.
  bool is_special(TokenId id) const { return vocab_.has(id) && special_[size_t(id)]; }
  // Highest id + 1. Rows of an embedding from here on are padding.
  int n_tokens() const { return vocab_.n_ids(); }
  // The id of a token as the file writes it: an added token's content, or a vocabulary key in the byte
  // alphabet.
  std::optional<TokenId> id_of(std::string_view token) const { return vocab_.find(token); }
  const std::vector<AddedToken>& added_tokens() const { return added_; }

  // The tokens that tokenizer_config.json names; nothing when it does not.
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> pad() const { return pad_; }
  // What tokenizer_config.json calls eos_token when no token is written so; else empty.
  const std::string& unknown_eos() const { return unknown_eos_; }

 private:
  friend class TokenizerReader;
  Tokenizer() = default;

  struct Scratch;
  Status encode_stretch(std::string_view text, std::vector<ByteRange> recognised, Scratch& scratch,
                        std::vector<TokenId>& ids) const;
  Status encode_pieces(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const;
  Status encode_piece(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;

  Vocab vocab_;
  std::vector<bool> special_, is_added_;  // by id
  std::vector<AddedToken> added_;
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  bool nfc_ = false;
  PreTokenizer pretokenizer_;
  MergeTable merges_;
  TokenId byte_ids_[256];       // id of each single byte, -1 for none
  bool ignore_merges_ = false;  // a piece that is a token as a whole is taken as it is
  std::optional<TokenId> bos_, eos_, pad_;
  std::string unknown_eos_;
};

}  // namespace tandem
