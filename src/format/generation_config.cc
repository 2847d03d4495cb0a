#include "format/generation_config.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/mapped_file.h"
#include "format/json.h"

namespace tandem {
namespace {

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

Result<std::optional<int32_t>> token_id(const JsonFields& fields, std::string_view key) {
  TD_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, fields.integers(key, 0, kMaxId));
  if (ids.empty()) return std::optional<int32_t>();
  return std::optional<int32_t>(int32_t(ids.front()));
}

Result<std::optional<int>> small_integer(const JsonFields& fields, std::string_view key) {
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> x, fields.integer(key, 0, kMaxId));
  return x ? std::optional<int>(int(*x)) : std::nullopt;
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::span<const std::byte> text, const std::string& path) {
  TD_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, path));
  TD_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of_root(document, path));
  GenerationConfig config;
  config.found = true;
  TD_ASSIGN_OR_RETURN(const std::vector<int64_t> eos, fields.integers("eos_token_id", 0, kMaxId));
  config.eos_ids.assign(eos.begin(), eos.end());
  std::sort(config.eos_ids.begin(), config.eos_ids.end());
  config.eos_ids.erase(std::unique(config.eos_ids.begin(), config.eos_ids.end()), config.eos_ids.end());
  TD_ASSIGN_OR_RETURN(config.bos_id, token_id(fields, "bos_token_id"));
  TD_ASSIGN_OR_RETURN(config.pad_id, token_id(fields, "pad_token_id"));
  TD_ASSIGN_OR_RETURN(config.do_sample, fields.boolean("do_sample"));
  TD_ASSIGN_OR_RETURN(config.temperature, fields.number("temperature", 0, 100));
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> top_k, fields.integer("top_k", -1, kMaxId));
  if (top_k) config.top_k = std::max(0, int(*top_k));  // -1 is another spelling of off
  TD_ASSIGN_OR_RETURN(config.top_p, fields.number("top_p", 0, 1));
  if (config.top_p == 0.0) return fields.error("top_p", "expected a number above 0 and at most 1, found 0");
  TD_ASSIGN_OR_RETURN(config.min_p, fields.number("min_p", 0, 1));
  TD_ASSIGN_OR_RETURN(config.repetition_penalty, fields.number("repetition_penalty", 1e-6, 10));
  TD_ASSIGN_OR_RETURN(config.presence_penalty, fields.number("presence_penalty", -2, 2));
  TD_ASSIGN_OR_RETURN(config.frequency_penalty, fields.number("frequency_penalty", -2, 2));
  TD_ASSIGN_OR_RETURN(config.max_new_tokens, small_integer(fields, "max_new_tokens"));
  return config;
}

Result<GenerationConfig> load_generation_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "generation_config.json").string();
  if (is_absent(path)) return GenerationConfig{};
  TD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return parse_generation_config(file.bytes(), path);
}

}  // namespace tandem
