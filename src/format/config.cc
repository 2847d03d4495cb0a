#include "format/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "base/mapped_file.h"
#include "format/config_parts.h"
#include "format/printable.h"

namespace tandem {
namespace {

// Sane limits, well above anything published; products of four of them fit an int64.
constexpr int64_t kMaxWidth = 1 << 18;  // of activations and FFNs
constexpr int64_t kMaxVocab = 1 << 22;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxExpertsPerToken = 64;
constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr int64_t kConvKernel = 4;

struct ModelType {
  std::string_view name;
  Architecture architecture;
  bool moe;
};

constexpr std::array kModelTypes{
    ModelType{"qwen3_5", Architecture::qwen3_5, false},
    ModelType{"qwen3_5_text", Architecture::qwen3_5, false},
    ModelType{"qwen3_5_moe", Architecture::qwen3_5, true},
    ModelType{"qwen3_5_moe_text", Architecture::qwen3_5, true},
    ModelType{"qwen3_next", Architecture::qwen3_next, true},
    ModelType{"qwen3", Architecture::qwen3, false},
    ModelType{"qwen3_moe", Architecture::qwen3, true},
    ModelType{"llama", Architecture::llama, false},
    ModelType{"mistral", Architecture::llama, false},
};

Result<ModelType> find_model_type(const JsonFields& fields) {
  TD_ASSIGN_OR_RETURN(const std::optional<std::string> name, fields.string("model_type"));
  for (const ModelType& type : kModelTypes) {
    if (name && type.name == *name) return type;
  }
  return fields.error("model_type",
                      fmt::format("{} is not supported; supported are {}",
                                  name ? fmt::format("'{}'", printable(*name)) : "a file without it",
                                  supported_model_types()));
}

Status read_sizes(const JsonFields& text, ModelConfig& config) {
  const auto read = [&text](std::string_view key, int64_t limit, int& out) -> Status {
    TD_ASSIGN_OR_RETURN(const int64_t x, text.require_integer(key, 1, limit));
    out = int(x);
    return {};
  };
  TD_RETURN_IF_ERROR(read("vocab_size", kMaxVocab, config.vocab_size));
  TD_RETURN_IF_ERROR(read("hidden_size", kMaxWidth, config.d_model));
  TD_RETURN_IF_ERROR(read("num_hidden_layers", kMaxLayers, config.n_layers));
  TD_RETURN_IF_ERROR(read("num_attention_heads", kMaxHeads, config.n_heads));
  TD_RETURN_IF_ERROR(read("max_position_embeddings", kMaxContext, config.max_position));
  TD_ASSIGN_OR_RETURN(config.rms_norm_eps, text.require_number("rms_norm_eps", 1e-12, 0.1));
  if (text.has("num_key_value_heads") || config.architecture != Architecture::llama) {
    TD_RETURN_IF_ERROR(read("num_key_value_heads", kMaxHeads, config.n_kv_heads));
  } else {
    config.n_kv_heads = config.n_heads;  // Llama files from before grouped queries
  }
  if (config.n_heads % config.n_kv_heads != 0) {
    return text.error("num_attention_heads", fmt::format("{} is not a multiple of num_key_value_heads = {}",
                                                         config.n_heads, config.n_kv_heads));
  }
  if (text.has("head_dim")) {
    TD_RETURN_IF_ERROR(read("head_dim", kMaxHeadDim, config.d_head));
  } else if (config.architecture != Architecture::llama) {
    return text.error("head_dim", "expected an integer, found nothing");
  } else if (config.d_model % config.n_heads != 0 || config.d_model / config.n_heads > kMaxHeadDim) {
    return text.error("hidden_size",
                      fmt::format("{} over num_attention_heads = {} is no head size in [1, {}]; give "
                                  "head_dim",
                                  config.d_model, config.n_heads, kMaxHeadDim));
  } else {
    config.d_head = config.d_model / config.n_heads;
  }
  if (config.d_head % 2 != 0) {
    return text.error("head_dim", fmt::format("expected an even number, found {}", config.d_head));
  }
  return {};
}

// A flag that must not be on, since nothing here implements what it means.
Status refuse_flag(const JsonFields& text, std::string_view key, std::string_view what) {
  TD_ASSIGN_OR_RETURN(const std::optional<bool> flag, text.boolean(key));
  if (flag.value_or(false)) return text.error(key, fmt::format("{} not supported for this model type", what));
  return {};
}

Status read_attention(const JsonFields& text, ModelConfig& config) {
  TD_ASSIGN_OR_RETURN(const std::optional<std::string> act, text.string("hidden_act"));
  if (act && *act != "silu" && *act != "swish") {
    return text.error("hidden_act", fmt::format("'{}' is not supported; supported is silu", printable(*act)));
  }
  TD_RETURN_IF_ERROR(refuse_flag(text, "mlp_bias", "biases in the feed-forward layers are"));
  config.zero_centred_norms = config.hybrid();
  config.qk_norm = config.architecture != Architecture::llama;
  if (config.hybrid()) {
    TD_RETURN_IF_ERROR(refuse_flag(text, "attention_bias", "biases in the attention layers are"));
    TD_ASSIGN_OR_RETURN(const std::optional<bool> gate, text.boolean("attn_output_gate"));
    config.output_gate = gate.value_or(true);
  } else {
    TD_ASSIGN_OR_RETURN(const std::optional<bool> bias, text.boolean("attention_bias"));
    config.attention_bias = bias.value_or(false);
  }
  return {};
}

// A window is harmless where it is switched off or as long as the context.
Status refuse_sliding_window(const JsonFields& text, const ModelConfig& config) {
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> window, text.integer("sliding_window", 0, kMaxId));
  TD_ASSIGN_OR_RETURN(const std::optional<bool> use, text.boolean("use_sliding_window"));
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> first, text.integer("max_window_layers", 0, kMaxId));
  const bool mistral = config.model_type == "mistral";
  if (mistral && !use && text.raw().at_key("sliding_window").error() != simdjson::SUCCESS) {
    return text.error("sliding_window",
                      "expected null or a length, found nothing (which means a window of 4096 "
                      "here); sliding-window attention is not supported");
  }
  const bool on =
      use.value_or(mistral) && window && *window < config.max_position && first.value_or(0) < config.n_layers;
  if (on) {
    return text.error("sliding_window",
                      fmt::format("a window of {} in a context of {} is not supported, only full "
                                  "attention is",
                                  *window, config.max_position));
  }
  return {};
}

