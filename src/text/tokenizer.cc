#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/unicode.h"

namespace tandem {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // offsets inside NFC and BPE are 32 bits

}  // namespace

// Buffers of one encode call, reused from piece to piece.
struct Tokenizer::Scratch {
  std::string normalized;
  std::vector<std::string_view> pieces;
  std::vector<TokenId> symbols;
  BpeMerger merger;
};

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, SpecialTokens mode) const {
  const TextPart part{text, mode};
  return encode(std::span(&part, 1));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::span<const TextPart> parts) const {
  std::string joined;
  std::string_view text = parts.size() == 1 ? parts[0].text : std::string_view{};
  if (parts.size() > 1) {
    for (const TextPart& part : parts) joined += part.text;
    text = joined;
  }
  if (text.size() > kMaxTextBytes) {
    return Error{
        fmt::format("text of {} bytes; at most {} can be encoded at once", text.size(), kMaxTextBytes)};
  }
  if (const auto bad = first_invalid_utf8(text)) {
    return Error{fmt::format("text is not valid UTF-8 at byte {} (0x{:02x})", *bad, uint8_t(text[*bad]))};
  }
  std::vector<ByteRange> recognised;
  size_t at = 0;
  for (const TextPart& part : parts) {
    const ByteRange range{at, at + part.text.size()};
    at = range.end;
    if (part.mode != SpecialTokens::recognise || part.text.empty()) continue;
    if (!recognised.empty() && recognised.back().end == range.begin) {
      recognised.back().end = range.end;
    } else {
      recognised.push_back(range);
    }
  }

  std::vector<TokenId> ids;
  Scratch scratch;
  for (const auto& found : raw_matcher_.split(text, recognised)) {
    if (found.id >= 0) {
      ids.push_back(found.id);
      continue;
    }
    const auto [begin, end] = found.range;
    std::vector<ByteRange> inside;
    if (!normalized_matcher_.empty()) {
      for (const ByteRange& r : recognised) {
        const size_t from = std::max(r.begin, begin), to = std::min(r.end, end);
        if (from < to) inside.push_back({from - begin, to - begin});
      }
    }
    TD_RETURN_IF_ERROR(encode_stretch(text.substr(begin, end - begin), std::move(inside), scratch, ids));
  }
  return ids;
}

// Text without raw added tokens: normal form, then what is looked for in normal form.
Status Tokenizer::encode_stretch(std::string_view text, std::vector<ByteRange> recognised, Scratch& scratch,
                                 std::vector<TokenId>& ids) const {
  if (nfc_ && normalize_nfc(text, scratch.normalized, recognised.empty() ? nullptr : &recognised)) {
    text = scratch.normalized;
  }
  if (recognised.empty()) return encode_pieces(text, scratch, ids);
  for (const auto& found : normalized_matcher_.split(text, recognised)) {
    if (found.id >= 0) {
      ids.push_back(found.id);
    } else {
      const auto [begin, end] = found.range;
      TD_RETURN_IF_ERROR(encode_pieces(text.substr(begin, end - begin), scratch, ids));
    }
  }
  return {};
}

Status Tokenizer::encode_pieces(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const {
  TD_RETURN_IF_ERROR(pretokenizer_.cut(text, scratch.pieces));
  for (const std::string_view piece : scratch.pieces) TD_RETURN_IF_ERROR(encode_piece(piece, scratch, ids));
  return {};
}

Status Tokenizer::encode_piece(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  if (ignore_merges_) {
    // An added token is never made from text that was to be read plainly.
    const auto whole = vocab_.find(to_printable(piece));
    if (whole && !is_added_[size_t(*whole)]) {
      ids.push_back(*whole);
      return {};
    }
  }
  scratch.symbols.clear();
  for (const char byte : piece) {
    const TokenId id = byte_ids_[uint8_t(byte)];
    if (id < 0) {
      return Error{fmt::format("tokenizer.json: model.vocab has no token for the byte 0x{:02x} of the text",
                               uint8_t(byte))};
    }
    scratch.symbols.push_back(id);
  }
  scratch.merger.merge(merges_, scratch.symbols, ids);
  return {};
}

std::string Tokenizer::decode(std::span<const TokenId> ids, SpecialText special) const {
  std::string text;
  Utf8Stream utf8;
  for (const TokenId id : ids) {
    if (special == SpecialText::skip && is_special(id)) continue;
    utf8.feed(token_bytes(id), text);
  }
  utf8.finish(text);
  return text;
}

}  // namespace tandem
