// Randomness as a pure function of (seed, position, token, purpose): nothing is drawn from a stream, so batch
// company, draft length and replays cannot change a token.
//
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/ids.h"

namespace tandem {

using PhiloxBlock = std::array<uint32_t, 4>;

// Ten rounds over a 128-bit counter under a 64-bit key; words in the paper's order.
inline PhiloxBlock philox4x32_10(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ counter[3] ^ key[1],
               uint32_t(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// What a draw is for; draws of different purposes are independent.
enum class NoisePurpose : uint32_t {
  choose = 0,    // the token itself, target and drafter alike: equal distributions then draw equal tokens
  accept = 1,    // the uniform of an accept test (rejection mode)
  residual = 2,  // the draw from the residual distribution (rejection mode)
};

struct NoiseKey {
  uint64_t seed = 0;
  uint32_t position = 0;  // absolute index, prompt included, of the token being chosen
  NoisePurpose purpose = NoisePurpose::choose;
};

// 32 random bits for each of the tokens 4*block .. 4*block + 3.
inline PhiloxBlock noise_bits4(const NoiseKey& key, uint32_t block) {
  return philox4x32_10({key.position, block, uint32_t(key.purpose), 0},
                       {uint32_t(key.seed), uint32_t(key.seed >> 32)});
}

inline uint32_t noise_bits(const NoiseKey& key, TokenId token) {
  return noise_bits4(key, uint32_t(token) / 4)[uint32_t(token) % 4];
}

// (0, 1]: the middle of the bits' interval, in fp32. Rounds to 1 for the top 128 values of the bits.
inline float uniform_from_bits(uint32_t bits) { return (float(bits) + 0.5f) * 0x1p-32f; }

// The one standard Gumbel variate of the project: -log(-log(1 - v)) for v = uniform_from_bits(bits).
// v = 1 gives -infinity, a token that cannot win. The textbook -log(-log(u)) instead gives +infinity wherever
// u rounds to 1: a token that always wins, at about 0.7% of the positions of a vocabulary of 248,320.
inline float gumbel_from_bits(uint32_t bits) { return -std::log(-std::log1p(-uniform_from_bits(bits))); }

inline float uniform_noise(const NoiseKey& key, TokenId token) {
  return uniform_from_bits(noise_bits(key, token));
}
inline float gumbel_noise(const NoiseKey& key, TokenId token) {
  return gumbel_from_bits(noise_bits(key, token));
}

// At least gumbel_from_bits(bits), without a logarithm: -log1p(-v) >= v, and v >= 2^e for its exponent e. The
// slack is far above the rounding of the two fp32 logarithms. Lets a search skip tokens that cannot win.
inline float gumbel_upper_bound(uint32_t bits) {
  const int exponent = int(std::bit_cast<uint32_t>(uniform_from_bits(bits)) >> 23) - 127;  // v > 0 is normal
  return 0.69315f * float(-exponent) + 1e-3f;
}

}  // namespace tandem
