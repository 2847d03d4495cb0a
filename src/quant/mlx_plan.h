// How the tensors of a Hugging Face checkpoint become those of a quantised MLX one: names, shapes, which are
// encoded.
//
//   Qwen3.5        model.language_model.X and model.X -> language_model.model.X, lm_head ->
//   language_model.lm_head,
//                  mtp.X -> language_model.mtp.X
//   hybrids        conv1d.weight [C, 1, 4] -> [C, 4, 1]; the zero-centred norms (layer, final, q/k, all of
//   mtp) hold
//                  1 + w; linear_attn.norm stays
//   experts        fused gate_up_proj [E, 2I, H] and per-expert matrices -> switch_mlp.{gate,up,down}_proj
//   [E, ..] left out       vision towers, a head that is tied to the embedding, stored rotary frequencies
//   encoded        every linear, embedding and expert matrix whose rows are whole groups; routers and
//   shared-expert
//                  gates with 8 bits at least
// A checkpoint that is in MLX form already (its conv1d says so) keeps its shapes and norms.
// Source: mlx-lm, sanitize() of these models and its convert tool; unlike it, the MTP head is kept.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "format/checkpoint.h"
#include "format/config.h"
#include "tensor/host_tensor.h"

namespace tandem {

// Rows [first_row, first_row + n_rows) of a tensor seen as [rows, last dimension].
struct TensorRows {
  const HostTensor* tensor = nullptr;
  int64_t first_row = 0, n_rows = 0;

  int64_t columns() const { return tensor->shape.empty() ? 1 : tensor->shape.back(); }
};

struct PlannedTensor {
  enum class How : uint8_t { copy, add_one, quantise };
  std::string name;  // in the new checkpoint; ends in ".weight" where it is quantised
  How how = How::copy;
  std::vector<TensorRows> parts = {};  // its rows in order, all of one dtype
  std::vector<int64_t> shape = {};
  DType dtype = DType::bf16;
  QuantParams params = {};  // quantise only

  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }  // after reshaping
};

struct MlxPlan {
  std::vector<PlannedTensor> tensors;  // by name
  QuantizationConfig quantization;     // for the new config.json
  std::vector<std::string> plain;      // matrices left as they are: rows are no whole groups
  size_t n_vision = 0;                 // tensors of a vision tower that were left out
};

// Errors: a checkpoint that is quantised already; a set of experts with gaps or unequal shapes; two tensors
// that would get one name.
Result<MlxPlan> plan_mlx_conversion(const Checkpoint& checkpoint, const ModelConfig& config,
                                    QuantParams params);

}  // namespace tandem