// Which layers of a drafter slide: those that layer_types says, or, without it, those from max_window_layers
// on where use_sliding_window is set.
Status read_windows(const JsonFields& text, ModelConfig& config) {
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> window, text.integer("sliding_window", 1, kMaxId));
  TD_ASSIGN_OR_RETURN(const std::optional<bool> use, text.boolean("use_sliding_window"));
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> first, text.integer("max_window_layers", 0, kMaxId));
  TD_ASSIGN_OR_RETURN(const std::vector<std::string> types, text.strings("layer_types"));
  config.windows.assign(size_t(config.n_layers), 0);
  for (int i = 0; i < config.n_layers; ++i) {
    const bool slides = size_t(i) < types.size() ? types[size_t(i)] == "sliding_attention"
                                                 : use.value_or(false) && i >= first.value_or(0);
    if (!slides) continue;
    if (!window) return text.error("sliding_window", fmt::format("layer {} slides: expected a length", i));
    config.windows[size_t(i)] = int(*window);
  }
  return {};
}

Status read_layer_kinds(const JsonFields& text, ModelConfig& config) {
  TD_ASSIGN_OR_RETURN(const std::vector<std::string> types, text.strings("layer_types"));
  const auto n_layers = size_t(config.n_layers);
  config.layer_kinds.assign(n_layers, LayerKind::full_attention);
  if (!types.empty()) {
    if (types.size() != n_layers) {
      return text.error("layer_types",
                        fmt::format("expected one entry for each of num_hidden_layers = {}, found {}",
                                    n_layers, types.size()));
    }
    for (size_t i = 0; i < n_layers; ++i) {
      if (types[i] == "linear_attention" && config.hybrid()) {
        config.layer_kinds[i] = LayerKind::linear_attention;
      } else if (types[i] != "full_attention" &&
                 (config.windows.empty() || types[i] != "sliding_attention")) {
        return text.error("layer_types",
                          fmt::format("entry {} is '{}', supported are {}full_attention", i,
                                      printable(types[i]), config.hybrid() ? "linear_attention and " : ""));
      }
    }
    return {};
  }
  if (!config.hybrid()) return {};
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> interval,
                      text.integer("full_attention_interval", 1, kMaxLayers));
  if (!interval) return text.error("layer_types", "expected it, or full_attention_interval; found neither");
  for (size_t i = 0; i < n_layers; ++i) {
    if ((i + 1) % size_t(*interval) != 0) config.layer_kinds[i] = LayerKind::linear_attention;
  }
  return {};
}

