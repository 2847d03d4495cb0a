// The reference backend's class, its packed weight and the few helpers its families share. Only reference/
// includes it.
//
// Rules of this folder: data is fp32; every sum, norm, exponential and product of a formula is evaluated in
// double and rounded to fp32 once, where the formula's result is stored; loops run in the order the formula
// reads; one thread. Steps may allocate small scratch (the one exception to the contract): the text stays
// closer to the formulas.
#pragma once

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "backend/backend.h"

namespace tandem {

// Dequantised fp32, row-major: [n_experts * n, k], then the bias [n] if there is one.
class ReferenceWeight final : public Weight {
 public:
  ReferenceWeight(int n, int k, int n_experts, int n_slices, DeviceBuffer values, DeviceBuffer bias)
      : Weight(n, k, n_experts, n_slices), values_(std::move(values)), bias_(std::move(bias)) {}

  size_t bytes() const override { return values_.bytes() + bias_.bytes(); }
  const float* row(int expert, int i) const {
    return reinterpret_cast<const float*>(values_.data()) + (int64_t{expert} * n() + i) * k();
  }
  float bias(int i) const { return bias_.data() ? reinterpret_cast<const float*>(bias_.data())[i] : 0.0f; }

 private:
  DeviceBuffer values_, bias_;
};

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(DeltaForm delta) : delta_(delta) {}

  std::string description() const override {
    return delta_ == DeltaForm::closed ? "reference, closed form (1 thread)" : "reference (1 thread)";
  }
  std::string name() const override { return "reference"; }
  int threads() const override { return 1; }
  size_t available_bytes() const override;

  Result<DeviceBuffer> allocate(size_t bytes, const std::string& purpose) override;
  Result<std::unique_ptr<Weight>> pack(const PackRequest& request) override;
  Status reserve(const Reserve& largest) override;
  size_t kv_page_bytes(const AttentionShape& shape) const override;

  void copy_in(std::byte* device, std::span<const std::byte> host) override;
  void copy_out(std::span<std::byte> host, const std::byte* device) override;
  void zero(std::byte* device, size_t bytes) override;

 protected:
  void do_embed(const Weight& table, std::span<const int32_t> ids, MutView y) override;
  void do_embed_chosen(const Weight& table, View ids, MutView y) override;
  void do_copy_rows(View x, std::span<const int32_t> rows, MutView y) override;
  void do_linear(Path path, View x, const Weight& w, MutView y) override;
  void do_linear_add(Path path, View x, const Weight& w, MutView residual) override;
  void do_rms_norm(View x, View gain, float eps, MutView y) override;
  void do_silu_mul(View gate_up, MutView y) override;
  void do_gated_norm(View o, View z, View gain, float eps, MutView y) override;
  void do_rope_angles(const Step& step, View frequencies, float m, MutView angles) override;
  void do_attention_prep(const Step& step, const AttentionPrep& args) override;
  void do_attention(const Step& step, const Attention& args) override;
  void do_move_kv(const SeqStep& seq, const AttentionShape& shape, const KvLayer& cache,
                  std::span<const uint8_t> rows) override;
  void do_block_conv(const Step& step, const BlockConv& args) override;
  void do_delta_conv(const Step& step, const DeltaConv& args) override;
  void do_delta_step(const Step& step, const DeltaStep& args) override;
  void do_fold_states(const Step& step, const DeltaShape& shape, const DeltaState& state) override;
  void do_moe_route(View logits, bool normalise, MutView ids, MutView weights) override;
  void do_moe_experts(Path path, const MoeExperts& args) override;
  void do_choose_greedy(View logits, int n, View names, MutView ids) override;
  void do_choose_best(View logits, int n, MutView values, MutView ids) override;

 private:
  const DeltaForm delta_;
};

namespace ref {

inline const float* row(View v, int r) { return static_cast<const float*>(v.data) + r * v.stride; }
inline float* row(MutView v, int r) { return static_cast<float*>(v.data) + r * v.stride; }

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }

inline double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double(a[i]) * b[i];
  return sum;
}

// y <- x rsqrt(mean(x^2) + eps) * gain over n columns; gain may be null (all ones). y may be x.
void rms_norm(const float* x, const float* gain, float eps, int n, float* y);

// The binary tree over slice indices, in fp32: neighbours first, then pairs of pairs. parts.size() is 1, 2, 4
// or 8.
float tree_sum(std::span<float> parts);

// x . row i of w, restricted to the columns of one k-slice; not yet rounded.
double slice_dot(const float* x, const ReferenceWeight& w, int expert, int i, int slice);

// Output i of x w^T (+ bias): every slice rounded to fp32, then the tree.
float output(const float* x, const ReferenceWeight& w, int expert, int i);

}  // namespace ref
}  // namespace tandem
