// Values of a matrix that exists nowhere (HostMatrix::random): by a formula, so that whoever makes them makes
// the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/weight.h"

namespace tandem {

// Bytes 8 index .. of the matrix as a checkpoint would hold it: codes as they are; of dense bf16 values, what
// random_bf16 makes of each 16 bits. Low byte first. A counter scattered by SplitMix64's finaliser.
constexpr uint64_t random_word(uint64_t key, uint64_t index) {
  uint64_t x = key + (index + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Uniform, of that deviation; to be rounded to bf16.
constexpr float random_value(uint16_t bits, float deviation) {
  return float(int16_t(bits)) * 0x1p-15f * deviation * 1.7320508f;
}

// Scale and bias of all groups, bf16 bits: codes are uniform on 0 .. 2^bits - 1, so a scale that gives the
// deviation and a bias that centres.
struct RandomScale {
  uint16_t scale, bias;
};
RandomScale random_scale(float deviation, int bits);

// Bytes [8 first_word, ..) of `matrix`, whose `random` is set.
void draw_weights(const HostMatrix& matrix, uint64_t first_word, std::span<std::byte> out);

}  // namespace tandem
