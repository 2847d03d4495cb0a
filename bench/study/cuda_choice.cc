// What choices among logits cost on a GPU, as recorded steps run them, and how long a round takes that does
// nothing else: table to the card, replay, a few integers back, one wait.
//   study_cuda_choice
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "backend/cuda/cuda_backend.h"

namespace tandem {
namespace {

constexpr int kVocabulary = 248320, kMostRows = 32, kTogether = 64;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Bench {
  Backend* backend;
  DeviceBuffer logits, ids, values;
  int rows = 1;
  bool best = false;
  int repeats = 1;

  static void body(void* context) {
    const Bench& b = *static_cast<Bench*>(context);
    const int k = b.best ? Backend::kMostBest : 1;
    const View logits = b.logits.view(DType::f32, b.rows, kVocabulary);
    for (int i = 0; i < b.repeats; ++i) {
      const MutView ids = b.ids.view(DType::i32, b.rows, k);
      if (b.best) {
        b.backend->choose_best(logits, kVocabulary, b.values.view(DType::f32, b.rows, k), ids);
      } else {
        b.backend->choose_greedy(logits, kVocabulary, {}, ids);
      }
    }
  }

  // Median seconds of a recorded round.
  double time() {
    const uint64_t owner = new_step_owner();
    const SeqStep seq{.n_rows = 1};
    const Step step{.n_rows = 1, .seqs = {&seq, 1}};
    std::vector<int32_t> host(size_t(rows) * size_t(best ? Backend::kMostBest : 1));
    std::vector<double> times;
    for (int i = 0; i < 203; ++i) {
      const double start = now();
      backend->run({.owner = owner, .steps = {&step, 1}, .body = body, .context = this});
      backend->copy_out(std::as_writable_bytes(std::span(host)), ids.data());
      if (i >= 3) times.push_back(now() - start);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
};

template <class T>
T must(Result<T> result) {
  if (result.ok()) return *std::move(result);
  fmt::print(stderr, "study_cuda_choice: {}\n", result.error().message);
  std::exit(1);
}

int run() {
  const std::unique_ptr<Backend> backend = must(make_cuda_backend(DeltaForm::exact));
  std::vector<float> values(size_t(kMostRows) * kVocabulary);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 3);
  for (float& x : values) x = normal(rng);
  const size_t chosen = size_t(kMostRows) * Backend::kMostBest * sizeof(int32_t);
  Bench bench{.backend = backend.get(),
              .logits = must(backend->allocate(values.size() * sizeof(float), "logits")),
              .ids = must(backend->allocate(chosen, "ids")),
              .values = must(backend->allocate(chosen, "values"))};
  backend->copy_in(bench.logits.data(), std::as_bytes(std::span(values)));
  for (const bool best : {false, true}) {
    bench.best = best;
    for (const int rows : {1, 8, 32}) {
      bench.rows = rows;
      bench.repeats = 1;
      const double one = bench.time();
      bench.repeats = 1 + kTogether;
      const double more = bench.time();
      fmt::print("{} of {:2} rows: {:5.1f} us, a round {:5.1f} us\n", best ? "64 best" : "greedy ", rows,
                 (more - one) / kTogether * 1e6, one * 1e6);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main() { return tandem::run(); }
