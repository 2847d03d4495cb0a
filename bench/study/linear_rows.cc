// What the matrix products of one decode step cost, by rows, beside the read bandwidth of the same process;
// and prefill beside oneDNN. Shapes of Qwen3.5-0.8B, random weights, every matrix at its own address (nothing
// is found in a cache).
//
//   study_linear_rows [--threads 1,2] [--bits 16,8,4] [--rows 1,2,4,8,16,32] [--isa avx512] [--reps 15]
//   [--prefill 512]
//
// share = bytes of weights / time, over the best read of the run; ratio = time over that of the first row
// count. Times are medians (and the best) of `reps` rounds; a round measures everything once, so that a drift
// of the host meets all of it.
#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "backend/cpu/linear.h"

using namespace tandem;
using namespace tandem::cpu;

namespace {

struct MatrixShape {
  const char* name;
  int n, k, n_slices, count;
};
const MatrixShape kStepShapes[] = {
    {"delta in", 6144 + 2048 + 32, 1024, 1, 18},
    {"delta out", 1024, 2048, 8, 18},
    {"attention in", 5120, 1024, 1, 6},
    {"attention out", 1024, 2048, 8, 6},
    {"gate up", 7168, 1024, 1, 24},
    {"down", 1024, 3584, 8, 24},
    {"head", 248320, 1024, 1, 1},
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class F>
double timed(F f) {
  const double start = seconds_now();
  f();
  return seconds_now() - start;
}

struct Stats {
  std::vector<double> seconds;
  double best() const { return *std::min_element(seconds.begin(), seconds.end()); }
  double median() const {
    std::vector<double> sorted = seconds;
    std::nth_element(sorted.begin(), sorted.begin() + int64_t(sorted.size() / 2), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

// All matrices of a step in one format.
struct Step {
  std::vector<PackedLinear> weights;
  size_t bytes = 0;
};

Step make_step(ThreadTeam& team, HugeArena& arena, int bits) {
  std::mt19937_64 rng(1);
  Step step;
  size_t largest = 0;
  for (const MatrixShape& s : kStepShapes) largest = std::max(largest, size_t(s.n) * size_t(s.k));
  std::vector<uint64_t> random(largest * size_t(bits) / 64);
  for (uint64_t& word : random) {
    // bf16 values between 2^-15 and 2, so that sums stay finite.
    word = bits == 16 ? (rng() & 0x87ff87ff87ff87ffu) | 0x3800380038003800u : rng();
  }
  std::vector<uint16_t> scales(largest / 64), biases(largest / 64);
  for (uint16_t& s : scales) s = uint16_t(0x3c00 | (rng() & 0x807f));
  for (uint16_t& b : biases) b = uint16_t(0x3d00 | (rng() & 0x807f));
  const double start = seconds_now();
  for (const MatrixShape& s : kStepShapes) {
    HostMatrix m;
    m.name = s.name;
    m.n = s.n;
    m.k = s.k;
    m.data = reinterpret_cast<const std::byte*>(random.data());
    if (bits == 16) {
      m.dtype = DType::bf16;
    } else {
      m.bits = bits;
      m.group = 64;
      m.scales = reinterpret_cast<const std::byte*>(scales.data());
      m.biases = reinterpret_cast<const std::byte*>(biases.data());
    }
    const RowRun run{&m, 0, s.n};
    for (int i = 0; i < s.count; ++i) {
      Result<PackedLinear> w = pack_linear(team, arena, {linear_format(m), s.n, s.k, s.n_slices}, {&run, 1});
      if (!w.ok()) {
        fmt::print(stderr, "{}\n", w.error().message);
        exit(1);
      }
      step.bytes += w->bytes();
      step.weights.push_back(*std::move(w));
    }
  }
  const double spent = seconds_now() - start;
  fmt::print("# {} bit: {:.1f} MB packed in {:.2f} s ({:.1f} GB/s of packed bytes)\n", bits,
             double(step.bytes) / 1e6, spent, double(step.bytes) / spent / 1e9);
  return step;
}

struct Inputs {
  std::vector<float> values;
  std::vector<std::byte> quantized, rounded;
};

Inputs make_inputs(int rows, int k) {
  Inputs in;
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  in.values.resize(size_t(rows) * size_t(k));
  for (float& v : in.values) v = normal(rng);
  in.quantized.resize(quantized_bytes(rows, k));
  in.rounded.resize(rounded_bytes(rows, k));
  return in;
}

void run_linear(ThreadTeam& team, Isa isa, const PackedLinear& w, Inputs& in, int rows,
                std::vector<float>& y) {
  LinearInput x{in.values.data(), w.shape.k, {}, {}};
  if (w.shape.format.affine()) {
    x.quantized = quantized_rows_in(in.quantized, rows, w.shape.k);
    quantize_rows(team, isa, x.values, x.stride, x.quantized);
  } else if (w.shape.format.dtype == DType::bf16) {
    x.rounded = rounded_rows_in(in.rounded, rows, w.shape.k);
    round_rows(team, isa, x.values, x.stride, x.rounded);
  }
  linear(team, isa, w, x, rows, {.y = y.data(), .stride = w.shape.n});
}

// Reads the packed weights as one long stream per thread and adds them up. (Of the forms tried, with and
// without prefetching, 16-byte loads in pieces of 256 KB and more were the fastest on most runs.)
uint64_t read_all(ThreadTeam& team, const Step& step) {
  typedef uint64_t Pair __attribute__((vector_size(16)));
  std::atomic<uint64_t> total{0};
  for (const PackedLinear& w : step.weights) {
    constexpr int64_t kLine = 64;
    team.parallel_for(int64_t(w.bytes()) / kLine, (512 << 10) / kLine, [&](int64_t first, int64_t last, int) {
      const auto* p = reinterpret_cast<const Pair*>(w.memory.data() + first * kLine);
      Pair a = {}, b = {}, c = {}, d = {};
      for (int64_t i = 0; i < (last - first) * 4; i += 4) {
        a += p[i];
        b += p[i + 1];
        c += p[i + 2];
        d += p[i + 3];
      }
      a += b + c + d;
      total.fetch_add(a[0] + a[1], std::memory_order_relaxed);
    });
  }
  return total.load();
}

void bench_decode(int threads, int bits, const std::vector<int>& rows, Isa isa, int reps) {
  ThreadTeam team(threads);
  ThreadTeam packers(2);
  HugeArena arena;
  const Step step = make_step(packers, arena, bits);
  const int most = *std::max_element(rows.begin(), rows.end());
  std::vector<float> y(size_t(most) * 248320);
  Inputs in = make_inputs(most, 3584);
  Stats read;
  std::vector<Stats> stats(rows.size());
  uint64_t sink = 0;
  for (int rep = 0; rep < reps + 1; ++rep) {
    const double read_s = timed([&] { sink += read_all(team, step); });
    if (rep > 0) read.seconds.push_back(read_s);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double s = timed([&] {
        for (const PackedLinear& w : step.weights) run_linear(team, isa, w, in, rows[i], y);
      });
      if (rep > 0) stats[i].seconds.push_back(s);
    }
  }
  const double gb = double(step.bytes) / 1e9;
  fmt::print("{} threads, {} bit, {}: read {:.1f} GB/s best, {:.1f} median ({:.2f} ms) [{}]\n", threads, bits,
             isa_name(isa), gb / read.best(), gb / read.median(), read.median() * 1e3, sink % 10);
  fmt::print("{:>6} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8}\n", "rows", "ms", "best", "share", "(best)", "ratio",
             "(best)");
  for (size_t i = 0; i < rows.size(); ++i) {
    fmt::print("{:>6} {:>9.2f} {:>9.2f} {:>7.1f}% {:>7.1f}% {:>8.2f} {:>8.2f}\n", rows[i],
               stats[i].median() * 1e3, stats[i].best() * 1e3, 100 * read.median() / stats[i].median(),
               100 * read.best() / stats[i].best(), stats[i].median() / stats[0].median(),
               stats[i].best() / stats[0].best());
  }
}

// One product [rows, k] x [n, k]^T with packed weights.
struct DnnlProduct {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  dnnl::memory x, w, y;

  DnnlProduct(int rows, int n, int k, bool int8) {
    using dt = dnnl::memory::data_type;
    using tag = dnnl::memory::format_tag;
    const dnnl::memory::desc xd({rows, k}, int8 ? dt::u8 : dt::bf16, tag::ab);
    const dnnl::memory::desc wd({k, n}, int8 ? dt::s8 : dt::bf16, tag::any);
    const dnnl::memory::desc yd({rows, n}, int8 ? dt::s32 : dt::f32, tag::ab);
    const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(xd, wd, yd), engine);
    matmul = dnnl::matmul(pd);
    x = dnnl::memory(pd.src_desc(), engine);
    w = dnnl::memory(pd.weights_desc(), engine);
    y = dnnl::memory(pd.dst_desc(), engine);
    memset(x.get_data_handle(), int8 ? 3 : 0, pd.src_desc().get_size());
    memset(w.get_data_handle(), int8 ? 5 : 0, pd.weights_desc().get_size());
  }
  void run() {
    matmul.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
    stream.wait();
  }
};

void bench_prefill(int threads, const std::vector<int>& widths, int rows, Isa isa, int reps) {
  omp_set_num_threads(threads);
  ThreadTeam team(threads);
  struct Row {
    std::string name;
    double flop = 0;
    std::vector<Stats> ours, dnnl;
  };
  std::vector<Row> table;
  for (const MatrixShape& s : kStepShapes) {
    if (std::string(s.name) == "head") continue;
    Row row{fmt::format("{} [{}, {}]", s.name, s.n, s.k), 2.0 * rows * s.n * s.k, {}, {}};
    row.ours.resize(widths.size());
    row.dnnl.resize(2);
    HugeArena arena;
    std::vector<PackedLinear> weights;
    std::mt19937_64 rng(3);
    std::vector<uint64_t> random(size_t(s.n) * size_t(s.k) / 4);
    for (uint64_t& word : random) word = (rng() & 0x87ff87ff87ff87ffu) | 0x3800380038003800u;
    for (const int bits : widths) {
      HostMatrix m;
      m.n = s.n;
      m.k = s.k;
      m.data = reinterpret_cast<const std::byte*>(random.data());
      m.scales = m.biases = m.data;
      if (bits == 16) {
        m.dtype = DType::bf16;
      } else {
        m.bits = bits;
        m.group = 64;
      }
      const RowRun run{&m, 0, s.n};
      weights.push_back(*pack_linear(team, arena, {linear_format(m), s.n, s.k, s.n_slices}, {&run, 1}));
    }
    Inputs in = make_inputs(rows, s.k);
    std::vector<float> y(size_t(rows) * size_t(s.n));
    DnnlProduct bf16(rows, s.n, s.k, false), int8(rows, s.n, s.k, true);
    for (int rep = 0; rep < reps + 1; ++rep) {
      // oneDNN's OpenMP workers go on spinning after a product; wait until they sleep.
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      std::vector<double> spent;
      for (const PackedLinear& w : weights)
        spent.push_back(timed([&] { run_linear(team, isa, w, in, rows, y); }));
      const double bf16_s = timed([&] { bf16.run(); }), int8_s = timed([&] { int8.run(); });
      if (rep == 0) continue;
      for (size_t i = 0; i < spent.size(); ++i) row.ours[i].seconds.push_back(spent[i]);
      row.dnnl[0].seconds.push_back(bf16_s);
      row.dnnl[1].seconds.push_back(int8_s);
    }
    table.push_back(row);
  }
  fmt::print("prefill of {} rows, {} threads, {}; GFLOP/s, best of {}\n{:<28}", rows, threads, isa_name(isa),
             reps, "");
  for (const int bits : widths) fmt::print(" {:>5} bit", bits);
  fmt::print(" {:>9} {:>9}\n", "dnnl bf16", "dnnl int8");
  double flop = 0;
  std::vector<double> seconds(widths.size() + 2);
  for (size_t t = 0; t < table.size(); ++t) {
    const Row& row = table[t];
    fmt::print("{:<28}", row.name);
    flop += row.flop * kStepShapes[t].count;
    for (size_t i = 0; i < seconds.size(); ++i) {
      const double best = i < widths.size() ? row.ours[i].best() : row.dnnl[i - widths.size()].best();
      seconds[i] += best * kStepShapes[t].count;
      fmt::print(" {:>9.0f}", row.flop / best / 1e9);
    }
    fmt::print("\n");
  }
  fmt::print("{:<28}", "all layers");
  for (const double s : seconds) fmt::print(" {:>9.0f}", flop / s / 1e9);
  fmt::print("\n{:<28}", "share of dnnl bf16 / int8");
  for (size_t i = 0; i < widths.size(); ++i) {
    fmt::print(" {:>4.0f}/{:>3.0f}%", 100 * seconds[widths.size()] / seconds[i],
               100 * seconds[widths.size() + 1] / seconds[i]);
  }
  fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> threads = {2, 1}, bits = {8, 16, 4}, rows = {1, 2, 4, 8, 16, 32};
  std::string isa_text = std::string(isa_name(best_isa()));
  int reps = 15, prefill = 512;
  CLI::App app("Cost of the matrix products of a step, by rows");
  app.add_option("--threads", threads)->delimiter(',');
  app.add_option("--bits", bits)->delimiter(',');
  app.add_option("--rows", rows, "row counts of decode steps; 0: none")->delimiter(',');
  app.add_option("--isa", isa_text);
  app.add_option("--reps", reps);
  app.add_option("--prefill", prefill, "rows of the prefill part; 0: none");
  CLI11_PARSE(app, argc, argv);
  const std::optional<Isa> isa = isa_from_name(isa_text);
  if (!isa || !isa_supported(*isa)) {
    fmt::print(stderr, "--isa {}: this CPU runs portable{}\n", isa_text,
               best_isa() == Isa::portable ? "" : ", avx2...");
    return 2;
  }
  for (const int t : threads) {
    if (rows[0] > 0) {
      for (const int b : bits) bench_decode(t, b, rows, *isa, reps);
    }
    if (prefill > 0) bench_prefill(t, bits, prefill, *isa, reps);
  }
  return 0;
}
