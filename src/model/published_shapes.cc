#include "model/published_shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace tandem {
namespace {

enum class Family { qwen3_5, qwen3_next, qwen3, llama };

struct Shape {
  const char* name;
  Family family;
  int n_layers, d_model, d_ff;     // d_ff 0: every layer is a mixture
  int n_experts, top_k, d_expert;  // 0 for dense; hybrids have a shared expert as wide as one expert
  int n_heads, n_kv_heads, d_head;
  int n_k_heads, n_v_heads;  // Gated DeltaNet, 128 wide; 0 for plain attention
  bool tied;
};

// From the models' published config.json files.
constexpr Shape kShapes[] = {
    {"qwen3.5-0.8b", Family::qwen3_5, 24, 1024, 3584, 0, 0, 0, 8, 2, 256, 16, 16, true},
    {"qwen3.5-2b", Family::qwen3_5, 24, 2048, 6144, 0, 0, 0, 8, 2, 256, 16, 16, true},
    {"qwen3.5-4b", Family::qwen3_5, 32, 2560, 9216, 0, 0, 0, 16, 4, 256, 16, 32, true},
    {"qwen3.5-9b", Family::qwen3_5, 32, 4096, 12288, 0, 0, 0, 16, 4, 256, 16, 32, false},
    {"qwen3.5-27b", Family::qwen3_5, 64, 5120, 17408, 0, 0, 0, 24, 4, 256, 16, 48, false},
    {"qwen3.5-35b-a3b", Family::qwen3_5, 40, 2048, 0, 256, 8, 512, 16, 2, 256, 16, 32, false},
    {"qwen3.5-122b-a10b", Family::qwen3_5, 48, 3072, 0, 256, 8, 1024, 32, 2, 256, 16, 64, false},
    {"qwen3.5-397b-a17b", Family::qwen3_5, 60, 4096, 0, 512, 10, 1024, 32, 2, 256, 16, 64, false},
    {"qwen3-next-80b-a3b", Family::qwen3_next, 48, 2048, 0, 512, 10, 512, 16, 2, 256, 16, 32, false},
    {"qwen3-0.6b", Family::qwen3, 28, 1024, 3072, 0, 0, 0, 16, 8, 128, 0, 0, true},
    {"qwen3-1.7b", Family::qwen3, 28, 2048, 6144, 0, 0, 0, 16, 8, 128, 0, 0, true},
    {"qwen3-4b", Family::qwen3, 36, 2560, 9728, 0, 0, 0, 32, 8, 128, 0, 0, true},
    {"qwen3-8b", Family::qwen3, 36, 4096, 12288, 0, 0, 0, 32, 8, 128, 0, 0, false},
    {"qwen3-14b", Family::qwen3, 40, 5120, 17408, 0, 0, 0, 40, 8, 128, 0, 0, false},
    {"qwen3-32b", Family::qwen3, 64, 5120, 25600, 0, 0, 0, 64, 8, 128, 0, 0, false},
    {"qwen3-30b-a3b", Family::qwen3, 48, 2048, 0, 128, 8, 768, 32, 4, 128, 0, 0, false},
    {"qwen3-235b-a22b", Family::qwen3, 94, 4096, 0, 128, 8, 1536, 64, 4, 128, 0, 0, false},
    {"llama-3.2-1b", Family::llama, 16, 2048, 8192, 0, 0, 0, 32, 8, 64, 0, 0, true},
    {"llama-3.2-3b", Family::llama, 28, 3072, 8192, 0, 0, 0, 24, 8, 128, 0, 0, true},
    {"llama-3.1-8b", Family::llama, 32, 4096, 14336, 0, 0, 0, 32, 8, 128, 0, 0, false},
    {"llama-3.1-70b", Family::llama, 80, 8192, 28672, 0, 0, 0, 64, 8, 128, 0, 0, false},
};

ModelConfig config_of(const Shape& s, const std::string& model) {
  const bool hybrid = s.n_v_heads > 0;
  ModelConfig c;
  c.file = model;
  c.model_type = s.name;
  c.architecture = s.family == Family::qwen3_5      ? Architecture::qwen3_5
                   : s.family == Family::qwen3_next ? Architecture::qwen3_next
                   : s.family == Family::qwen3      ? Architecture::qwen3
                                                    : Architecture::llama;
  c.vocab_size = s.family == Family::qwen3_5 ? 248320 : s.family == Family::llama ? 128256 : 151936;
  c.d_model = s.d_model;
  c.n_layers = s.n_layers;
  c.d_ff = s.d_ff;
  c.n_heads = s.n_heads;
  c.n_kv_heads = s.n_kv_heads;
  c.d_head = s.d_head;
  c.rms_norm_eps = s.family == Family::llama ? 1e-5 : 1e-6;
  c.max_position = c.context = s.family == Family::llama ? 131072 : 262144;
  c.rope.theta = s.family == Family::llama ? 5e5 : s.family == Family::qwen3 ? 1e6 : 1e7;
  c.rope.rotary_dims = hybrid ? s.d_head / 4 : s.d_head;
  if (s.family == Family::llama) {
    c.rope.type = RopeConfig::Type::llama3;
    c.rope.factor = s.d_model < 4096 ? 32 : 8;
    c.rope.original_max_position = 8192;
  }
  c.zero_centred_norms = hybrid;
  c.qk_norm = s.family != Family::llama;
  c.output_gate = hybrid;
  c.tied_embeddings = s.tied;
  if (hybrid) {
    c.n_linear_k_heads = s.n_k_heads;
    c.n_linear_v_heads = s.n_v_heads;
    c.d_linear_k = c.d_linear_v = 128;
    c.conv_kernel = 4;
  }
  c.n_experts = s.n_experts;
  c.top_k = s.top_k;
  c.d_expert = s.d_expert;
  c.d_shared_expert = hybrid && s.n_experts > 0 ? s.d_expert : 0;
  c.norm_top_k = true;
  c.dtype = DType::bf16;
  return c;
}

// "4" -> 4; anything else is an error that names what it was for.
Result<int> number(std::string_view text, const std::string& model, const char* what) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return Error{fmt::format("{}: {} is '{}', expected a whole number", model, what, text)};
  }
  return value;
}

}  // namespace

