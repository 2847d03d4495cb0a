// What a Gated DeltaNet layer's own operations (convolution with gates, delta rule) cost on a GPU, as
// recorded steps run them: each figure is the mean over 48 layers, one after the other, of many replays.
// Layers have memory of their own, more together than the caches hold.
//   study_cuda_delta
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "backend/cuda/cuda_backend.h"

namespace tandem {
namespace {

constexpr int kLayers = 48;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Model {
 public:
  Model(Backend& backend, const DeltaShape& shape, int n_seqs, int max_rows)
      : backend_(&backend), shape_(shape), n_seqs_(n_seqs) {
    const int rows = std::max(max_rows * n_seqs, 1);
    projection_ = floats(rows, shape.projection_dim());
    weight_ = floats(shape.conv_dim(), kConvTaps);
    heads_ = floats(1, shape.n_v_heads);
    qkv_ = floats(rows, shape.conv_dim());
    log_decay_ = floats(rows, shape.n_v_heads);
    beta_ = floats(rows, shape.n_v_heads);
    y_ = floats(rows, shape.value_dim());
    const int tape_rows = n_seqs * 2 * kMaxDecodeRows;
    for (int i = 0; i < kLayers; ++i) {
      layers_.push_back({.s = at(floats(n_seqs * shape.value_dim(), shape.d_k)),
                         .conv = at(floats(n_seqs * (kConvTaps - 1), shape.conv_dim())),
                         .tape_g = at(floats(tape_rows, shape.n_v_heads)),
                         .tape_k = at(floats(tape_rows, shape.key_dim())),
                         .tape_delta = at(floats(tape_rows, shape.value_dim())),
                         .tape_conv = at(floats(tape_rows, shape.conv_dim()))});
    }
  }

  // Microseconds of a layer.
  double time(Path path, int rows, int n_pending, bool conv, bool step) {
    std::vector<SeqStep> seqs;
    std::vector<uint8_t> pending;
    for (int i = 0; i < n_pending; ++i) pending.push_back(uint8_t(i));
    for (int i = 0; i < n_seqs_; ++i) {
      seqs.push_back({.first_row = i * rows, .n_rows = rows, .start = 128, .slot = i, .pending = pending});
    }
    struct Body {
      Model* model;
      Step step;
      bool conv, delta;
    } body{this, {.path = path, .n_rows = rows * n_seqs_, .seqs = seqs}, conv, step};
    const StepRun run{.owner = new_step_owner(),  // each its own recording
                      .steps = {&body.step, 1},
                      .body =
                          [](void* p) {
                            const Body& b = *static_cast<Body*>(p);
                            b.model->layers(b.step, b.conv, b.delta);
                          },
                      .context = &body};
    double best = 1e9;
    for (int round = 0; round < 6; ++round) {
      constexpr int kRuns = 8;
      wait();
      const double start = now();
      for (int i = 0; i < kRuns; ++i) backend_->run(run);
      wait();
      best = std::min(best, (now() - start) / (kRuns * kLayers));
    }
    return best * 1e6;
  }

 private:
  MutView floats(int rows, int cols) {
    auto buffer = backend_->allocate(size_t(rows) * size_t(cols) * 4, "a study");
    if (!buffer.ok()) {
      fmt::print("{}\n", buffer.error().message);
      std::exit(1);
    }
    buffers_.push_back(std::move(*buffer));
    backend_->zero(buffers_.back().data(), buffers_.back().bytes());
    return buffers_.back().view(DType::f32, rows, cols);
  }
  static float* at(MutView v) { return static_cast<float*>(v.data); }
  void wait() {
    float x;
    backend_->copy_out(std::as_writable_bytes(std::span(&x, 1)), static_cast<std::byte*>(y_.data));
  }
  void layers(const Step& step, bool conv, bool delta) {
    const auto part = [&](MutView v) { return v.row_range(0, step.n_rows); };
    for (const DeltaState& state : layers_) {
      if (conv) {
        backend_->delta_conv(step, {.shape = shape_,
                                    .projection = part(projection_),
                                    .conv_weight = weight_,
                                    .a_log = heads_,
                                    .dt_bias = heads_,
                                    .state = state,
                                    .qkv = part(qkv_),
                                    .log_decay = part(log_decay_),
                                    .beta = part(beta_)});
      }
      if (delta) {
        backend_->delta_step(step, {.shape = shape_,
                                    .qkv = part(qkv_),
                                    .log_decay = part(log_decay_),
                                    .beta = part(beta_),
                                    .state = state,
                                    .y = part(y_)});
      }
    }
  }

  Backend* backend_;
  DeltaShape shape_;
  int n_seqs_;
  std::vector<DeviceBuffer> buffers_;
  MutView projection_, weight_, heads_, qkv_, log_decay_, beta_, y_;
  std::vector<DeltaState> layers_;
};

void study(DeltaForm form, const DeltaShape& shape, int n_seqs) {
  auto backend = make_cuda_backend(form);
  if (!backend.ok()) {
    fmt::print("{}\n", backend.error().message);
    std::exit(1);
  }
  fmt::print("{}: {}/{} heads of {}, {} sequences; us a layer\n  {:>8} {:>8} {:>8} {:>8} {:>8}\n",
             (*backend)->description(), shape.n_k_heads, shape.n_v_heads, shape.d_k, n_seqs, "rows",
             "pending", "conv", "delta", "both");
  Model decode(**backend, shape, n_seqs, kMaxDecodeRows);
  for (const int rows : {1, 2, 4, 8, 16, 32}) {
    for (const int pending : {0, rows}) {
      fmt::print("  {:8} {:8} {:8.2f} {:8.2f} {:8.2f}\n", rows, pending,
                 decode.time(Path::decode, rows, pending, true, false),
                 decode.time(Path::decode, rows, pending, false, true),
                 decode.time(Path::decode, rows, pending, true, true));
    }
  }
  if (form == DeltaForm::closed) return;
  Model prefill(**backend, shape, n_seqs, 1024);
  fmt::print("  prompt of 1024 tokens each: {:.2f} us conv, {:.2f} us delta\n",
             prefill.time(Path::prefill, 1024, 0, true, false),
             prefill.time(Path::prefill, 1024, 0, false, true));
}

}  // namespace
}  // namespace tandem

int main() {
  using tandem::DeltaForm;
  const tandem::DeltaShape dense{.n_k_heads = 16, .n_v_heads = 48, .d_k = 128, .d_v = 128},
      sparse{.n_k_heads = 16, .n_v_heads = 32, .d_k = 128, .d_v = 128};
  tandem::study(DeltaForm::exact, dense, 1);
  tandem::study(DeltaForm::exact, dense, 8);
  tandem::study(DeltaForm::exact, sparse, 1);
  tandem::study(DeltaForm::closed, dense, 1);
}
