// Tensors of a checkpoint folder: Hugging Face and MLX names, both expert layouts, dense and affine-quantised
// modules.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "format/checkpoint.h"
#include "format/config.h"
#include "model/tensor_source.h"

namespace tandem {

class CheckpointSource final : public TensorSource {
 public:
  using Warn = std::function<void(const std::string&)>;  // a sentence naming the tensor

  // Finds the text model's prefix. Errors: no embedding under any known prefix.
  static Result<CheckpointSource> create(const Checkpoint& checkpoint, const ModelConfig& config, Warn warn);

  // The multi-token-prediction head of the same checkpoint: modules are named below "mtp.". Errors: the
  // folder has none.
  Result<CheckpointSource> mtp_head() const;
  // A DFlash drafter's folder: no embedding of its own. Names with or without "model."; fc and hidden_norm
  // also as encoder.fc and encoder.output_norm_enc. Errors: not such a folder.
  static Result<CheckpointSource> create_drafter(const Checkpoint& checkpoint, const ModelConfig& config,
                                                 Warn warn);

  const std::string& name() const override { return checkpoint_->folder(); }
  bool has_module(const std::string& module) const override;
  Result<SourceMatrix> matrix(const std::string& module, int n, int k) override;
  Result<SourceMatrix> table(const std::string& name, int n, int k) override;
  Result<std::vector<SourceMatrix>> experts(int layer, ExpertPart part, int n_experts, int n, int k) override;
  bool has_vector(const std::string& tensor) const override;
  Result<std::vector<float>> vector(const std::string& tensor, int n) override;
  Result<std::vector<float>> shifted_gain(const std::string& tensor, int n) override;
  Result<std::vector<float>> conv_taps(const std::string& tensor, int channels, int taps) override;
  void done_with(const HostMatrix& matrix) override;

 private:
  CheckpointSource(const Checkpoint& checkpoint, const ModelConfig& config, Warn warn)
      : checkpoint_(&checkpoint), config_(&config), warn_(std::move(warn)) {}
  std::string full(const std::string& module) const;
  // The matrix stored as tensor `weight` (with scales and biases beside it when quantised); expert e of a
  // stack.
  Result<SourceMatrix> stored(const std::string& module, const std::string& weight, int n, int k, int expert,
                              int n_experts);
  Result<const HostTensor*> tensor(const std::string& name) const;

  const Checkpoint* checkpoint_;
  const ModelConfig* config_;
  Warn warn_;
  std::string prefix_;       // of the text model: "model.", "model.language_model.", "language_model.model."
  std::string head_prefix_;  // of lm_head: "" or "language_model."
  std::vector<std::pair<std::string, std::string>> other_names_ = {};  // ours, the file's; below prefix_
  bool converted_ = false;  // by MLX: conv taps transposed, zero-centred gains stored as 1 + w
};

// What is in the folder beside the text model.
struct CheckpointExtras {
  int n_mtp = 0;     // tensors of a multi-token-prediction head
  int n_vision = 0;  // tensors of a vision tower, skipped
};
CheckpointExtras checkpoint_extras(const Checkpoint& checkpoint);

}  // namespace tandem
