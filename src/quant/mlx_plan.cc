#include "quant/mlx_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "format/printable.h"
#include "quant/affine.h"
#include "quant/values.h"

namespace tandem {
namespace {

constexpr std::string_view kWeight = ".weight";

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [name](std::string_view p) { return name.starts_with(p); });
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [name](std::string_view s) { return name.ends_with(s); });
}

bool is_vision(std::string_view name) {
  return starts_with_any(name, {"model.visual.", "visual.", "vision_tower.", "model.vision_tower."});
}

bool is_mtp(std::string_view name) { return name.starts_with("mtp.") || name.find(".mtp.") != name.npos; }

std::string mlx_name(std::string_view name, Architecture architecture) {
  if (architecture != Architecture::qwen3_5) return std::string(name);
  constexpr std::string_view kNested = "model.language_model.";
  if (is_mtp(name)) return "language_model." + std::string(name.substr(name.find("mtp.")));
  if (name.starts_with("language_model.")) return std::string(name);
  if (name.starts_with(kNested)) return "language_model.model." + std::string(name.substr(kNested.size()));
  return "language_model." + std::string(name);
}

bool is_zero_centred_norm(std::string_view name) {
  return ends_with_any(name, {".input_layernorm.weight", ".post_attention_layernorm.weight", ".q_norm.weight",
                              ".k_norm.weight", "model.norm.weight", "mtp.norm.weight",
                              ".pre_fc_norm_embedding.weight", ".pre_fc_norm_hidden.weight"});
}

// Whether the norms of a hybrid hold w, to be applied as 1 + w. The layout of conv1d tells raw from converted
// files.
bool holds_raw_norms(const Checkpoint& checkpoint) {
  for (const HostTensor& t : checkpoint.tensors()) {
    if (t.name.ends_with("conv1d.weight") && t.shape.size() == 3) return t.shape[1] == 1 && t.shape[2] != 1;
  }
  return true;
}

// An MTP head next to converted files may come from anywhere. Raw weights of this norm lie around 0, shifted
// around 1.
bool holds_raw_mtp_norms(const Checkpoint& checkpoint, bool raw) {
  for (const HostTensor& t : checkpoint.tensors()) {
    if (raw || !t.name.ends_with("pre_fc_norm_hidden.weight") || !is_dense_float(t.dtype)) continue;
    std::vector<float> values(size_t(t.elements()));
    convert_to_f32(t.dtype, t.bytes.data(), values);
    double sum = 0;
    for (const float x : values) sum += x;
    return sum < 0.5 * double(values.size());
  }
  return raw;
}

// "<prefix>mlp.experts.<rest>": a fused tensor, or a matrix of one expert.
struct ExpertName {
  std::string_view prefix;  // up to and with "mlp."
  std::string_view matrix;  // gate_up_proj, gate_proj, up_proj or down_proj
  int64_t expert = -1;      // -1: all experts in one tensor
};

