// What the kernels of this folder are written in: CUDA C++ and the few instructions it has no words for, each
// as one function. Compiled by nvcc they run on a GPU. Compiled by a host compiler with TANDEM_CUDA_EMULATED
// the same sources run on the CPU, thread by thread (emulated/emulated.h): slowly, but in the same order of
// every barrier, exchange and sum, so that tests find wrong indices and missing barriers without a card.
//
// Kernels keep to what both understand: a kernel takes one argument, a struct; dynamic shared memory is
// shared_memory(); blocks never wait for each other (the last to arrive does what is left: last_arrival).
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef TANDEM_CUDA_EMULATED
#include "backend/cuda/emulated/emulated.h"
#else
#include <cuda_runtime.h>
#endif

namespace tandem::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return int(threadIdx.x) & (kWarp - 1); }
__device__ __forceinline__ int warp_id() { return int(threadIdx.x) / kWarp; }

// The block's dynamic shared memory, 128-byte aligned.
__device__ __forceinline__ std::byte* shared_memory() {
#ifdef TANDEM_CUDA_EMULATED
  return emulated::dynamic_shared_memory();
#else
  extern __shared__ __align__(128) unsigned char memory[];
  return reinterpret_cast<std::byte*>(memory);
#endif
}

// Programmatic dependent launch: what comes after wait_for_inputs() sees everything the kernel before wrote;
// what comes before it (weights, constants) may run while that kernel still does. Every kernel calls it,
// always, and before its first global write.
__device__ __forceinline__ void wait_for_inputs() {
#if !defined(TANDEM_CUDA_EMULATED) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the kernel after this one start as soon as all blocks have said so.
__device__ __forceinline__ void let_next_start() {
#if !defined(TANDEM_CUDA_EMULATED) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// d += a b for a 16 x 16 tile a, a 16 x 8 tile b of bf16, summed in fp32. With g = lane / 4, t = lane % 4:
//   a[0] = A[g][2t, 2t+1], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..], a[3] = A[g+8][2t+8..]
//   b0 = B[2t, 2t+1][g], b1 = B[2t+8, 2t+9][g];  d[0, 1] = D[g][2t, 2t+1], d[2, 3] = D[g+8][2t, 2t+1]
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef TANDEM_CUDA_EMULATED
  emulated::mma_bf16(d, a, b0, b1);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// The same of fp16 values.
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef TANDEM_CUDA_EMULATED
  emulated::mma_f16(d, a, b0, b1);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Bytes of the word pair (a, b) by four selectors of 4 bits, the lowest first: 0..3 of a, 4..7 of b.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selectors) {
#ifdef TANDEM_CUDA_EMULATED
  return emulated::pick_bytes(a, b, selectors);
#else
  return __byte_perm(a, b, selectors);
#endif
}

// (x & mask) | bits. In one instruction, which the compiler makes two of where it knows mask and bits.
__device__ __forceinline__ uint32_t masked_or(uint32_t x, uint32_t mask, uint32_t bits) {
#ifdef TANDEM_CUDA_EMULATED
  return (x & mask) | bits;
#else
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(x), "r"(mask), "r"(bits));
  return d;
#endif
}

// fp16 pairs, as bf16 ones: rounded to nearest even.
__device__ __forceinline__ uint32_t f16_pair(float low, float high) {
#ifdef TANDEM_CUDA_EMULATED
  return emulated::f16_bits(low) | emulated::f16_bits(high) << 16;
#else
  uint32_t d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
#endif
}
__device__ __forceinline__ uint32_t subtract_f16_pairs(uint32_t a, uint32_t b) {
#ifdef TANDEM_CUDA_EMULATED
  return emulated::f16_bits(emulated::f16_value(a & 0xffffu) - emulated::f16_value(b & 0xffffu)) |
         emulated::f16_bits(emulated::f16_value(a >> 16) - emulated::f16_value(b >> 16)) << 16;
#else
  uint32_t d;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#endif
}
__device__ __forceinline__ float f16_value(uint16_t bits) {
#ifdef TANDEM_CUDA_EMULATED
  return emulated::f16_value(bits);
#else
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
  return f;
#endif
}

// bf16 values are their bits here; a pair lies in one word, the first in the low half.
__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float bf16_value(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }

// Rounded to nearest even; NaN stays NaN.
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
#if !defined(TANDEM_CUDA_EMULATED)
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
#else
  return emulated::bf16_bits(low) | emulated::bf16_bits(high) << 16;
#endif
}
__device__ __forceinline__ uint16_t bf16_bits(float x) { return uint16_t(bf16_pair(x, 0.0f) & 0xffffu); }

