// A source whose dense matrices are quantised on the way: for drafters, whose weights may be rounded without
// changing a token of the output.
#pragma once

#include <string>
#include <vector>

#include "base/thread_team.h"
#include "model/tensor_source.h"

namespace tandem {

class QuantizingSource final : public TensorSource {
 public:
  // Affine, groups of 64 (model/ and quant/ say how); matrices that are quantised already, or whose k is no
  // multiple of 64, pass through. `inner` must outlive it.
  QuantizingSource(TensorSource& inner, int bits, int n_threads)
      : inner_(&inner), bits_(bits), team_(n_threads) {}

  // Errors: threads that could not start.
  const Status& threads_started() const { return team_.started(); }

  const std::string& name() const override { return inner_->name(); }
  bool has_module(const std::string& module) const override { return inner_->has_module(module); }
  // Errors: as the inner source; a weight that is not finite.
  Result<SourceMatrix> matrix(const std::string& module, int n, int k) override;
  // Tables are read by the row: rounding them would save nothing.
  Result<SourceMatrix> table(const std::string& name, int n, int k) override {
    return inner_->table(name, n, k);
  }
  Result<std::vector<SourceMatrix>> experts(int layer, ExpertPart part, int n_experts, int n, int k) override;
  bool has_vector(const std::string& tensor) const override { return inner_->has_vector(tensor); }
  Result<std::vector<float>> vector(const std::string& tensor, int n) override {
    return inner_->vector(tensor, n);
  }
  Result<std::vector<float>> shifted_gain(const std::string& tensor, int n) override {
    return inner_->shifted_gain(tensor, n);
  }
  Result<std::vector<float>> conv_taps(const std::string& tensor, int channels, int taps) override {
    return inner_->conv_taps(tensor, channels, taps);
  }
  void done_with(const HostMatrix& matrix) override { inner_->done_with(matrix); }

 private:
  Result<SourceMatrix> quantized(const SourceMatrix& dense);

  TensorSource* inner_;
  int bits_;
  ThreadTeam team_;
};

}  // namespace tandem
