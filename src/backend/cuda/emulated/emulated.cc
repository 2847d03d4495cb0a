#include "backend/cuda/emulated/emulated.h"

#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tensor/dtype.h"

namespace tandem::cuda::emulated {
namespace {

namespace ctx = boost::context::detail;

constexpr size_t kStackBytes = 64 * 1024;
constexpr int kMaxThreads = 1024;
constexpr size_t kMaxShared = 228 * 1024;
constexpr int kMaxCopies = 64;  // of a thread, under way

// Threads meet here: all leave once `members` have arrived.
struct Meeting {
  int members = 0, arrived = 0;
  unsigned round = 0;
};

struct Warp {
  Meeting meeting;
  // What lanes bring to a meeting, and to the one after it: nobody comes to the second next before all have
  // taken away what they came for.
  struct Brought {
    uint32_t bits[32] = {};
    float a[16][16] = {}, b[8][16] = {};  // of mma_bf16; b by column
  } brought[2];
  Brought& next() { return brought[meeting.round % 2]; }
};

struct Copy {
  void* to;
  const void* from;
  int group;
};

struct Fiber {
  ctx::fcontext_t context = nullptr;
  bool done = false;
  int n_copies = 0, copy_groups = 0;  // copies under way (Block::copies, oldest first); groups committed
  // Where it waits, and the round it waits for the end of.
  const Meeting* waits_at = nullptr;
  unsigned round = 0;
  bool waits() const { return waits_at != nullptr && waits_at->round == round; }
};

struct Block {
  const char* name = nullptr;
  void (*body)(const void*) = nullptr;
  const void* argument = nullptr;
  int n_threads = 0;
  Meeting meeting;
  std::vector<Warp> warps = std::vector<Warp>(kMaxThreads / 32);
  std::vector<Fiber> fibers = std::vector<Fiber>(kMaxThreads);
  std::vector<Copy> copies = std::vector<Copy>(size_t{kMaxThreads} * kMaxCopies);
  std::unique_ptr<std::byte[]> stacks =
      std::make_unique_for_overwrite<std::byte[]>(kMaxThreads * kStackBytes);
  size_t shared_bytes = 0;
  std::unique_ptr<std::byte[]> shared = std::make_unique<std::byte[]>(kMaxShared + 128);
  ctx::fcontext_t scheduler = nullptr;
  int current = 0;
  ThreadIndex index;
};

Block& block() {
  static Block b;
  return b;
}

void enter(ctx::transfer_t from) {
  Block& b = block();
  b.scheduler = from.fctx;
  b.body(b.argument);
  b.fibers[size_t(b.current)].done = true;
  ctx::jump_fcontext(b.scheduler, nullptr);
}

// Hands over to the other threads of the block.
void yield() {
  Block& b = block();
  const int me = b.current;
  b.scheduler = ctx::jump_fcontext(b.scheduler, nullptr).fctx;
  b.current = me;
  b.index.thread.x = unsigned(me);
}

void meet(Meeting& m) {
  const unsigned round = m.round;
  if (++m.arrived == m.members) {
    m.arrived = 0;
    ++m.round;
    return;
  }
  Fiber& me = block().fibers[size_t(block().current)];
  me.waits_at = &m;
  me.round = round;
  while (m.round == round) yield();
  me.waits_at = nullptr;
}

Warp& warp() {
  Block& b = block();
  return b.warps[size_t(b.current / 32)];
}
int lane() { return block().current % 32; }

void run_block() {
  Block& b = block();
  for (int i = 0; i < b.n_threads; ++i) {
    std::byte* end = b.stacks.get() + size_t(i + 1) * kStackBytes;
    b.fibers[size_t(i)] = {.context = ctx::make_fcontext(end, kStackBytes, enter)};
  }
  b.meeting = {b.n_threads, 0, 0};
  for (int w = 0; w * 32 < b.n_threads; ++w) b.warps[size_t(w)].meeting = {32, 0, 0};
  std::memset(dynamic_shared_memory(), 0xcd, b.shared_bytes);
  for (int left = b.n_threads, idle = 0; left > 0;) {
    const int before = left;
    unsigned rounds = b.meeting.round;
    for (int w = 0; w * 32 < b.n_threads; ++w) rounds += b.warps[size_t(w)].meeting.round;
    for (int i = 0; i < b.n_threads; ++i) {
      Fiber& f = b.fibers[size_t(i)];
      if (f.done || f.waits()) continue;
      b.current = i;
      b.index.thread.x = unsigned(i);
      f.context = ctx::jump_fcontext(f.context, nullptr).fctx;
      if (f.done) --left;
    }
    unsigned after = b.meeting.round;
    for (int w = 0; w * 32 < b.n_threads; ++w) after += b.warps[size_t(w)].meeting.round;
    idle = before == left && after == rounds ? idle + 1 : 0;
    if (idle > 1) {
      std::fprintf(stderr, "kernel %s, block %u: %d threads wait at a barrier that the others never reach\n",
                   b.name, b.index.block.x, left);
      std::abort();
    }
  }
}

}  // namespace

const ThreadIndex& here() { return block().index; }
std::byte* dynamic_shared_memory() {
  auto at = reinterpret_cast<uintptr_t>(block().shared.get());
  return block().shared.get() + (128 - at % 128) % 128;
}
void sync_block() { meet(block().meeting); }
void sync_warp() { meet(warp().meeting); }

namespace {
Fiber& me() { return block().fibers[size_t(block().current)]; }
Copy* my_copies() { return &block().copies[size_t(block().current) * kMaxCopies]; }
}  // namespace

void copy_ahead(void* to, const void* from) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0 ||
      me().n_copies == kMaxCopies) {
    std::fprintf(stderr, "kernel %s: copies of 16 bytes that are not aligned, or more than %d under way\n",
                 block().name, kMaxCopies);
    std::abort();
  }
  my_copies()[me().n_copies++] = {to, from, me().copy_groups};
}
void commit_copies() { ++me().copy_groups; }
void wait_for_copies(int groups_left) {
  Copy* copies = my_copies();
  int n = 0;
  for (; n < me().n_copies && copies[n].group < me().copy_groups - groups_left; ++n) {
    std::memcpy(copies[n].to, copies[n].from, 16);
  }
  me().n_copies -= n;
  std::memmove(copies, copies + n, size_t(me().n_copies) * sizeof(Copy));
}

