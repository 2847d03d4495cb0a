#include "backend/random_weights.h"

#include <algorithm>
#include <cstring>

namespace tandem {

RandomScale random_scale(float deviation, int bits) {
  const float levels = float((1 << bits) - 1);
  const uint16_t scale = bf16_from_float(deviation * 3.4641016f / (levels + 1));
  return {scale, bf16_from_float(-0.5f * levels * float_from_bf16(scale))};
}

void draw_weights(const HostMatrix& matrix, uint64_t first_word, std::span<std::byte> out) {
  const RandomWeights& random = *matrix.random;
  for (size_t at = 0; at < out.size(); at += 8) {
    uint64_t word = random_word(random.key, first_word + at / 8);
    if (!matrix.affine()) {
      uint16_t values[4];
      for (int i = 0; i < 4; ++i)
        values[i] = bf16_from_float(random_value(uint16_t(word >> (16 * i)), random.deviation));
      std::memcpy(&word, values, sizeof word);
    }
    std::memcpy(out.data() + at, &word, std::min<size_t>(8, out.size() - at));
  }
}

}  // namespace tandem
