// What one matrix product costs on the card, by shape, format and rows, beside a plain read of device memory
// in the same process. Weights are random and rotated so that the card's cache holds none of them; times are
// of recorded chains.
//
//   study_cuda_linear [--bits 8,4,16] [--rows 1,8,16,32,128,512] [--reps 7] [--shapes 27B]
//
// share = bytes of weights / time over the read bandwidth. More than 32 rows are a prompt's: not recorded.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/cuda_backend.h"

using namespace tandem;

namespace {

struct Shape {
  const char* name;
  int n, k, n_slices;
};
const Shape kShapes[] = {{"gate up 27B", 34816, 5120, 1},  {"down 27B", 5120, 17408, 8},
                         {"delta in 27B", 16480, 5120, 1}, {"attention in 27B", 14336, 5120, 1},
                         {"out 27B", 5120, 6144, 8},       {"delta in 35B-A3B", 12352, 2048, 1},
                         {"out 35B-A3B", 2048, 4096, 8},   {"gate up 8B", 24576, 4096, 1},
                         {"head 27B", 248320, 5120, 1}};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Chain {
  Backend* backend;
  std::vector<std::unique_ptr<Weight>> weights;
  DeviceBuffer x, y;
  int rows = 1, repeats = 1;
  uint64_t owner = 0;

  Path path() const { return rows > kMaxDecodeRows ? Path::prefill : Path::decode; }
  void run() {
    const View in = x.view(DType::f32, rows, weights[0]->k());
    const MutView out = y.view(DType::f32, rows, weights[0]->n());
    for (int i = 0; i < repeats; ++i) {
      for (const auto& w : weights) backend->linear(path(), in, *w, out);
    }
  }
};

// Microseconds of one product in a recorded chain.
double time_chain(Chain& chain, int reps) {
  const SeqStep seq{.n_rows = chain.rows};
  const Step step{.path = chain.path(), .n_rows = chain.rows, .seqs = {&seq, 1}};
  float probe = 0;
  std::vector<double> times;
  for (int i = 0; i < reps + 3; ++i) {
    const double start = seconds_now();
    chain.backend->run({.owner = chain.owner,
                        .steps = {&step, 1},
                        .body = [](void* c) { static_cast<Chain*>(c)->run(); },
                        .context = &chain});
    chain.backend->copy_out(std::as_writable_bytes(std::span(&probe, 1)), chain.y.data());
    if (i >= 3) times.push_back(seconds_now() - start);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e6 / double(chain.repeats) / double(chain.weights.size());
}

std::vector<std::byte> random_bytes(size_t n, bool halves) {
  std::mt19937_64 rng(1);
  std::vector<uint64_t> words(n / 8 + 1);
  for (uint64_t& w : words) {
    w = rng();
    // bf16 between 2^-15 and 2, both signs
    if (halves) w = (w & 0x807f807f807f807full) | 0x3c003c003c003c00ull;
  }
  std::vector<std::byte> out(n);
  std::memcpy(out.data(), words.data(), n);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> bits{8, 4, 16}, row_counts{1, 8, 16, 32, 128, 512};
  int reps = 7;
  std::string shapes;
  CLI::App app("Matrix products of the cuda backend");
  app.add_option("--bits", bits)->delimiter(',');
  app.add_option("--rows", row_counts)->delimiter(',');
  app.add_option("--reps", reps);
  app.add_option("--shapes", shapes, "only those whose name has this in it");
  CLI11_PARSE(app, argc, argv);
  auto made = make_cuda_backend();
  if (!made.ok()) {
    fmt::print(stderr, "{}\n", made.error().message);
    return 1;
  }
  Backend& backend = **made;
  const double read = backend.read_gb_per_s();
  fmt::print("{}, reads {:.0f} GB/s\n", backend.description(), read);
  fmt::print("{:18} {:>4} {:>5} {:>9} {:>7} {:>6} {:>6} {:>8}\n", "shape", "bits", "rows", "us", "GB/s",
             "share", "ratio", "TFLOP/s");
  const int most_rows = *std::max_element(row_counts.begin(), row_counts.end());
  const std::vector<std::byte> data = random_bytes(size_t{34816} * 5120 * 2, true);
  for (const int b : bits) {
    for (const Shape& s : kShapes) {
      if (size_t(s.n) * size_t(s.k) * size_t(b) / 8 > data.size()) continue;
      if (std::string(s.name).find(shapes) == std::string::npos) continue;
      HostMatrix m{.name = s.name, .n = s.n, .k = s.k, .dtype = DType::bf16, .data = data.data()};
      if (b < 16) {
        m.bits = b;
        m.group = 64;
        m.scales = m.biases = data.data();
      }
      const RowRun run{&m, 0, s.n};
      Chain chain{&backend, {}, {}, {}};
      const size_t bytes = size_t(s.n) * size_t(s.k) * size_t(b) / 8;
      for (size_t have = 0; have < (size_t{256} << 20) || chain.weights.size() < 3; have += bytes) {
        chain.weights.push_back(*backend.pack({.name = s.name, .rows = {&run, 1}, .n_slices = s.n_slices}));
      }
      std::vector<const Weight*> all;
      for (const auto& w : chain.weights) all.push_back(w.get());
      if (!backend.reserve({.max_rows = most_rows, .weights = all}).ok()) return 1;
      chain.x = *backend.allocate(size_t(most_rows) * size_t(s.k) * 4, "x");
      chain.y = *backend.allocate(size_t(most_rows) * size_t(s.n) * 4, "y");
      backend.zero(chain.y.data(), chain.y.bytes());
      backend.copy_in(chain.x.data(), std::span(data).first(chain.x.bytes()));
      double first = 0;
      for (const int rows : row_counts) {
        chain.rows = rows;
        const double flop = 2.0 * s.n * s.k * rows, guess_us = std::max(double(bytes) / 3e6, flop / 2e8);
        chain.repeats = std::max(1, int(4000.0 / guess_us / double(chain.weights.size())));
        chain.owner = new_step_owner();
        const double us = time_chain(chain, reps);
        if (first == 0) first = us;
        const double gb_per_s = double(chain.weights[0]->bytes()) / us / 1e3;
        fmt::print("{:18} {:>4} {:>5} {:>9.2f} {:>7.0f} {:>6.2f} {:>6.2f} {:>8.1f}\n", s.name, b, rows, us,
                   gb_per_s, gb_per_s / read, us / first, flop / us / 1e6);
      }
    }
  }
  return 0;
}