// 16 bytes that are read once, past the caches that others need. p is 16-byte aligned. Not by way of the
// read-only cache, even where nobody writes: the compiler puts such loads off until after wait_for_inputs(),
// and weights are asked for before.
__device__ __forceinline__ uint4 stream_load(const void* p) {
#ifdef TANDEM_CUDA_EMULATED
  return *static_cast<const uint4*>(p);
#else
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#endif
}
// 8 bytes that neighbours read too.
__device__ __forceinline__ uint2 early_load(const void* p) {
#ifdef TANDEM_CUDA_EMULATED
  return *static_cast<const uint2*>(p);
#else
  uint2 v;
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
#endif
}

// 16 bytes from memory to shared memory, past registers; both aligned. A thread's copies since its last
// commit_copies() are a group; wait_for_copies<n>() returns when all but its last n groups have arrived, for
// this thread: others see them after a barrier.
__device__ __forceinline__ void copy_ahead(void* shared, const void* p) {
#ifdef TANDEM_CUDA_EMULATED
  emulated::copy_ahead(shared, p);
#else
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(shared))),
      "l"(p)
      : "memory");
#endif
}
// The same of what the other blocks of the processor read as well, through the cache they have in common.
__device__ __forceinline__ void copy_ahead_shared(void* shared, const void* p) {
#ifdef TANDEM_CUDA_EMULATED
  emulated::copy_ahead(shared, p);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(shared))),
               "l"(p)
               : "memory");
#endif
}
// A place in shared memory, 16-byte aligned, in one register.
#ifdef TANDEM_CUDA_EMULATED
using SharedPlace = std::byte*;
#else
using SharedPlace = uint32_t;
#endif
// A number of this lane, exchanged with itself, so that the compiler keeps it and does not work it out again
// at every use.
__device__ __forceinline__ int kept(int v) {
#ifdef TANDEM_CUDA_EMULATED
  return v;
#else
  return __shfl_sync(kAllLanes, v, lane_id());
#endif
}
__device__ __forceinline__ SharedPlace shared_place(void* shared) {
#ifdef TANDEM_CUDA_EMULATED
  return static_cast<std::byte*>(shared);
#else
  return uint32_t(kept(int(__cvta_generic_to_shared(shared))));
#endif
}
__device__ __forceinline__ uint4 load_shared(SharedPlace at) {
#ifdef TANDEM_CUDA_EMULATED
  return *reinterpret_cast<const uint4*>(at);
#else
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
#endif
}
// copy_ahead() of what the other blocks of the processor read as well, through the cache they have in common.
__device__ __forceinline__ void copy_ahead_shared(SharedPlace at, const void* p) {
#ifdef TANDEM_CUDA_EMULATED
  emulated::copy_ahead(at, p);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(at), "l"(p) : "memory");
#endif
}
__device__ __forceinline__ void commit_copies() {
#ifdef TANDEM_CUDA_EMULATED
  emulated::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
#ifdef TANDEM_CUDA_EMULATED
  emulated::wait_for_copies(kLeft);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

// Brings the line of memory at p nearer, into the cache that all processors share. Changes nothing else, so
// it may come before wait_for_inputs().
__device__ __forceinline__ void prefetch(const void* p) {
#ifdef TANDEM_CUDA_EMULATED
  (void)p;
#else
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

__device__ __forceinline__ int count_bits(uint32_t x) {
#ifdef TANDEM_CUDA_EMULATED
  return __builtin_popcount(x);
#else
  return __popc(x);
#endif
}

// Sum over the warp; every lane gets it. Halves are exchanged from far to near: one fixed order.
__device__ __forceinline__ float warp_sum(float v) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) v += __shfl_xor_sync(kAllLanes, v, distance);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, distance));
  return v;
}

// The highest of the warp's numbers; every lane gets it.
__device__ __forceinline__ uint32_t warp_max_bits(uint32_t v) {
#ifdef TANDEM_CUDA_EMULATED
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    v = max(v, __shfl_xor_sync(kAllLanes, v, distance));
  return v;
#else
  uint32_t highest;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(highest) : "r"(v));
  return highest;
#endif
}

// The block's threads all call it, after their global writes. True for the threads of the block that is the
// last of `n_blocks` to arrive at `counter` (zero before the first use, zero again afterwards): that block
// sees what all of them wrote.
__device__ __forceinline__ bool last_arrival(unsigned* counter, unsigned n_blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1u) == n_blocks - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// ---- elementary functions: one each, whatever the kernel ----
__device__ __forceinline__ float exp_(float x) { return expf(x); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
// 1 / sqrt(x), both correctly rounded.
__device__ __forceinline__ float inverse_root(float x) { return 1.0f / sqrtf(x); }

}  // namespace tandem::cuda