uint32_t exchange(uint32_t bits, int from) {
  Warp& w = warp();
  Warp::Brought& here = w.next();
  here.bits[lane()] = bits;
  meet(w.meeting);
  return here.bits[from];
}

unsigned ballot(bool vote) {
  Warp& w = warp();
  Warp::Brought& here = w.next();
  here.bits[lane()] = vote;
  meet(w.meeting);
  unsigned all = 0;
  for (int i = 0; i < 32; ++i) all |= here.bits[i] << i;
  return all;
}

uint32_t bf16_bits(float x) {
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (u >> 16) | 0x40u;
  return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

uint32_t f16_bits(float x) { return f16_from_float(x); }
float f16_value(uint32_t bits) { return float_from_f16(uint16_t(bits)); }

uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t both = uint64_t(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= uint32_t(both >> (selectors >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
  return out;
}

namespace {
// value(pair, i): the low (0) or high (1) number of a pair.
template <class Value>
void mma_16_8_16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Value&& value) {
  Warp& w = warp();
  Warp::Brought& here = w.next();
  const int g = lane() / 4, t = lane() % 4;
  const auto put = [&](float* at, uint32_t pair) {
    at[0] = value(pair, 0);
    at[1] = value(pair, 1);
  };
  for (int i = 0; i < 4; ++i) put(&here.a[g + i % 2 * 8][2 * t + i / 2 * 8], a[i]);
  put(&here.b[g][2 * t], b0);
  put(&here.b[g][2 * t + 8], b1);
  meet(w.meeting);
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 4; ++i) d[i] += here.a[g + i / 2 * 8][k] * here.b[2 * t + i % 2][k];
  }
}
}  // namespace

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16_8_16(d, a, b0, b1,
              [](uint32_t pair, int i) { return __uint_as_float(i ? pair & 0xffff0000u : pair << 16); });
}
void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16_8_16(d, a, b0, b1, [](uint32_t pair, int i) { return f16_value(i ? pair >> 16 : pair & 0xffffu); });
}

void run(const char* name, dim3 grid, dim3 threads, size_t shared_bytes, void (*body)(const void*),
         const void* argument) {
  Block& b = block();
  if (threads.y != 1 || threads.z != 1 || threads.x > unsigned(kMaxThreads) || threads.x % 32 != 0 ||
      shared_bytes > kMaxShared) {
    std::fprintf(stderr, "kernel %s: a block of %u x %u x %u threads, %zu bytes of shared memory\n", name,
                 threads.x, threads.y, threads.z, shared_bytes);
    std::abort();
  }
  b.name = name;
  b.body = body;
  b.argument = argument;
  b.n_threads = int(threads.x);
  b.shared_bytes = shared_bytes;
  b.index.block_dim = threads;
  b.index.grid_dim = grid;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        b.index.block = {x, y, z};
        run_block();
      }
    }
  }
}

}  // namespace tandem::cuda::emulated
