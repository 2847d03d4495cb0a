// The layers of a DFlash 2 block: those of the first DFlash with a grouped dynamic convolution over the rows
// of the block (Backend::block_conv) before and after both sublayers.
//
//   u = norm(x);  d = kernel_projection u          [rows, 2, taps, groups]
//   x += conv(sublayer(conv(u; base[0], d[0])); base[1], d[1])       sublayer: attention, then the MLP
//
// Keys and values of the block come from the convolved rows; those of context are not convolved.
// Source: the published DFlash2DraftModel checkpoints (names and shapes of their tensors).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "format/drafter_config.h"
#include "model/decoder.h"
#include "model/tensor_source.h"

namespace tandem {

class DflashBlock final : public LayerPass {
 public:
  // `trunk` holds the layers' other weights and must outlive the block. Errors: what the source says; memory.
  static Result<std::unique_ptr<DflashBlock>> load(TensorSource& source, const DrafterConfig& config,
                                                   const Decoder& trunk);
  // Looks for every tensor that load() would take. Errors: as load().
  static Status check(TensorSource& source, const DrafterConfig& config);

  void run(const Step& step, MutView residual, View angles, const StatePool& pool) override;

 private:
  // The two convolutions around a sublayer.
  struct Around {
    std::unique_ptr<Weight> projection;  // [2 taps groups, H]
    View before, after;                  // base kernels [taps, H]
  };

  explicit DflashBlock(const Decoder& trunk) : trunk_(&trunk) {}
  Status load_weights(TensorSource& source, const DrafterConfig& config);
  Status allocate(const DrafterConfig& config);
  // Rows of the last step: norm and coefficients of x, then the convolved norm in convolved_.
  void enter(const Step& step, const Around& conv, View x, View gain);
  // x += convolution of a sublayer's output, which is in norm_.
  void leave(const Step& step, const Around& conv, MutView x);
  void attend(const Step& step, const DecoderLayer& layer, View angles, const StatePool& pool);

  const Decoder* trunk_;
  std::vector<Around> attention_, mlp_;  // of each layer
  DeviceBuffer kernels_, scratch_;
  MutView norm_all_, convolved_all_, dynamic_all_, wide_all_, inner_all_;
};

}  // namespace tandem
