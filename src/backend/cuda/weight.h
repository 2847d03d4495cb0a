// A matrix as the kernels stream it.
//
// A *record* is 16 output rows (a tile) by 64 columns (a group), in the order in which the lanes of a warp
// feed the tensor cores: lane 4 g + t holds of rows g and g + 8 the columns
//   32 j + 8 t + 4 h + e,   j, h = 0, 1;  e = 0 .. 3
// so that a lane's columns of an activation row are two runs of 8. Bytes of a record, lanes together:
//   bf16     2048: step 2 j + h, lane: 8 values {g e 0, 1; g+8 e 0, 1; g e 2, 3; g+8 e 2, 3}
//   affine8  1024: j, lane: 16 codes, byte 4 (2 h + row / 8) + e
//   affine4   512: lane: 4 words, word 2 j + row / 8, code at bit 16 (e % 2) + 4 (2 h + e / 2)
// Affine records go on with scale and bias of each row: narrow, 64 bytes, bf16 pairs, [g][row / 8]; wide, 256
// bytes, fp32 pairs, [j][g][row / 8]. Codes of 5 and 6 bits lie as 8, of 2 and 3 as 4: their values stay. A
// part is [expert][tile][group] records; columns and rows that pad are zero. f16 and f32 matrices are plain
// fp32, row-major.
#pragma once

#include <vector>

#include "backend/cuda/runtime.h"
#include "backend/weight.h"

namespace tandem::cuda {

constexpr int kTileRows = 16;
constexpr int kGroupColumns = 64;
constexpr int kLinearWarpBits = 3;
constexpr int kLinearWarps = 1 << kLinearWarpBits;  // as many parts a product's columns are cut into

enum class LinearFormat : uint8_t { bf16, affine8, affine8_wide, affine4, affine4_wide, f32 };

constexpr bool is_wide(LinearFormat f) {
  return f == LinearFormat::affine8_wide || f == LinearFormat::affine4_wide;
}
constexpr bool is_affine8(LinearFormat f) {
  return f == LinearFormat::affine8 || f == LinearFormat::affine8_wide;
}
constexpr bool is_affine4(LinearFormat f) {
  return f == LinearFormat::affine4 || f == LinearFormat::affine4_wide;
}
constexpr bool is_affine(LinearFormat f) { return is_affine8(f) || is_affine4(f); }
constexpr int code_bytes(LinearFormat f) { return is_affine8(f) ? 1024 : is_affine4(f) ? 512 : 2048; }
constexpr int record_bytes(LinearFormat f) {
  return code_bytes(f) + (is_affine(f) ? (is_wide(f) ? 256 : 64) : 0);
}

// Rows [first, first + n) of every expert, in one format.
struct WeightPart {
  LinearFormat format = LinearFormat::bf16;
  int first = 0, n = 0;
  int tiles = 0, groups = 0;  // of an expert
  bool takes_f16() const { return is_affine(format); }
  std::byte* data = nullptr;
  size_t bytes = 0;  // all experts
};

class CudaWeight final : public Weight {
 public:
  CudaWeight(Card& card, int n, int k, int n_experts, int n_slices)
      : Weight(n, k, n_experts, n_slices), card_(&card) {}
  ~CudaWeight() override;

  size_t bytes() const override;
  // In which forms the activations of a product are read (activations.cuh).
  bool takes_bf16() const;
  bool takes_f16() const;
  int groups() const { return (k() + kGroupColumns - 1) / kGroupColumns; }

  std::vector<WeightPart> parts;
  float* bias = nullptr;  // [n] or null

 private:
  Card* card_;
};

inline const CudaWeight& ours(const Weight& w) { return static_cast<const CudaWeight&>(w); }

}  // namespace tandem::cuda
