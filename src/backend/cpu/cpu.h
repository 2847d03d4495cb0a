// The cpu backend's class, its packed weight and its scratch. Only cpu/ includes it.
//
// Operations are cut into items here (rowwise.cc, attention.cc, delta.cc, moe.cc, products.cc) and run by
// kernels.h and linear.h. An operation runs on the calling thread alone where sharing it would cost more than
// it gives; neither that nor the number of threads shows in any result.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "base/huge_memory.h"
#include "base/thread_team.h"

namespace tandem::cpu {

// A matrix as consecutive parts of its outputs, each of one format (a merged projection may mix them).
class CpuWeight final : public Weight {
 public:
  struct Part {
    int first = 0;  // output (of an expert) that the part begins at
    PackedLinear packed;
  };

  CpuWeight(int n, int k, int n_experts, int n_slices, std::vector<Part> parts, std::vector<float> bias)
      : Weight(n, k, n_experts, n_slices), parts_(std::move(parts)), bias_(std::move(bias)) {}

  size_t bytes() const override;
  std::span<const Part> parts() const { return parts_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  // Memory for `rows` rows of activations in the forms that the parts read (input_of).
  size_t input_bytes(int rows) const;
  bool any_affine() const;
  bool any_bf16() const;

 private:
  std::vector<Part> parts_;
  std::vector<float> bias_;
};

inline const CpuWeight& ours(const Weight& w) { return static_cast<const CpuWeight&>(w); }

// Aligned memory that only grows, and by reserve() before it is used in a step.
class ScratchBuffer {
 public:
  // At least `bytes`, aligned to 128; contents are lost if it grows.
  std::byte* need(size_t bytes);
  float* need_floats(size_t n) { return reinterpret_cast<float*>(need(n * sizeof(float))); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

// Bytes of each buffer that mixing `rows` rows takes.
struct ExpertMemory {
  size_t lists = 0, gate_up = 0, inner = 0, down = 0, input = 0;

  ExpertMemory() = default;
  // inner, shared_inner: widths inside a routed and the shared expert (0: there is none).
  ExpertMemory(int rows, int top_k, int inner_width, int shared_inner, const Weight& down_weight);
  size_t total() const { return lists + gate_up + inner + down + input; }
  void grow_to(const ExpertMemory& other);
};
// For the largest step of a model. Error: more experts per token than the backend adds up.
Result<ExpertMemory> expert_memory(const Reserve& largest);

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, Isa isa, DeltaForm delta)
      : team_(threads), isa_(isa), delta_(delta), kernels_(cpu::kernels(isa)), per_thread_(size_t(threads)) {}

  // Errors: threads that could not start.
  const Status& threads_started() const { return team_.started(); }

  std::string description() const override;
  std::string name() const override { return "cpu"; }
  int threads() const override { return team_.size(); }
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
  // Runs body(first, last, thread) over [0, n) in ranges of at most `grain`: on the calling thread alone if
  // all of it costs less than handing it out (total_ns is an estimate for one thread).
  template <class Body>
  void share(int64_t n, int64_t grain, double total_ns, Body&& body) {
    constexpr double kHandOutNs = 4000;
    if (team_.size() == 1 || total_ns < kHandOutNs) {
      if (n > 0) body(int64_t{0}, n, 0);
    } else {
      team_.parallel_for(n, grain, body);
    }
  }
  template <class Body>
  void for_rows(int rows, double row_ns, Body&& body) {
    const int64_t grain = row_ns > 2000 ? 1 : int64_t(2000 / row_ns) + 1;
    share(rows, grain, rows * row_ns, [&](int64_t first, int64_t last, int) {
      for (int64_t r = first; r < last; ++r) body(int(r));
    });
  }
  float* thread_floats(int thread, size_t n) { return per_thread_[size_t(thread)].need_floats(n); }

  // x as the parts of `w` read it: quantised or rounded into `memory` where need be.
  LinearInput input_of(View x, const CpuWeight& w, ScratchBuffer& memory);
  void product(View x, const CpuWeight& w, MutView y, const float* residual, int64_t residual_stride);
  bool splits_go_apart(const SeqStep& seq, const AttentionShape& shape) const;
  void attend_tiles(const Step& step, const Attention& args);
  void attend_splits(const SeqStep& seq, const Attention& args);
  void need(const ExpertMemory& memory);
  void mix_rows(const MoeExperts& args, int first_row, int n_rows);

  ThreadTeam team_;
  HugeArena arena_;
  const Isa isa_;
  const DeltaForm delta_;
  const Kernels& kernels_;
  std::vector<ScratchBuffer> per_thread_;
  ScratchBuffer input_;     // of a product
  ScratchBuffer input2_;    // of a mixture's second product
  ScratchBuffer partials_;  // of attention splits
  ScratchBuffer moe_lists_, moe_gate_up_, moe_inner_, moe_down_;
};

inline const float* row(View v, int r) { return static_cast<const float*>(v.data) + r * v.stride; }
inline float* row(MutView v, int r) { return static_cast<float*>(v.data) + r * v.stride; }

// Most partial results of attention splits that are kept at a time.
int max_attention_partials(const AttentionShape& shape);
// Rows of a mixture that are worked on at a time: bounds the memory of its products.
int moe_block_rows(const Weight& down, int top_k);

}  // namespace tandem::cpu