Status read_linear_attention(const JsonFields& text, ModelConfig& config) {
  TD_ASSIGN_OR_RETURN(const int64_t n_k, text.require_integer("linear_num_key_heads", 1, kMaxHeads));
  TD_ASSIGN_OR_RETURN(const int64_t n_v, text.require_integer("linear_num_value_heads", 1, kMaxHeads));
  TD_ASSIGN_OR_RETURN(const int64_t d_k, text.require_integer("linear_key_head_dim", 1, kMaxHeadDim));
  TD_ASSIGN_OR_RETURN(const int64_t d_v, text.require_integer("linear_value_head_dim", 1, kMaxHeadDim));
  TD_ASSIGN_OR_RETURN(const int64_t taps,
                      text.require_integer("linear_conv_kernel_dim", kConvKernel, kConvKernel));
  if (n_v % n_k != 0) {
    return text.error("linear_num_value_heads",
                      fmt::format("{} is not a multiple of linear_num_key_heads = {}", n_v, n_k));
  }
  config.n_linear_k_heads = int(n_k);
  config.n_linear_v_heads = int(n_v);
  config.d_linear_k = int(d_k);
  config.d_linear_v = int(d_v);
  config.conv_kernel = int(taps);
  return {};
}

// Which layers are MoE: all, but for the two fields that only Qwen3-MoE and Qwen3-Next have.
Status read_moe_layers(const JsonFields& text, ModelConfig& config) {
  const auto n_layers = size_t(config.n_layers);
  config.moe_layers.assign(n_layers, true);
  if (config.architecture == Architecture::qwen3_5) return {};
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> step, text.integer("decoder_sparse_step", 1, kMaxLayers));
  TD_ASSIGN_OR_RETURN(const std::vector<int64_t> dense, text.integers("mlp_only_layers", 0, kMaxLayers));
  for (size_t i = 0; i < n_layers; ++i) {
    config.moe_layers[i] = (i + 1) % size_t(step.value_or(1)) == 0;
  }
  for (const int64_t i : dense) {
    if (size_t(i) < n_layers) config.moe_layers[size_t(i)] = false;
  }
  return {};
}

