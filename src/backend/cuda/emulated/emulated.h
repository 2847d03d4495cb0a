// CUDA's words for a host compiler: enough to run the kernels of this folder on the CPU, one block after the
// other, the threads of a block as fibers that hand over at barriers and exchanges. For tests alone.
//
// What it checks besides results: a barrier or an exchange that not all threads reach is a deadlock, which
// ends the program with the kernel's name; shared memory and registers start as garbage, not as zeros.
#pragma once

#include <math.h>  // expf and its kind at global scope, as CUDA has them

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __restrict__

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace tandem::cuda::emulated {

struct ThreadIndex {
  dim3 thread, block, block_dim, grid_dim;
};
const ThreadIndex& here();

void sync_block();
void sync_warp();
// Every lane of the warp gives 32 bits and gets those of `lane`.
uint32_t exchange(uint32_t bits, int lane);
unsigned ballot(bool vote);
void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selectors);
uint32_t f16_bits(float x);
float f16_value(uint32_t bits);
uint32_t bf16_bits(float x);
std::byte* dynamic_shared_memory();
// Copies that arrive as late as they may: when a thread waits for them.
void copy_ahead(void* to, const void* from);
void commit_copies();
void wait_for_copies(int groups_left);

// Runs body(argument) for every thread of every block.
void run(const char* name, dim3 grid, dim3 block, size_t shared_bytes, void (*body)(const void*),
         const void* argument);

template <class T>
T exchange_as(T v, int lane) {
  static_assert(sizeof(T) == 4);
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  bits = exchange(bits, lane);
  std::memcpy(&v, &bits, 4);
  return v;
}
}  // namespace tandem::cuda::emulated

#define threadIdx (::tandem::cuda::emulated::here().thread)
#define blockIdx (::tandem::cuda::emulated::here().block)
#define blockDim (::tandem::cuda::emulated::here().block_dim)
#define gridDim (::tandem::cuda::emulated::here().grid_dim)

inline void __syncthreads() { tandem::cuda::emulated::sync_block(); }
inline void __syncwarp(unsigned = 0xffffffffu) { tandem::cuda::emulated::sync_warp(); }
inline void __threadfence() {}
inline unsigned __ballot_sync(unsigned, int vote) { return tandem::cuda::emulated::ballot(vote != 0); }
template <class T>
T __shfl_sync(unsigned, T v, int lane) {
  return tandem::cuda::emulated::exchange_as(v, lane & 31);
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int mask) {
  return tandem::cuda::emulated::exchange_as(v, (int(threadIdx.x) & 31) ^ mask);
}
template <class T>
T atomicAdd(T* p, T v) {
  const T old = *p;
  *p += v;
  return old;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
inline float __uint_as_float(unsigned x) {
  float f;
  std::memcpy(&f, &x, 4);
  return f;
}
inline unsigned __float_as_uint(float x) {
  unsigned u;
  std::memcpy(&u, &x, 4);
  return u;
}
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
