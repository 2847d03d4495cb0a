// Where a model's tensors come from: a checkpoint folder, or a generator of random weights at a published
// shape. Modules and tensors are named as Hugging Face names them below the text model's prefix
// ("layers.3.mlp.gate_proj", "norm.weight"); a source translates to what its files say.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/weight.h"
#include "base/result.h"

namespace tandem {

// A matrix and, where the source had to make it, the memory behind it.
struct SourceMatrix {
  HostMatrix matrix;
  std::shared_ptr<std::vector<std::byte>> storage;
};

enum class ExpertPart { gate, up, down };

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // "folder" or "synth:name": how errors and reports call the model.
  virtual const std::string& name() const = 0;

  virtual bool has_module(const std::string& module) const = 0;
  // The weight of a linear or embedding module, [n, k]. Errors: missing, another shape, unsupported dtype.
  virtual Result<SourceMatrix> matrix(const std::string& module, int n, int k) = 0;
  // A matrix that is a tensor `name` of its own, or the weight of a module of that name. Errors: as matrix().
  virtual Result<SourceMatrix> table(const std::string& name, int n, int k) { return matrix(name, n, k); }
  // All experts' gate, up or down matrices of a layer, each [n, k], in order of expert id.
  virtual Result<std::vector<SourceMatrix>> experts(int layer, ExpertPart part, int n_experts, int n,
                                                    int k) = 0;

  virtual bool has_vector(const std::string& tensor) const = 0;
  // A small tensor of n elements as fp32.
  virtual Result<std::vector<float>> vector(const std::string& tensor, int n) = 0;
  // A norm gain that the family stores zero-centred: 1 + w, whichever way the file holds it.
  virtual Result<std::vector<float>> shifted_gain(const std::string& tensor, int n) = 0;
  // The causal convolution's taps as [channels, taps], newest input last.
  virtual Result<std::vector<float>> conv_taps(const std::string& tensor, int channels, int taps) = 0;

  // The module's tensors have been packed: their pages may go.
  virtual void done_with(const HostMatrix& matrix) = 0;
};

}  // namespace tandem
