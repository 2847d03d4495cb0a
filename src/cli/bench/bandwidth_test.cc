#include "cli/bench/bandwidth_test.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/huge_memory.h"
#include "base/thread_team.h"

namespace tandem::bench {
namespace {

constexpr size_t kBufferBytes = size_t{512} << 20;
constexpr int64_t kGrainBytes = 1 << 20;

// Sums of everything in [data, data + bytes), bytes a multiple of 512: the sum keeps the loads alive. The
// lines `ahead` bytes further on are fetched early.
using ReadFunction = uint64_t (*)(const std::byte* data, int64_t bytes, int64_t ahead);

uint64_t read_narrow(const std::byte* data, int64_t bytes, int64_t) {
  typedef uint64_t Pair __attribute__((vector_size(16)));
  const auto* p = reinterpret_cast<const Pair*>(data);
  Pair sums[4] = {};
  for (int64_t i = 0; i < bytes / 16; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] += p[i + j];
  }
  const Pair sum = sums[0] + sums[1] + sums[2] + sums[3];
  return sum[0] + sum[1];
}

__attribute__((target("avx2"))) uint64_t read_avx2(const std::byte* data, int64_t bytes, int64_t ahead) {
  __m256i sums[8] = {};
  for (int64_t i = 0; i < bytes; i += 256) {
    for (int j = 0; j < 4; ++j) {
      if (ahead > 0) _mm_prefetch(reinterpret_cast<const char*>(data + i + j * 64 + ahead), _MM_HINT_T0);
      const auto* line = reinterpret_cast<const __m256i*>(data + i + j * 64);
      sums[2 * j] = _mm256_add_epi64(sums[2 * j], _mm256_load_si256(line));
      sums[2 * j + 1] = _mm256_add_epi64(sums[2 * j + 1], _mm256_load_si256(line + 1));
    }
  }
  __m256i sum = sums[0];
  for (int j = 1; j < 8; ++j) sum = _mm256_add_epi64(sum, sums[j]);
  alignas(32) uint64_t parts[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), sum);
  return parts[0] + parts[1] + parts[2] + parts[3];
}

__attribute__((target("avx512f"))) uint64_t read_avx512(const std::byte* data, int64_t bytes, int64_t ahead) {
  __m512i sums[8] = {};
  for (int64_t i = 0; i < bytes; i += 512) {
    for (int j = 0; j < 8; ++j) {
      if (ahead > 0) _mm_prefetch(reinterpret_cast<const char*>(data + i + j * 64 + ahead), _MM_HINT_T0);
      sums[j] = _mm512_add_epi64(sums[j], _mm512_load_si512(data + i + j * 64));
    }
  }
  __m512i sum = sums[0];
  for (int j = 1; j < 8; ++j) sum = _mm512_add_epi64(sum, sums[j]);
  alignas(64) uint64_t parts[8];
  _mm512_store_si512(parts, sum);
  uint64_t total = 0;
  for (const uint64_t p : parts) total += p;
  return total;
}

struct ReadForm {
  ReadFunction read;
  int64_t ahead;
};

// Which form is the fastest differs by machine and by the hour (narrow loads without fetching often win): all
// are tried.
std::vector<ReadForm> read_forms() {
  std::vector<ReadForm> forms = {{read_narrow, 0}};
  if (__builtin_cpu_supports("avx512f")) {
    forms.insert(forms.end(), {{read_avx512, 0}, {read_avx512, 4096}});
  } else if (__builtin_cpu_supports("avx2")) {
    forms.insert(forms.end(), {{read_avx2, 0}, {read_avx2, 4096}});
  }
  return forms;
}

// Past the caches: a copy that first reads what it overwrites would move three bytes for two.
void copy_streaming(std::byte* to, const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();
}

class HostBandwidthTest final : public BandwidthTest {
 public:
  HostBandwidthTest(int n_threads, std::unique_ptr<HugeArena> arena, HugeBuffer buffer)
      : arena_(std::move(arena)), buffer_(std::move(buffer)), team_(n_threads), forms_(read_forms()) {
    std::byte* data = buffer_.data();
    team_.parallel_for(kBufferBytes / kGrainBytes, 1, [&](int64_t first, int64_t last, int) {
      std::memset(data + first * kGrainBytes, 1, size_t((last - first) * kGrainBytes));
    });
  }

  const Status& threads_started() const { return team_.started(); }

  double read_gb_per_s(int repeats) override {
    double best = 0;
    for (int i = 0; i < repeats; ++i) {
      for (const ReadForm& form : forms_) {
        std::atomic<uint64_t> sum{0};
        const std::byte* data = buffer_.data();
        // The last piece of the buffer is not read, so that fetching ahead stays inside.
        const int64_t pieces = int64_t(kBufferBytes) / kGrainBytes - 1;
        const double seconds = timed([&] {
          team_.parallel_for(pieces, 1, [&](int64_t first, int64_t last, int) {
            sum.fetch_add(form.read(data + first * kGrainBytes, (last - first) * kGrainBytes, form.ahead),
                          std::memory_order_relaxed);
          });
        });
        seen_ = seen_ + sum.load();
        best = std::max(best, double(pieces * kGrainBytes) / seconds / 1e9);
      }
    }
    return best;
  }

  double copy_gb_per_s(int repeats) override {
    double best = 0;
    const int64_t half = int64_t(kBufferBytes) / 2;
    for (int i = 0; i < repeats; ++i) {
      std::byte* data = buffer_.data();
      const double seconds = timed([&] {
        team_.parallel_for(half / kGrainBytes, 1, [&](int64_t first, int64_t last, int) {
          copy_streaming(data + half + first * kGrainBytes, data + first * kGrainBytes,
                         (last - first) * kGrainBytes);
        });
      });
      best = std::max(best, 2.0 * double(half) / seconds / 1e9);
    }
    return best;
  }

 private:
  template <class Body>
  static double timed(Body&& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  std::unique_ptr<HugeArena> arena_;
  HugeBuffer buffer_;
  ThreadTeam team_;
  std::vector<ReadForm> forms_;
  volatile uint64_t seen_ = 0;
};

}  // namespace

Result<std::unique_ptr<BandwidthTest>> BandwidthTest::create(int n_threads) {
  auto arena = std::make_unique<HugeArena>();
  TD_ASSIGN_OR_RETURN(HugeBuffer buffer, arena->allocate(kBufferBytes));
  auto test = std::make_unique<HostBandwidthTest>(n_threads, std::move(arena), std::move(buffer));
  TD_RETURN_IF_ERROR(test->threads_started());
  return std::unique_ptr<BandwidthTest>(std::move(test));
}

}  // namespace tandem::bench