std::vector<std::string> published_shape_names() {
  std::vector<std::string> names;
  for (const Shape& s : kShapes) names.emplace_back(s.name);
  return names;
}

Result<ModelConfig> parse_synthetic(const std::string& model) {
  std::string_view rest = std::string_view(model).substr(std::string_view("synth:").size());
  std::string_view options;
  if (const size_t comma = rest.find(','); comma != rest.npos) {
    options = rest.substr(comma + 1);
    rest = rest.substr(0, comma);
  }
  std::string_view bits_text;
  if (const size_t at = rest.find('@'); at != rest.npos) {
    bits_text = rest.substr(at + 1);
    rest = rest.substr(0, at);
  }
  const Shape* shape = nullptr;
  for (const Shape& s : kShapes) {
    if (s.name == rest) shape = &s;
  }
  if (shape == nullptr) {
    return Error{fmt::format("{}: no published shape '{}'; known: {}", model, rest,
                             fmt::join(published_shape_names(), ", "))};
  }
  ModelConfig config = config_of(*shape, model);
  QuantParams quant{.bits = 0, .group_size = 64};
  if (!bits_text.empty()) {
    TD_ASSIGN_OR_RETURN(quant.bits, number(bits_text, model, "bits"));
    if (quant.bits != 16 && (quant.bits < 2 || quant.bits > 8 || quant.bits == 7)) {
      return Error{fmt::format("{}: bits is {}, expected 2, 3, 4, 5, 6, 8 or 16", model, quant.bits)};
    }
  }
  std::vector<std::string_view> seen;
  while (!options.empty()) {
    const size_t comma = options.find(',');
    const std::string_view option = options.substr(0, comma);
    options = comma == options.npos ? std::string_view{} : options.substr(comma + 1);
    const std::string_view name = option.substr(0, option.find('='));
    if (std::find(seen.begin(), seen.end(), name) != seen.end())
      return Error{fmt::format("{}: {} is given twice", model, name)};
    seen.push_back(name);
    if (option.starts_with("layers=")) {
      TD_ASSIGN_OR_RETURN(config.n_layers, number(option.substr(7), model, "layers"));
      if (config.n_layers < 1 || config.n_layers > shape->n_layers) {
        return Error{
            fmt::format("{}: layers is {}, expected 1 to {}", model, config.n_layers, shape->n_layers)};
      }
    } else if (option.starts_with("group=")) {
      TD_ASSIGN_OR_RETURN(quant.group_size, number(option.substr(6), model, "group"));
      if (quant.group_size != 32 && quant.group_size != 64 && quant.group_size != 128) {
        return Error{fmt::format("{}: group is {}, expected 32, 64 or 128", model, quant.group_size)};
      }
    } else {
      return Error{fmt::format("{}: unknown option '{}'; use layers=N or group=G", model, option)};
    }
  }
  if (quant.bits != 0 && quant.bits != 16) config.quantization.global = quant;
  for (int i = 0; i < config.n_layers; ++i) {
    const bool full = config.n_linear_v_heads == 0 || (i + 1) % 4 == 0;
    config.layer_kinds.push_back(full ? LayerKind::full_attention : LayerKind::linear_attention);
    config.moe_layers.push_back(config.n_experts > 0);
  }
  return config;
}

}  // namespace tandem
