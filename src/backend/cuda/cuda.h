// The cuda backend's class. Kernel families: linear.cu, rowwise.cu, attention.cu, delta_step.cu, moe.cu.
//
// An operation takes the step's table with table(step), launches kernels on the card's stream and returns.
// What a kernel sums, it sums in an order that the shapes fix: no atomics on sums, no grid size in it, no
// number of rows.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/runtime.h"
#include "backend/cuda/step_stage.h"
#include "backend/cuda/step_table.cuh"

namespace tandem::cuda {

class CudaWeight;
class Upload;
struct ActivationRows;
struct WeightPart;
struct AttendArgs;

int most_rows_of(const Step& step);  // of a sequence

// Device memory that grows when asked (load time) and never in a recorded step.
class Scratchpad {
 public:
  Scratchpad(Card& card, int& epoch) : card_(&card), epoch_(&epoch) {}
  ~Scratchpad() {
    if (data_ != nullptr) card_->release(data_);
  }
  Scratchpad(const Scratchpad&) = delete;
  Scratchpad& operator=(const Scratchpad&) = delete;
  // At least `bytes`, zeroed when made. Grows only outside recordings (`may_grow`), and then counts `epoch`
  // up.
  std::byte* need(size_t bytes, bool may_grow);
  size_t bytes() const { return bytes_; }

 private:
  Card* card_;
  int* epoch_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<Card> card, DeltaForm delta);
  ~CudaBackend() override;

  std::string description() const override;
  std::string name() const override { return "cuda"; }
  int threads() const override { return 1; }
  DeviceCard device_card() const override {
    return {card_->info().name, card_->info().sm_mhz, card_->info().memory_mhz};
  }
  size_t available_bytes() const override { return card_->available_bytes(); }

  Result<DeviceBuffer> allocate(size_t bytes, const std::string& purpose) override;
  Result<std::unique_ptr<Weight>> pack(const PackRequest& request) override;
  Status reserve(const Reserve& largest) override;
  size_t kv_page_bytes(const AttentionShape& shape) const override;

  void copy_in(std::byte* device, std::span<const std::byte> host) override;
  void copy_out(std::span<std::byte> host, const std::byte* device) override;
  void zero(std::byte* device, size_t bytes) override;
  double read_gb_per_s() override;
  double copy_gb_per_s() override;
  uint64_t launches() const override { return card_->launches(); }
  bool memory_is_host() const override { return false; }
  bool makes_random_weights() const override { return true; }
  void run(const StepRun& run) override;

  Card& card() { return *card_; }

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

  void do_delta_inputs(const Step& step, const DeltaInputs& args, Scratch& scratch) override;
  void do_delta_output(const Step& step, const DeltaOutput& args, Scratch& scratch) override;
  void do_attention_inputs(const Step& step, const AttentionInputs& args, Scratch& scratch) override;
  void do_attention_output(const Step& step, const AttentionOutput& args, Scratch& scratch) override;
  void do_mlp(const Step& step, const Mlp& args, Scratch& scratch) override;
  void do_moe(const Step& step, const Moe& args, Scratch& scratch) override;

 private:
  // The table of `step` on the card. Inside run() it is there already, as one of its steps; outside it is
  // copied now.
  const StepTable& table(const Step& step);
  // Token ids or row numbers on the card, likewise; those that lie there pass through.
  const int32_t* ids_on_card(std::span<const int32_t> ids);
  // Whether memory may grow now: not while a step is recorded.
  bool may_grow() const { return !recording_; }
  // Positions the longest sequence of the step attends to: what grids over keys are sized by. In a recorded
  // step rounded up, so that one recording serves many lengths.
  int max_keys(const Step& step) const;