Status read_ffn(const JsonFields& text, bool moe, ModelConfig& config) {
  config.moe_layers.assign(size_t(config.n_layers), false);
  if (moe) {
    TD_ASSIGN_OR_RETURN(const int64_t n_experts, text.require_integer("num_experts", 1, kMaxExperts));
    TD_ASSIGN_OR_RETURN(const int64_t top_k,
                        text.require_integer("num_experts_per_tok", 1, kMaxExpertsPerToken));
    TD_ASSIGN_OR_RETURN(const int64_t d_expert, text.require_integer("moe_intermediate_size", 1, kMaxWidth));
    if (top_k > n_experts) {
      return text.error("num_experts_per_tok",
                        fmt::format("{} is more than num_experts = {}", top_k, n_experts));
    }
    config.n_experts = int(n_experts);
    config.top_k = int(top_k);
    config.d_expert = int(d_expert);
    if (config.hybrid()) {
      TD_ASSIGN_OR_RETURN(const int64_t d_shared,
                          text.require_integer("shared_expert_intermediate_size", 0, kMaxWidth));
      config.d_shared_expert = int(d_shared);
    }
    // Qwen3.5 always normalises and has no such field; the others' defaults are those of their reference
    // classes.
    TD_ASSIGN_OR_RETURN(const std::optional<bool> norm, text.boolean("norm_topk_prob"));
    config.norm_top_k = config.architecture == Architecture::qwen3_5 ||
                        norm.value_or(config.architecture == Architecture::qwen3_next);
    TD_RETURN_IF_ERROR(read_moe_layers(text, config));
  }
  if (std::find(config.moe_layers.begin(), config.moe_layers.end(), false) != config.moe_layers.end()) {
    TD_ASSIGN_OR_RETURN(const int64_t d_ff, text.require_integer("intermediate_size", 1, kMaxWidth));
    config.d_ff = int(d_ff);
  }
  return {};
}

Status read_ids(const ConfigLevels& levels, ModelConfig& config) {
  for (const JsonFields* level : {&levels.outer, &levels.text}) {
    TD_ASSIGN_OR_RETURN(const std::vector<int64_t> eos, level->integers("eos_token_id", 0, kMaxId));
    config.eos_ids.insert(config.eos_ids.end(), eos.begin(), eos.end());
    const auto first_id = [level](std::string_view key, std::optional<int32_t>& out) -> Status {
      TD_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, level->integers(key, 0, kMaxId));
      if (!out && !ids.empty()) out = int32_t(ids.front());
      return {};
    };
    TD_RETURN_IF_ERROR(first_id("bos_token_id", config.bos_id));
    TD_RETURN_IF_ERROR(first_id("pad_token_id", config.pad_id));
  }
  std::sort(config.eos_ids.begin(), config.eos_ids.end());
  config.eos_ids.erase(std::unique(config.eos_ids.begin(), config.eos_ids.end()), config.eos_ids.end());
  config.has_vision = levels.outer.has("vision_config");
  for (const char* key :
       {"image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"}) {
    TD_ASSIGN_OR_RETURN(const std::optional<int64_t> id, levels.outer.integer(key, 0, kMaxId));
    if (id) config.vision_ids.push_back(int32_t(*id));
  }
  return {};
}

Status read_dtype(const ConfigLevels& levels, ModelConfig& config) {
  for (const JsonFields* level : {&levels.text, &levels.outer}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      TD_ASSIGN_OR_RETURN(const std::optional<std::string> name, level->string(key));
      if (!name) continue;
      if (*name == "bfloat16") {
        config.dtype = DType::bf16;
      } else if (*name == "float16") {
        config.dtype = DType::f16;
      } else if (*name == "float32") {
        config.dtype = DType::f32;
      } else {
        return level->error(
            key,
            fmt::format("'{}' is not supported; supported are bfloat16, float16, float32", printable(*name)));
      }
      return {};
    }
  }
  return {};
}

// "tandem_mtp": what `tandem inspect --probe-mtp` found of an MTP head.
Status read_mtp(const JsonFields& outer, ModelConfig& config) {
  TD_ASSIGN_OR_RETURN(const std::optional<JsonFields> block, outer.object("tandem_mtp"));
  if (!block) return {};
  const auto read = [&block](std::string_view key, bool& after_norm) -> Status {
    TD_ASSIGN_OR_RETURN(const std::optional<std::string> where, block->string(key));
    if (!where) return {};
    if (*where != "pre_norm" && *where != "post_norm") {
      return block->error(key, fmt::format("expected pre_norm or post_norm, found '{}'", printable(*where)));
    }
    after_norm = *where == "post_norm";
    return {};
  };
  TD_RETURN_IF_ERROR(read("input", config.mtp.input_after_norm));
  return read("chain", config.mtp.chain_after_norm);
}

