// Random weights at the shape of a configuration: for benchmarks without downloads. The values depend on the
// tensor's name and the element's index alone (a counter-based generator), so that a model is the same on
// every machine.
#pragma once

#include <string>
#include <vector>

#include "base/thread_team.h"
#include "format/config.h"
#include "model/tensor_source.h"

namespace tandem {

class SyntheticSource final : public TensorSource {
 public:
  // by_formula: matrices are described and not made, for a backend that makes_random_weights().
  SyntheticSource(const ModelConfig& config, int n_threads, bool by_formula = false)
      : config_(&config), team_(n_threads), by_formula_(by_formula) {}

  // Errors: threads that could not start.
  const Status& threads_started() const { return team_.started(); }

  const std::string& name() const override { return config_->file; }
  bool has_module(const std::string&) const override { return true; }
  // Standard deviation k^-0.5, so that activations stay of order one.
  Result<SourceMatrix> matrix(const std::string& module, int n, int k) override;
  Result<std::vector<SourceMatrix>> experts(int layer, ExpertPart part, int n_experts, int n, int k) override;
  bool has_vector(const std::string&) const override { return true; }
  Result<std::vector<float>> vector(const std::string& tensor, int n) override;
  Result<std::vector<float>> shifted_gain(const std::string& tensor, int n) override;
  Result<std::vector<float>> conv_taps(const std::string& tensor, int channels, int taps) override;
  void done_with(const HostMatrix&) override {}

 private:
  const ModelConfig* config_;
  ThreadTeam team_;
  bool by_formula_;
};

}  // namespace tandem