  // y (+)= x w^T for any rows: x rounded first to what the weight's formats want.
  void linear_rows(View x, const Weight& w, MutView y, bool add);
  // The same with x rounded already; `rows` as fp32 for fp32 weights.
  void product(const ActivationRows& x, View rows, const CudaWeight& w, MutView y, bool add);
  // Memory for rounded activations, until the next call: in the forms asked for, or that a weight wants.
  ActivationRows activation_rows(int rows, int k, bool bf16, bool f16, bool may_grow);
  ActivationRows activation_rows(int rows, const CudaWeight& w);
  ActivationRows rounded(View x, const CudaWeight& w);
  void round_rows(View x, int k, const ActivationRows& y);  // columns from k on become zero
  // Norms and SwiGLU that leave rounded rows for the product with w (rounded_rows.cu).
  bool takes_rounded_rows(const CudaWeight& w) const;
  ActivationRows rounded_norm(View x, View gain, float eps, const CudaWeight& w);
  void rounded_norm(View x, View gain, float eps, const ActivationRows& y);
  ActivationRows rounded_swiglu(View gate_up, const CudaWeight& w);
  // In the forms that all these weights want, which read the same rows.
  ActivationRows rows_for(std::initializer_list<const Weight*> readers, int rows);
  // moe_experts; rounded_x: the rows x as the gate and up products read them, or null. logits: the router's,
  // by which the experts are chosen, or null: by args.
  void experts(const MoeExperts& args, const ActivationRows* rounded_x, const View* logits);
  // moe_many.cu: experts of many rows, with the bits of the others.
  struct ExpertScratch {
    float* score;  // [rows] of the shared expert
    float* inner;  // [rows, slots, inner_stride]
    int64_t inner_stride;
    int slots;
    std::byte* many;  // many_experts_bytes
  };
  static bool is_many_for_experts(int rows);
  static size_t many_experts_bytes(int rows, int slots);
  void experts_of_many(const MoeExperts& args, const ActivationRows& x, const ExpertScratch& scratch,
                       bool score_too);
  void reserve_linear(const CudaWeight& w, int max_rows);
  // linear_many.cu: products of many rows, with the bits of the others.
  static bool is_many(int rows);
  void product_of_many(const ActivationRows& x, const WeightPart& part, const float* bias, MutView y,
                       bool add);
  void reserve_many_rows(const CudaWeight& w, int max_rows);
  void reserve_experts(const Reserve& largest);
  void reserve_choice(const Reserve& largest);
  // Scratch of choices among logits.
  unsigned long long* choice_keys(size_t n);
  unsigned* choice_counters(int rows);
  void reserve_attention(const AttentionShape& shape, int max_rows, int max_positions);
  AttendArgs attend_args(const Step& step, const Attention& a);
  // attention_rows.cu: of a decode step; rounded: where its output goes as a product reads it, or null.
  void attend_rows(const Step& step, const Attention& a, const ActivationRows* rounded);

  // fold_states of the convolution's windows.
  void fold_windows(const Step& step, const DeltaShape& shape, const DeltaState& state);

  using RunKey = std::tuple<uint64_t, uint64_t, int, int, int, int, int, int>;
  RunKey key_of(const StepRun& run) const;

  std::unique_ptr<Card> card_;
  const DeltaForm delta_;
  StepStage stage_;
  std::span<const Step> staged_ = {};    // the steps that run() has brought to the card
  const int32_t* staged_ids_ = nullptr;  // the tokens that it brought along
  const int32_t* chosen_ids_ = nullptr;  // tokens that lie on the card, of embed_chosen()
  bool recording_ = false;
  struct RunKind {
    std::unique_ptr<Recording> recording;  // null until its second step
    uint64_t last_use = 0;                 // by n_runs_
  };
  std::map<RunKey, RunKind> kinds_;
  uint64_t n_runs_ = 0;
  int scratch_epoch_ = 0;  // changes when scratch moves
  std::pair<int, int> recordings_epoch_ = {0,
                                           0};  // what the recordings were made under: of stage, of scratch

  std::unique_ptr<Upload> upload_;  // pack: rows on their way

  std::byte* landing_ = nullptr;  // page-locked: what copy_out brings back first comes here

  // Scratch of the kernel families; each is used within one operation only.
  Scratchpad activations_;  // linear: x rounded
  Scratchpad partials_;     // products of many rows, attention: partial sums
  Scratchpad counters_;     // arrivals of blocks; zero between operations
  Scratchpad rows_;         // copy_rows, embed: row numbers given by the host
  Scratchpad experts_;      // moe
};

}  // namespace tandem::cuda
