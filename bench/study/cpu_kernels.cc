// What the cpu backend's kernels other than matrix products cost on one thread, for each instruction set,
// beside the rate of reading memory measured in the same process. Times are the fastest of many runs, so that
// a busy machine shows less; compare numbers of one run only.
//   study_cpu_kernels [isa...]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"

namespace tandem::cpu {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class F>
double fastest(int runs, F f) {
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const double start = now();
    f();
    best = std::min(best, now() - start);
  }
  return best;
}

std::vector<float> normal(size_t n, float scale = 1) {
  static std::mt19937 random(1);
  std::normal_distribution<float> d(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = d(random);
  return v;
}

// Sums of 64 MiB, eight integers at a time.
double read_gb_per_s() {
  std::vector<float> block(size_t{64} << 18);  // 64 MiB
  std::fill(block.begin(), block.end(), 1.0f);
  volatile uint64_t sink = 0;
  const double s = fastest(10, [&] {
    uint64_t sum[8] = {};
    const auto* p = reinterpret_cast<const uint64_t*>(block.data());
    for (size_t i = 0; i < block.size() / 2; i += 8) {
      for (size_t j = 0; j < 8; ++j) sum[j] += p[i + j];
    }
    for (const uint64_t x : sum) sink = sink + x;
  });
  return double(block.size()) * 4 / s * 1e-9;
}

void report(const std::string& what, double seconds, double macs, double bytes) {
  fmt::print("  {:<58} {:9.2f} us", what, seconds * 1e6);
  if (macs > 0) fmt::print("  {:7.1f} GFMA/s", macs / seconds * 1e-9);
  if (bytes > 0) fmt::print("  {:6.1f} GB/s", bytes / seconds * 1e-9);
  fmt::print("\n");
}

void delta_decode(const Kernels& k, int heads, int d, int rows, int pending) {
  const int state_rows = d;
  auto s = normal(size_t(heads) * size_t(d) * size_t(d), 0.1f);
  const auto q = normal(size_t(32 * d)), key = normal(size_t(32 * d)), v = normal(size_t(32 * d));
  std::vector<float> y(size_t(32 * d)), delta(size_t(32 * d)), tape_k(size_t(32 * d)), tape_g(32);
  const auto fold_k = normal(size_t(32 * d), 0.1f), fold_delta = normal(size_t(32 * d), 0.01f);
  const auto run = [&](int h) {
    DeltaTile t;
    t.d_k = d;
    t.n_state_rows = state_rows;
    t.s = s.data() + size_t(h) * size_t(d) * size_t(d);
    t.n_pending = pending;
    t.n_rows = rows;
    for (int r = 0; r < 32; ++r) {
      t.fold_g[r] = 0.99f;
      t.fold_k[r] = fold_k.data() + r * d;
      t.fold_delta[r] = fold_delta.data() + r * d;
      t.log_decay[r] = -0.01f;
      t.beta[r] = 0.5f;
      t.q[r] = q.data() + r * d;
      t.k[r] = key.data() + r * d;
      t.v[r] = v.data() + r * d;
      t.y[r] = y.data() + r * d;
      t.delta[r] = delta.data() + r * d;
      t.tape_k[r] = tape_k.data() + r * d;
      t.tape_g[r] = &tape_g[size_t(r)];
    }
    k.delta_step(t);
  };
  const double seconds = fastest(30, [&] {
    for (int h = 0; h < heads; ++h) run(h);
  });
  report(fmt::format("delta_step {} heads of {}, {} rows, {} pending", heads, d, rows, pending), seconds,
         double(heads) * d * d * (2.0 * pending + 4.0 * rows), 8.0 * heads * d * d);
}

void delta_prefill(const Kernels& k, int d, int tokens) {
  auto s = normal(size_t(d) * size_t(d), 0.1f);
  const auto qkv = normal(size_t(tokens) * size_t(3 * d));
  const std::vector<float> log_decay(size_t(tokens), -0.02f), beta(size_t(tokens), 0.5f);
  std::vector<float> y(size_t(tokens) * size_t(d)), work(delta_work_floats(d, d));
  const double seconds = fastest(30, [&] {
    k.delta_chunks({.d_k = d,
                    .n_state_rows = d,
                    .s = s.data(),
                    .fresh = true,
                    .start = 0,
                    .n_rows = tokens,
                    .q = qkv.data(),
                    .k = qkv.data() + d,
                    .v = qkv.data() + 2 * d,
                    .row_stride = 3 * d,
                    .log_decay = log_decay.data(),
                    .log_decay_stride = 1,
                    .beta = beta.data(),
                    .beta_stride = 1,
                    .y = y.data(),
                    .y_stride = d,
                    .work = work.data()});
  });
  const double chunk = 3.0 * 64 * d * d + 4.0 * 0.5 * 64 * 64 * d;
  report(fmt::format("delta_chunks 1 head of {}, {} tokens", d, tokens), seconds, chunk * tokens / 64, 0);
}

void attention(const Kernels& k, int d, int group, int rows, int context) {
  const size_t head_bytes = PageLayout{d}.head_bytes();
  const int n_pages = (context + rows + kPageTokens - 1) / kPageTokens;
  std::vector<std::byte> pages(head_bytes * size_t(n_pages) + 64);
  std::vector<int32_t> ids;
  for (int i = 0; i < n_pages; ++i) ids.push_back(i);
  const auto kv = normal(size_t(2 * d));
  for (int i = 0; i < n_pages * kPageTokens; ++i) {
    k.store_kv(kv.data(), kv.data() + d, d, i % kPageTokens,
               pages.data() + head_bytes * size_t(i / kPageTokens));
  }
  const int n_queries = rows * group;
  const auto q = normal(size_t(n_queries) * size_t(d));
  std::vector<float> out(q.size()), work(size_t(attention_work_floats(d)));
  double macs = 0;
  const double seconds = fastest(20, [&] {
    macs = 0;
    for (int first = 0; first < n_queries; first += kMaxTileQueries) {
      AttentionTile t;
      t.d_head = d;
      t.n_queries = std::min(kMaxTileQueries, n_queries - first);
      t.scale = 0.06f;
      t.head_in_pages = pages.data();
      t.page_bytes = head_bytes;
      t.pages = ids.data();
      for (int i = 0; i < t.n_queries; ++i) {
        t.q[i] = q.data() + (first + i) * d;
        t.gate[i] = nullptr;
        t.out[i] = out.data() + (first + i) * d;
        t.n_keys[i] = context + (first + i) / group + 1;
        macs += 2.0 * d * t.n_keys[i];
        t.n_splits = (t.n_keys[i] + 1023) / 1024;
      }
      t.work = work.data();
      k.attention(t);
    }
  });
  report(fmt::format("attention d {}, {} heads per KV head, {} rows at {}", d, group, rows, context), seconds,
         macs, 4.0 * d * (context + rows));
}

void rows(const Kernels& k) {
  const auto x = normal(20000), g = normal(20000);
  std::vector<float> y(20000);
  report("rms_norm 1024", fastest(2000, [&] { k.rms_norm(x.data(), g.data(), 1e-6f, 1024, y.data()); }), 0,
         0);
  report("silu_mul 3584", fastest(2000, [&] { k.silu_mul(x.data(), g.data(), 3584, y.data()); }), 0, 0);
  report("gated_norm 128",
         fastest(2000, [&] { k.gated_norm(x.data(), g.data(), g.data(), 1e-6f, 128, y.data()); }), 0, 0);
  const auto w = normal(6144 * 4);
  std::vector<float> conv(6144 * 6);
  for (const int n : {1, 16}) {
    std::vector<float> out(6144 * 16), tape(6144 * 16);
    const auto run = [&](int channel) {
      ConvTile t;
      t.n_channels = kMaxConvChannels;
      t.n_rows = n;
      t.weight = w.data() + channel * 4;
      for (int i = 0; i < 3; ++i) t.window[i] = conv.data() + i * 6144 + channel;
      t.m = x.data() + channel;
      t.m_stride = 400;
      t.out = out.data() + channel;
      t.tape = tape.data() + channel;
      t.out_stride = t.tape_stride = 6144;
      t.window_before = conv.data() + channel;
      t.window_stride = 6144;
      k.conv(t);
    };
    report(fmt::format("conv 6144 channels, {} rows", n),
           fastest(300,
                   [&] {
                     for (int c = 0; c < 6144; c += kMaxConvChannels) run(c);
                   }),
           0, 0);
  }
}

}  // namespace
}  // namespace tandem::cpu

