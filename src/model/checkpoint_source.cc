#include "model/checkpoint_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "quant/values.h"

namespace tandem {
namespace {

const char* const kPart[] = {"gate_proj", "up_proj", "down_proj"};

}  // namespace

Result<CheckpointSource> CheckpointSource::create(const Checkpoint& checkpoint, const ModelConfig& config,
                                                  Warn warn) {
  CheckpointSource source(checkpoint, config, std::move(warn));
  for (const char* prefix : {"model.language_model.", "language_model.model.", "model."}) {
    if (checkpoint.has(std::string(prefix) + "embed_tokens.weight")) {
      source.prefix_ = prefix;
      break;
    }
  }
  if (source.prefix_.empty()) {
    return Error{checkpoint.folder() +
                 ": no embed_tokens.weight under model., model.language_model. or language_model.model.: not "
                 "a language "
                 "model's checkpoint"};
  }
  source.head_prefix_ = source.prefix_ == "language_model.model." ? "language_model." : "";
  source.converted_ = source.prefix_ == "language_model.model.";
  for (const HostTensor& t : checkpoint.tensors()) {
    if (t.name.ends_with("conv1d.weight") && t.shape.size() == 3) {
      source.converted_ = t.shape[2] == 1 && t.shape[1] != 1;  // [C, taps, 1] against [C, 1, taps]
      break;
    }
  }
  return source;
}

Result<CheckpointSource> CheckpointSource::mtp_head() const {
  for (const char* prefix : {"mtp.", "model.mtp.", "language_model.mtp.", "model.language_model.mtp.",
                             "language_model.model.mtp."}) {
    if (!checkpoint_->has(std::string(prefix) + "fc.weight")) continue;
    CheckpointSource head = *this;
    head.prefix_ = prefix;
    return head;
  }
  return Error{
      checkpoint_->folder() +
      ": has no multi-token-prediction head (no tensor mtp.fc.weight; many conversions drop it): use another "
      "drafter, or a checkpoint that keeps the head"};
}

Result<CheckpointSource> CheckpointSource::create_drafter(const Checkpoint& checkpoint,
                                                          const ModelConfig& config, Warn warn) {
  CheckpointSource source(checkpoint, config, std::move(warn));
  for (const char* prefix : {"", "model."}) {
    source.prefix_ = prefix;
    if (checkpoint.has(source.prefix_ + "fc.weight")) return source;
    if (checkpoint.has(source.prefix_ + "encoder.fc.weight")) {
      source.other_names_ = {{"fc", "encoder.fc"}, {"hidden_norm.weight", "encoder.output_norm_enc.weight"}};
      return source;
    }
  }
  return Error{
      checkpoint.folder() +
      ": no tensor fc.weight (nor encoder.fc.weight, nor either below model.): not a DFlash drafter"};
}

std::string CheckpointSource::full(const std::string& module) const {
  for (const auto& [ours, theirs] : other_names_) {
    if (module == ours) return prefix_ + theirs;
  }
  return module.starts_with("lm_head") ? head_prefix_ + module : prefix_ + module;
}

bool CheckpointSource::has_module(const std::string& module) const {
  return checkpoint_->has(full(module) + ".weight");
}

bool CheckpointSource::has_vector(const std::string& name) const { return checkpoint_->has(full(name)); }

Result<const HostTensor*> CheckpointSource::tensor(const std::string& name) const {
  const HostTensor* t = checkpoint_->find(name);
  if (t == nullptr) {
    return Error{fmt::format("{}: tensor '{}' is missing (the config.json there asks for it)",
                             checkpoint_->folder(), name)};
  }
  return t;
}

Result<SourceMatrix> CheckpointSource::matrix(const std::string& module, int n, int k) {
  return stored(full(module), full(module) + ".weight", n, k, 0, 1);
}

Result<SourceMatrix> CheckpointSource::table(const std::string& name, int n, int k) {
  const std::string module = full(name);
  return stored(module, checkpoint_->has(module) ? module : module + ".weight", n, k, 0, 1);
}

Result<SourceMatrix> CheckpointSource::stored(const std::string& module, const std::string& weight, int n,
                                              int k, int expert, int n_experts) {
  TD_ASSIGN_OR_RETURN(const HostTensor* w, tensor(weight));
  const auto expect = [&](const HostTensor& t, int64_t cols) -> Status {
    std::vector<int64_t> want =
        n_experts > 1 ? std::vector<int64_t>{n_experts, n, cols} : std::vector<int64_t>{n, cols};
    if (t.shape == want) return {};
    return Error{fmt::format("{} has shape {}, config.json asks for {}", checkpoint_->where(t),
                             shape_text(t.shape), shape_text(want))};
  };
  HostMatrix m{.name = weight, .n = n, .k = k};
  const HostTensor* scales = checkpoint_->find(module + ".scales");
  const auto part = [&](const HostTensor& t) {  // the expert's share of a stacked tensor
    return t.bytes.data() + int64_t(t.bytes.size()) / n_experts * expert;
  };
  if (scales == nullptr) {
    if (!is_dense_float(w->dtype)) {
      return Error{
          fmt::format("{} has dtype {}, expected BF16, F16 or F32 (or a tensor '{}.scales' beside it)",
                      checkpoint_->where(*w), dtype_name(w->dtype), module)};
    }
    TD_RETURN_IF_ERROR(expect(*w, k));
    m.dtype = w->dtype;
    m.data = part(*w);
  } else {
    const auto params = config_->quantization.params_for(module);
    if (!params) {
      return Error{
          fmt::format("{} is quantised (it has scales), but config.json's quantization block leaves module "
                      "'{}' plain",
                      checkpoint_->where(*w), module)};
    }
    TD_ASSIGN_OR_RETURN(const HostTensor* biases, tensor(module + ".biases"));
    if (w->dtype != DType::u32 || !is_dense_float(scales->dtype) || biases->dtype != scales->dtype) {
      return Error{
          fmt::format("{}: expected U32 codes with float scales and biases of one dtype, found {}, {}, {}",
                      checkpoint_->where(*w), dtype_name(w->dtype), dtype_name(scales->dtype),
                      dtype_name(biases->dtype))};
    }
    if (k % params->group_size != 0) {
      return Error{fmt::format("{}: {} columns are not a multiple of the quantisation group {}",
                               checkpoint_->where(*w), k, params->group_size)};
    }
    TD_RETURN_IF_ERROR(expect(*w, int64_t{k} * params->bits / 32));
    TD_RETURN_IF_ERROR(expect(*scales, k / params->group_size));
    TD_RETURN_IF_ERROR(expect(*biases, k / params->group_size));
    m.bits = params->bits;
    m.group = params->group_size;
    m.data = part(*w);
    m.scale_dtype = scales->dtype;
    m.scales = part(*scales);
    m.biases = part(*biases);
  }
  // A NaN in one weight makes every answer NaN: say which tensor, once per tensor.
  if (warn_ && expert == 0) {
    const auto check = [&](const HostTensor& t) {
      if (const NonFinite bad = find_non_finite(t.dtype, t.bytes.data(), t.elements()); bad.count > 0) {
        warn_(fmt::format(
            "{} holds {} values that are not finite (first at element {}): expect failed requests",
            checkpoint_->where(t), bad.count, bad.first));
      }
    };
    check(scales == nullptr ? *w : *scales);
    if (scales != nullptr) check(*checkpoint_->find(module + ".biases"));
  }
  return SourceMatrix{.matrix = m, .storage = nullptr};
}

Result<std::vector<SourceMatrix>> CheckpointSource::experts(int layer, ExpertPart part, int n_experts, int n,
                                                            int k) {
  const std::string mlp = fmt::format("{}layers.{}.mlp.", prefix_, layer);
  const std::string proj = kPart[int(part)];
  std::vector<SourceMatrix> all;
  const auto add = [&](const std::string& module, const std::string& weight, int rows, int e,
                       int stacked) -> Status {
    TD_ASSIGN_OR_RETURN(SourceMatrix m, stored(module, weight, rows, k, e, stacked));
    all.push_back(std::move(m));
    return {};
  };
  if (checkpoint_->has(mlp + "switch_mlp." + proj + ".weight")) {  // MLX: stacked, one tensor a projection
    const std::string module = mlp + "switch_mlp." + proj;
    for (int e = 0; e < n_experts; ++e) TD_RETURN_IF_ERROR(add(module, module + ".weight", n, e, n_experts));
  } else if (checkpoint_->has(mlp + "experts.gate_up_proj")) {  // fused: gate rows, then up rows
    const bool down = part == ExpertPart::down;
    const std::string module = mlp + (down ? "experts.down_proj" : "experts.gate_up_proj");
    for (int e = 0; e < n_experts; ++e) {
      TD_RETURN_IF_ERROR(add(module, module, down ? n : 2 * n, e, n_experts));
      if (!down) {
        HostMatrix& m = all.back().matrix;
        if (part == ExpertPart::up) m.data += n * m.row_bytes();
        m.n = n;
      }
    }
  } else {
    for (int e = 0; e < n_experts; ++e) {
      const std::string module = fmt::format("{}experts.{}.{}", mlp, e, proj);
      TD_RETURN_IF_ERROR(add(module, module + ".weight", n, 0, 1));
    }
  }
  return all;
}

Result<std::vector<float>> CheckpointSource::vector(const std::string& name, int n) {
  TD_ASSIGN_OR_RETURN(const HostTensor* t, tensor(full(name)));
  if (!is_dense_float(t->dtype)) {
    return Error{fmt::format("{} has dtype {}, expected BF16, F16 or F32", checkpoint_->where(*t),
                             dtype_name(t->dtype))};
  }
  if (t->elements() != n) {
    return Error{fmt::format("{} has shape {}, config.json asks for {} elements", checkpoint_->where(*t),
                             shape_text(t->shape), n)};
  }
  std::vector<float> values(size_t(n), 0.0f);
  convert_to_f32(t->dtype, t->bytes.data(), values);
  if (warn_ && find_non_finite(t->dtype, t->bytes.data(), n).count > 0) {
    warn_(checkpoint_->where(*t) + " holds values that are not finite: expect failed requests");
  }
  return values;
}

Result<std::vector<float>> CheckpointSource::shifted_gain(const std::string& name, int n) {
  TD_ASSIGN_OR_RETURN(std::vector<float> gain, vector(name, n));
  if (config_->zero_centred_norms && !converted_) {
    for (float& g : gain) g = 1.0f + g;
  }
  return gain;
}

Result<std::vector<float>> CheckpointSource::conv_taps(const std::string& name, int channels, int taps) {
  TD_ASSIGN_OR_RETURN(const HostTensor* t, tensor(full(name)));
  const std::array<int64_t, 3> raw{channels, 1, taps}, converted{channels, taps, 1};
  if (!std::equal(t->shape.begin(), t->shape.end(), raw.begin(), raw.end()) &&
      !std::equal(t->shape.begin(), t->shape.end(), converted.begin(), converted.end())) {
    return Error{fmt::format("{} has shape {}, expected {} or {}", checkpoint_->where(*t),
                             shape_text(t->shape), shape_text(raw), shape_text(converted))};
  }
  return vector(name, channels * taps);  // both layouts lie the same way in memory
}

void CheckpointSource::done_with(const HostMatrix& matrix) {
  if (const HostTensor* t = checkpoint_->find(matrix.name)) checkpoint_->drop_pages(*t);
}

CheckpointExtras checkpoint_extras(const Checkpoint& checkpoint) {
  CheckpointExtras extras;
  for (const HostTensor& t : checkpoint.tensors()) {
    if (t.name.starts_with("mtp.") || t.name.find(".mtp.") != std::string::npos) {
      ++extras.n_mtp;
    } else if (t.name.starts_with("model.visual.") || t.name.starts_with("visual.") ||
               t.name.starts_with("vision_tower.")) {
      ++extras.n_vision;
    }
  }
  return extras;
}

}  // namespace tandem
