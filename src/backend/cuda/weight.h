// A matrix as the kernels stream it.
//
// A *record* is 16 output rows (a tile) by 64 columns (a group), in the order in which the lanes of a warp
// feed mma_bf16: step j = 0..3, lane = 4 g + t holds of rows g and g + 8 the columns
//   k(j, t, e) = 32 (j / 2) + 8 t + 4 (j % 2) + e,  e = 0..3   (a[0], a[1]: e = 0, 1; a[2], a[3]: e = 2, 3)
// so that a lane's columns of an activation row are two runs of 8. Bytes of a record, lanes together:
//   bf16     2048: step j, lane: 16 bytes a[0..3]
//   affine8  1024: lane: 8 words, word 2 j + e / 2 = codes {g e, g+8 e, g e+1, g+8 e+1}; words 0..3 first for
//   all lanes affine4   512: lane: 4 words, word j, nibble of byte 2 (e % 2) + (row / 8): low for e < 2, high
//   for e >= 2
// Affine records go on with scale and bias of each row: narrow, 64 bytes, bf16 pairs, [g][row / 8]; wide, 256
// bytes, fp32 pairs, [32 columns][g][row / 8]. Codes of 5 and 6 bits lie as 8, of 2 and 3 as 4: their values
// stay. A part is [expert][tile][group] records; columns and rows that pad are zero. f16 and f32 matrices are
// plain fp32, row-major.
#pragma once

#include <vector>

#include "backend/cuda/runtime.h"
#include "backend/weight.h"

namespace tandem::cuda {

constexpr int kTileRows = 16;
constexpr int kGroupColumns = 64;
constexpr int kLinearWarps = 8;  // a block of the matrix product cuts its columns into as many parts

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
  // How a product is cut (the order of its sums, so by shape alone): columns into n_splits x kLinearWarps
  // parts.
  int n_splits = 1;
  std::byte* data = nullptr;
  size_t bytes = 0;  // all experts
};

class CudaWeight final : public Weight {
 public:
  CudaWeight(Card& card, int n, int k, int n_experts, int n_slices)
      : Weight(n, k, n_experts, n_slices), card_(&card) {}
  ~CudaWeight() override;

  size_t bytes() const override;

  std::vector<WeightPart> parts;
  float* bias = nullptr;  // [n] or null

 private:
  Card* card_;
};

inline const CudaWeight& ours(const Weight& w) { return static_cast<const CudaWeight&>(w); }

}  // namespace tandem::cuda