Status read_shared_fields(const ConfigLevels& levels, ModelConfig& config) {
  for (const JsonFields* level : {&levels.text, &levels.outer}) {  // the outer one wins
    TD_ASSIGN_OR_RETURN(const std::optional<bool> tied, level->boolean("tie_word_embeddings"));
    if (tied) config.tied_embeddings = *tied;
    TD_ASSIGN_OR_RETURN(const std::optional<int64_t> mtp,
                        level->integer("mtp_num_hidden_layers", 0, kMaxLayers));
    if (mtp) config.n_mtp_layers = int(*mtp);
    TD_RETURN_IF_ERROR(
        refuse_flag(*level, "mtp_use_dedicated_embeddings", "an MTP head with its own embeddings is"));
  }
  TD_ASSIGN_OR_RETURN(const std::vector<std::string> classes, levels.outer.strings("architectures"));
  if (!classes.empty()) config.architecture_class = classes.front();
  return {};
}

}  // namespace

int ModelConfig::n_full_attention_layers() const {
  return int(std::count(layer_kinds.begin(), layer_kinds.end(), LayerKind::full_attention));
}

std::string supported_model_types() {
  std::string list;
  for (const ModelType& type : kModelTypes) list += fmt::format("{}{}", list.empty() ? "" : ", ", type.name);
  return list;
}

Result<ModelConfig> parse_model_config(std::span<const std::byte> text, const std::string& path,
                                       ConfigUse use) {
  TD_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, path));
  TD_ASSIGN_OR_RETURN(const JsonFields outer, JsonFields::of_root(document, path));
  TD_ASSIGN_OR_RETURN(const ModelType type, find_model_type(outer));
  TD_ASSIGN_OR_RETURN(const std::optional<JsonFields> nested, outer.object("text_config"));
  const ConfigLevels levels{.outer = outer, .text = nested.value_or(outer)};

  ModelConfig config;
  config.file = path;
  config.model_type = std::string(type.name);
  config.architecture = type.architecture;
  if (nested && nested->has("model_type")) {
    TD_ASSIGN_OR_RETURN(const ModelType inner, find_model_type(*nested));
    if (inner.architecture != type.architecture || inner.moe != type.moe) {
      return nested->error(
          "model_type", fmt::format("'{}' does not fit model_type '{}' of the file", inner.name, type.name));
    }
    config.model_type = std::string(inner.name);
  }
  TD_RETURN_IF_ERROR(read_sizes(levels.text, config));
  TD_RETURN_IF_ERROR(read_attention(levels.text, config));
  TD_RETURN_IF_ERROR(use == ConfigUse::drafter ? read_windows(levels.text, config)
                                               : refuse_sliding_window(levels.text, config));
  TD_RETURN_IF_ERROR(read_layer_kinds(levels.text, config));
  if (config.hybrid()) TD_RETURN_IF_ERROR(read_linear_attention(levels.text, config));
  TD_RETURN_IF_ERROR(read_ffn(levels.text, type.moe, config));
  TD_RETURN_IF_ERROR(read_rope(levels.text, config));
  TD_RETURN_IF_ERROR(read_shared_fields(levels, config));
  TD_RETURN_IF_ERROR(read_mtp(levels.outer, config));
  TD_RETURN_IF_ERROR(read_ids(levels, config));
  TD_RETURN_IF_ERROR(read_dtype(levels, config));
  TD_RETURN_IF_ERROR(read_quantization(levels, config));
  return config;
}

Result<ModelConfig> load_model_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  TD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return parse_model_config(file.bytes(), path);
}

}  // namespace tandem
