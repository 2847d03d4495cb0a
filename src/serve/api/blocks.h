// An answer as a row of blocks, for APIs that show it so: text, thinking, or one call of a tool each.
#pragma once

#include <string>
#include <vector>

#include "serve/text/pipeline.h"

namespace tandem::serve {

enum class BlockKind : uint8_t { none, text, thinking, call };

constexpr BlockKind block_kind(PieceKind kind) {
  switch (kind) {
    case PieceKind::content:
      return BlockKind::text;
    case PieceKind::reasoning:
      return BlockKind::thinking;
    default:
      return BlockKind::call;
  }
}

// Whether a piece begins a block, when the last one is of kind `open`.
constexpr bool begins_block(BlockKind open, PieceKind piece) {
  return piece == PieceKind::tool_call || block_kind(piece) != open;
}

struct Block {
  BlockKind kind = BlockKind::none;
  std::string text;  // or a call's arguments, JSON
  std::string name;  // of a call
};

// Takes a step's pieces into the blocks of a whole answer.
inline void add_to_blocks(const TextStep& step, std::vector<Block>& blocks) {
  for (const Piece& piece : step.pieces) {
    if (begins_block(blocks.empty() ? BlockKind::none : blocks.back().kind, piece.kind)) {
      blocks.push_back({block_kind(piece.kind), {}, {}});
    }
    (piece.kind == PieceKind::tool_call ? blocks.back().name : blocks.back().text) += piece.text;
  }
}

}  // namespace tandem::serve
