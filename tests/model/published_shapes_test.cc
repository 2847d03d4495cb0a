#include "model/published_shapes.h"

#include <gtest/gtest.h>

#include "model/load.h"

namespace tandem {
namespace {

ModelConfig shape(const std::string& model) {
  Result<ModelConfig> config = parse_synthetic(model);
  EXPECT_TRUE(config.ok()) << config.error().message;
  return *config;
}

TEST(PublishedShapes, WeightBytesAreThoseOfThePublishedFiles) {
  // Quantisable parameters of the text models, exact (from the difference of published 8- and 4-bit
  // repositories).
  const std::pair<const char*, uint64_t> published[] = {{"synth:qwen3.5-9b", 8952741888},
                                                        {"synth:qwen3.5-27b", 26893352960},
                                                        {"synth:qwen3.5-35b-a3b", 34659450880},
                                                        {"synth:qwen3.5-122b-a10b", 122109444096},
                                                        {"synth:qwen3.5-397b-a17b", 396343623680}};
  for (const auto& [model, params] : published) {
    const ModelConfig c = shape(model);
    // shared_expert_gate rows [1, H] are counted there and not in the estimate.
    const uint64_t gates = c.moe() ? uint64_t(c.n_layers) * uint64_t(c.d_model) : 0;
    EXPECT_EQ(weight_bytes_of(c) / 2 + gates, params) << model;
  }
}

TEST(PublishedShapes, BitsGroupAndLayersAreRead) {
  const ModelConfig c = shape("synth:qwen3.5-35b-a3b@4,layers=5,group=32");
  EXPECT_EQ(c.n_layers, 5);
  ASSERT_TRUE(c.quantization.global.has_value());
  EXPECT_EQ(c.quantization.global->bits, 4);
  EXPECT_EQ(c.quantization.global->group_size, 32);
  EXPECT_EQ(c.layer_kinds[3], LayerKind::full_attention);
  EXPECT_EQ(c.layer_kinds[4], LayerKind::linear_attention);
  EXPECT_FALSE(shape("synth:qwen3.5-0.8b@16").quantised());
}

TEST(PublishedShapes, ErrorsNameWhatIsWrong) {
  const std::pair<const char*, const char*> bad[] = {{"synth:qwen9", "qwen3.5-27b"},
                                                     {"synth:qwen3.5-0.8b@7", "bits"},
                                                     {"synth:qwen3.5-0.8b@x", "bits"},
                                                     {"synth:qwen3.5-0.8b,layers=99", "1 to 24"},
                                                     {"synth:qwen3.5-0.8b,depth=3", "depth=3"},
                                                     {"synth:qwen3.5-0.8b,group=48", "32, 64 or 128"}};
  for (const auto& [model, word] : bad) {
    const Result<ModelConfig> c = parse_synthetic(model);
    ASSERT_FALSE(c.ok()) << model;
    EXPECT_NE(c.error().message.find(word), std::string::npos) << c.error().message;
    EXPECT_NE(c.error().message.find(model), std::string::npos) << c.error().message;
  }
}

}  // namespace
}  // namespace tandem
