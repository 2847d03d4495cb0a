#include "format/config_writer.h"

#include <gtest/gtest.h>

#include <string>

#include "base/temp_folder.h"

namespace tandem {
namespace {

TEST(ConfigWriter, AddsTheBlockAndKeepsEverythingElseInOrder) {
  QuantizationConfig quantization{.global = QuantParams{.bits = 4, .group_size = 64}, .modules = {}};
  quantization.modules["model.layers.0.mlp.gate"] = QuantParams{.bits = 8, .group_size = 64};
  quantization.modules["lm_head"] = std::nullopt;
  const auto text = config_with_quantization(
      as_byte_span(R"({"z": 1e-06, "quantization_config": null, "a": {"y": [1, 2.5], "b": "é"}})"),
      "config.json", quantization);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const std::string block = R"({
    "group_size": 64,
    "bits": 4,
    "mode": "affine",
    "lm_head": false,
    "model.layers.0.mlp.gate": {
      "group_size": 64,
      "bits": 8,
      "mode": "affine"
    }
  })";
  EXPECT_EQ(*text, R"({
  "z": 1e-06,
  "a": {
    "y": [
      1,
      2.5
    ],
    "b": "é"
  },
  "quantization": )" + block +
                       ",\n  \"quantization_config\": " + block + "\n}\n");
}

TEST(ConfigWriter, RefusesWhatIsNoObject) {
  const QuantizationConfig quantization{.global = QuantParams{.bits = 4, .group_size = 64}, .modules = {}};
  for (const char* text : {"", "[]", "{", "{\"a\":\"\xff\"}", "{\"a\":1,\"a\":2}"}) {
    const auto result = config_with_quantization(as_byte_span(text), "config.json", quantization);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.error().message.find("config.json: "), 0u) << result.error().message;
  }
}

}  // namespace
}  // namespace tandem