int main(int argc, char** argv) {
  using namespace tandem::cpu;
  std::vector<Isa> isas;
  for (int i = 1; i < argc; ++i) {
    if (const auto isa = isa_from_name(argv[i]); isa && isa_supported(*isa)) isas.push_back(*isa);
  }
  if (isas.empty()) isas = supported_isas();
  for (const Isa isa : isas) {
    const Kernels& k = kernels(isa);
    fmt::print("{}: read {:.1f} GB/s\n", isa_name(isa), read_gb_per_s());
    rows(k);
    for (const int n : {1, 2, 4, 8, 16}) delta_decode(k, 1, 128, n, n);
    for (const int n : {1, 2, 4, 8, 16}) delta_decode(k, 288, 128, n, n);  // 18.9 MB, a 0.8B model's
    delta_decode(k, 288, 128, 0, 1);
    delta_decode(k, 1, 128, 0, 16);
    delta_decode(k, 1, 128, 16, 0);
    for (const int d : {64, 128, 256}) delta_prefill(k, d, 512);
    attention(k, 256, 4, 1, 1024);
    attention(k, 256, 4, 16, 1024);
    attention(k, 256, 4, 64, 0);
    attention(k, 256, 4, 512, 0);
    attention(k, 128, 2, 64, 448);
    attention(k, 64, 1, 1, 512);
  }
}