std::optional<ExpertName> parse_expert_name(std::string_view name) {
  constexpr std::string_view kMark = "mlp.experts.";
  const size_t at = name.find(kMark);
  if (at == name.npos) return std::nullopt;
  ExpertName parsed{.prefix = name.substr(0, at + 4), .matrix = name.substr(at + kMark.size())};
  if (parsed.matrix.ends_with(kWeight)) parsed.matrix.remove_suffix(kWeight.size());
  const char* end = parsed.matrix.data() + parsed.matrix.size();
  int64_t expert = 0;
  if (const auto [rest, code] = std::from_chars(parsed.matrix.data(), end, expert); code == std::errc()) {
    if (rest == end || *rest != '.' || expert < 0) return std::nullopt;
    parsed.expert = expert;
    parsed.matrix = std::string_view(rest + 1, size_t(end - rest - 1));
  }
  const bool known = parsed.matrix == "gate_proj" || parsed.matrix == "up_proj" ||
                     parsed.matrix == "down_proj" || (parsed.matrix == "gate_up_proj" && parsed.expert < 0);
  if (!known) return std::nullopt;
  return parsed;
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const ModelConfig& config, QuantParams params)
      : checkpoint_(checkpoint), config_(config), params_(params) {}

  Result<MlxPlan> run() {
    const bool raw = config_.hybrid() && holds_raw_norms(checkpoint_);
    const bool raw_mtp = config_.hybrid() && holds_raw_mtp_norms(checkpoint_, raw);
    for (const HostTensor& t : checkpoint_.tensors()) {
      if (t.name.ends_with(".scales")) {
        return Error{checkpoint_.where(t) + ": the checkpoint is quantised already; start from the original"};
      }
      if (is_vision(t.name)) {
        ++plan_.n_vision;
        continue;
      }
      const std::string name = mlx_name(t.name, config_.architecture);
      if (name.ends_with("rotary_emb.inv_freq")) continue;
      if (config_.tied_embeddings && name.ends_with("lm_head.weight")) continue;
      if (const auto expert = parse_expert_name(name)) {
        TD_RETURN_IF_ERROR(add_expert(t, *expert));
        continue;
      }
      PlannedTensor out{.name = name, .parts = {whole(t)}, .shape = t.shape, .dtype = t.dtype};
      const bool shift = is_mtp(name) ? raw_mtp : raw;
      if (shift && is_zero_centred_norm(name) && is_dense_float(t.dtype)) {
        out.how = PlannedTensor::How::add_one;
      } else if (name.ends_with("conv1d.weight") && out.shape.size() == 3 && out.shape[1] == 1) {
        std::swap(out.shape[1], out.shape[2]);
      }
      TD_RETURN_IF_ERROR(add(std::move(out)));
    }
    return finish();
  }

 private:
  using How = PlannedTensor::How;

  static TensorRows whole(const HostTensor& t) {
    const int64_t columns = t.shape.empty() ? 1 : t.shape.back();
    return {.tensor = &t, .first_row = 0, .n_rows = columns == 0 ? 0 : t.elements() / columns};
  }

  Status add(PlannedTensor out) {
    const std::string name = out.name;
    const HostTensor& source = *out.parts.front().tensor;
    if (!planned_.emplace(name, std::move(out)).second) {
      return Error{fmt::format("{}: two tensors of the checkpoint would be named '{}'",
                               checkpoint_.where(source), printable(name))};
    }
    return {};
  }

  Status add_expert(const HostTensor& t, const ExpertName& name) {
    const auto target = [&name](std::string_view matrix) {
      return fmt::format("{}switch_mlp.{}{}", name.prefix, matrix, kWeight);
    };
    if (name.expert >= 0) {
      if (t.shape.size() != 2) {
        return Error{
            fmt::format("{}: expected two dimensions, found {}", checkpoint_.where(t), shape_text(t.shape))};
      }
      experts_[target(name.matrix)][name.expert] = &t;
      return {};
    }
    if (t.shape.size() != 3) {
      return Error{
          fmt::format("{}: expected three dimensions, found {}", checkpoint_.where(t), shape_text(t.shape))};
    }
    if (name.matrix != "gate_up_proj") {
      return add({.name = target(name.matrix), .parts = {whole(t)}, .shape = t.shape, .dtype = t.dtype});
    }
    if (t.shape[1] % 2 != 0) {
      return Error{fmt::format("{}: expected an even number of rows (gate, then up), found {}",
                               checkpoint_.where(t), shape_text(t.shape))};
    }
    const int64_t half = t.shape[1] / 2;
    PlannedTensor gate{
        .name = target("gate_proj"), .shape = {t.shape[0], half, t.shape[2]}, .dtype = t.dtype};
    PlannedTensor up = gate;
    up.name = target("up_proj");
    for (int64_t e = 0; e < t.shape[0]; ++e) {
      gate.parts.push_back({.tensor = &t, .first_row = 2 * e * half, .n_rows = half});
      up.parts.push_back({.tensor = &t, .first_row = (2 * e + 1) * half, .n_rows = half});
    }
    if (gate.parts.empty()) return Error{checkpoint_.where(t) + ": holds no experts"};
    TD_RETURN_IF_ERROR(add(std::move(gate)));
    return add(std::move(up));
  }

  // Stacks the matrices of single experts.
  Status add_stacks() {
    for (const auto& [name, matrices] : experts_) {
      const HostTensor& first = *matrices.begin()->second;
      PlannedTensor stack{.name = name, .dtype = first.dtype};
      for (const auto& [expert, t] : matrices) {
        if (expert != int64_t(stack.parts.size())) {
          return Error{
              fmt::format("{}: expert {} is missing before it", checkpoint_.where(*t), stack.parts.size())};
        }
        if (t->shape != first.shape || t->dtype != first.dtype) {
          return Error{fmt::format("{}: expected {} {} as in '{}', found {} {}", checkpoint_.where(*t),
                                   dtype_name(first.dtype), shape_text(first.shape), printable(first.name),
                                   dtype_name(t->dtype), shape_text(t->shape))};
        }
        stack.parts.push_back(whole(*t));
      }
      if (int64_t(stack.parts.size()) != config_.n_experts) {
        return Error{fmt::format("{}: {} experts, expected num_experts = {}", checkpoint_.where(first),
                                 stack.parts.size(), config_.n_experts)};
      }
      stack.shape = {int64_t(stack.parts.size()), first.shape[0], first.shape[1]};
      TD_RETURN_IF_ERROR(add(std::move(stack)));
    }
    return {};
  }

  void choose_encoding(PlannedTensor& t) {
    const bool stack = t.name.find(".switch_mlp.") != t.name.npos && t.shape.size() == 3;
    const bool matrix = t.name.ends_with(kWeight) && (t.shape.size() == 2 || stack);
    if (t.how != How::copy || !matrix || !is_dense_float(t.dtype) || t.columns() == 0) return;
    const std::string module = t.name.substr(0, t.name.size() - kWeight.size());
    QuantParams params = params_;
    if (ends_with_any(module, {"mlp.gate", "mlp.shared_expert_gate"}) && params.bits < 8) {
      params.bits = 8;
      if (t.columns() % 64 == 0) params.group_size = 64;
    }
    if (t.columns() % params.group_size != 0) {
      plan_.plain.push_back(t.name);
      return;
    }
    t.how = How::quantise;
    t.params = params;
    if (params != params_) plan_.quantization.modules.emplace(module, params);
  }

  Result<MlxPlan> finish() {
    TD_RETURN_IF_ERROR(add_stacks());
    plan_.quantization.global = params_;
    for (auto& [name, tensor] : planned_) {
      choose_encoding(tensor);
      plan_.tensors.push_back(std::move(tensor));
    }
    return std::move(plan_);
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const QuantParams params_;
  MlxPlan plan_;
  std::map<std::string, PlannedTensor> planned_;
  std::map<std::string, std::map<int64_t, const HostTensor*>>
      experts_;  // by the stack's name, then by expert
};

}  // namespace

Result<MlxPlan> plan_mlx_conversion(const Checkpoint& checkpoint, const ModelConfig& config,
                                    QuantParams params) {
  if (config.quantised()) {
    return Error{config.file +
                 ": quantization: the checkpoint is quantised already; start from the original"};
  }
  return Planner(checkpoint, config, params).run();
}

}  // namespace tandem
