#include "format/generation_config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/temp_folder.h"

namespace tandem {
namespace {

Result<GenerationConfig> parse(std::string_view text) {
  return parse_generation_config(as_byte_span(text), "generation_config.json");
}

TEST(GenerationConfig, ReadsWhatSamplingNeeds) {
  const auto config = parse(R"({"bos_token_id":1,"eos_token_id":[248046,248044,248046],"pad_token_id":248044,
      "do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95,"min_p":0.01,"repetition_penalty":1.05,
      "presence_penalty":1.5,"frequency_penalty":-0.5,"max_new_tokens":2048,"transformers_version":"4.57.0"})");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_TRUE(config->found);
  EXPECT_EQ(config->eos_ids, (std::vector<int32_t>{248044, 248046}));
  EXPECT_EQ(config->bos_id, 1);
  EXPECT_EQ(config->pad_id, 248044);
  EXPECT_EQ(config->do_sample, true);
  EXPECT_EQ(config->temperature, 0.6);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->top_p, 0.95);
  EXPECT_EQ(config->min_p, 0.01);
  EXPECT_EQ(config->repetition_penalty, 1.05);
  EXPECT_EQ(config->presence_penalty, 1.5);
  EXPECT_EQ(config->frequency_penalty, -0.5);
  EXPECT_EQ(config->max_new_tokens, 2048);
}

TEST(GenerationConfig, AbsentAndNullFieldsAreNoOpinion) {
  const auto config = parse(R"({"temperature":null,"eos_token_id":null})");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->temperature, std::nullopt);
  EXPECT_EQ(config->do_sample, std::nullopt);
  EXPECT_TRUE(config->eos_ids.empty());
}

TEST(GenerationConfig, ASingleEndIdAndTopKOff) {
  const auto config = parse(R"({"eos_token_id":2,"top_k":-1})");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->eos_ids, std::vector<int32_t>{2});
  EXPECT_EQ(config->top_k, 0);
}

TEST(GenerationConfig, BadFieldsAreNamed) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {R"({"temperature":-1})",
       "generation_config.json: temperature: expected a number in [0, 100], found -1"},
      {R"({"top_p":1.5})", "generation_config.json: top_p: expected a number in [0, 1], found 1.5"},
      {R"({"top_k":"many"})",
       "generation_config.json: top_k: expected an integer in [-1, 2147483647], found \"many\""},
      {R"({"do_sample":1})", "generation_config.json: do_sample: expected true or false, found 1"},
      {R"({"eos_token_id":[1,"x"]})",
       "generation_config.json: eos_token_id: expected integers in [0, 2147483647]"},
      {R"({"top_p":0})", "generation_config.json: top_p: expected a number above 0 and at most 1, found 0"},
      {R"({"repetition_penalty":0})", "generation_config.json: repetition_penalty: expected a number"},
      {R"({"repetition_penalty":9000})", "generation_config.json: repetition_penalty: expected a number"},
      {R"({"presence_penalty":3})", "generation_config.json: presence_penalty: expected a number in [-2, 2]"},
      {"{", "generation_config.json: not valid JSON"},
  };
  for (const auto& [text, expected] : cases) {
    const auto config = parse(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.error().message.find(expected), 0u) << config.error().message;
  }
}

TEST(GenerationConfig, AFolderWithoutTheFileIsFine) {
  const TempFolder folder;
  const auto absent = load_generation_config(folder.path());
  ASSERT_TRUE(absent.ok());
  EXPECT_FALSE(absent->found);
  folder.write("generation_config.json", "{oops");
  EXPECT_FALSE(load_generation_config(folder.path()).ok());
  const auto demo = load_generation_config(std::string(TANDEM_MODELS) + "/tandem-demo");
  ASSERT_TRUE(demo.ok());
  EXPECT_TRUE(demo->found);
  EXPECT_EQ(demo->do_sample, false);
  EXPECT_EQ(demo->eos_ids, (std::vector<int32_t>{8186, 8188}));
}

}  // namespace
}  // namespace tandem
