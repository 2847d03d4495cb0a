// Any bytes as config.json, of a model or a drafter, and generation_config.json: an error, or a config that
// is safe to compute sizes with. What is accepted survives being written with a quantization block.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "format/config.h"
#include "format/config_texts.h"
#include "format/config_writer.h"
#include "format/drafter_config.h"
#include "format/generation_config.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const tandem::ModelConfig& c) {
  require(c.d_model > 0 && c.n_layers > 0 && c.d_head > 0 && c.n_kv_heads > 0 &&
          c.n_heads % c.n_kv_heads == 0);
  require(c.rope.rotary_dims >= 2 && c.rope.rotary_dims % 2 == 0 && c.rope.rotary_dims <= c.d_head);
  require(c.layer_kinds.size() == size_t(c.n_layers) && c.moe_layers.size() == size_t(c.n_layers));
  require(c.context >= c.max_position && c.context <= 1 << 24);
  require(!c.hybrid() || c.n_linear_v_heads % c.n_linear_k_heads == 0);
  for (const bool moe : c.moe_layers) {
    require(moe ? c.top_k >= 1 && c.top_k <= c.n_experts && c.d_expert > 0 : c.d_ff > 0);
  }
}

void check(const tandem::DrafterConfig& d) {
  const tandem::ModelConfig& c = d.network;
  check(c);
  require(d.block_size >= 2 && d.mask_id >= 0 && d.mask_id < c.vocab_size && !d.target_layers.empty());
  require(d.bidirectional.size() == size_t(c.n_layers) && c.windows.size() == size_t(c.n_layers));
  if (!d.v2) return;
  require(d.v2->conv_taps > 0 && d.v2->conv_group > 0 && c.d_model % d.v2->conv_group == 0);
  require(d.v2->selector_rank > 0 && d.v2->selector_top_k > 0 && d.v2->selector_top_k <= c.vocab_size);
}

// Values that a field may take, right or wrong.
constexpr std::string_view kValues[] = {
    "null", "-1", "0",    "1",        "3",          "1e400", "1e-9",         "4294967296", "true",
    "[]",   "{}", "\"\"", "\"yarn\"", "\"affine\"", "[1,2]", "{\"bits\":4}", "\"fp8\""};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> text = std::as_bytes(std::span(data, size));
  (void)tandem::parse_generation_config(text, "generation_config.json");
  if (const auto drafter = tandem::parse_drafter_config(text, "config.json"); drafter.ok()) check(*drafter);
  const auto config = tandem::parse_model_config(text, "config.json");
  if (!config.ok()) {
    require(config.error().message.starts_with("config.json: "));
    return 0;
  }
  check(*config);
  const tandem::QuantizationConfig quantization{.global = tandem::QuantParams{.bits = 3, .group_size = 128},
                                                .modules = {{"lm_head", std::nullopt}}};
  const auto written = tandem::config_with_quantization(text, "config.json", quantization);
  require(written.ok());
  const auto again = tandem::parse_model_config(std::as_bytes(std::span(*written)), "config.json");
  require(again.ok() && again->quantization.global == quantization.global);
  return 0;
}

// Starts from published texts; half of the time puts another value behind a colon, else lets the library
// change bytes.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  if (size < 16 || seed % 64 == 0) {
    const size_t which = seed / 64 % (tandem::kAllConfigTexts.size() + 1);
    const std::string_view text =
        which < tandem::kAllConfigTexts.size() ? tandem::kAllConfigTexts[which] : tandem::kDflash2Text;
    if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
    std::memcpy(data, text.data(), text.size());
    size = text.size();
  }
  if (seed % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string text(reinterpret_cast<const char*>(data), size);
  const size_t colon = text.find(':', seed / 2 % size);
  if (colon == text.npos) return LLVMFuzzerMutate(data, size, max_size);
  const size_t end = std::min(text.find_first_of(",}", colon), text.size());
  text.replace(colon + 1, end - colon - 1, kValues[seed / 16 % std::size(kValues)]);
  if (text.size() > max_size) return size;
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
