// config.json of DFlash drafters: what published folders say is read, what is wrong or not implemented is
// refused by field.
#include "format/drafter_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/temp_folder.h"
#include "format/config_texts.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

// A first DFlash drafter of an 8B model: all layers full, block_size beside dflash_config.
Json v1() {
  return Json::parse(R"({
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "attention_bias": false, "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}, "dtype": "bfloat16",
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
    "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention", "full_attention"],
    "max_position_embeddings": 40960, "max_window_layers": 5, "num_attention_heads": 32, "num_hidden_layers": 5,
    "num_key_value_heads": 8, "num_target_layers": 36, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false,
    "vocab_size": 151936})");
}

// All layers slide and see both ways, block_size inside dflash_config.
Json v2() { return Json::parse(kDflash2Text); }

Result<DrafterConfig> parse(const Json& json) {
  const std::string text = json.dump();
  return parse_drafter_config(as_byte_span(text), "d/config.json");
}

DrafterConfig must_parse(const Json& json) {
  Result<DrafterConfig> config = parse(json);
  if (!config.ok()) throw std::runtime_error(config.error().message);
  return *std::move(config);
}

std::string error_of(const Json& json) {
  const auto config = parse(json);
  return config.ok() ? "no error" : config.error().message;
}

// "a.b" names a field of the object a.
Json& field(Json& json, const std::string& path) {
  const size_t dot = path.find('.');
  return dot == std::string::npos ? json[path] : json[path.substr(0, dot)][path.substr(dot + 1)];
}
void erase(Json& json, const std::string& path) {
  const size_t dot = path.find('.');
  if (dot == std::string::npos) {
    json.erase(path);
  } else {
    json[path.substr(0, dot)].erase(path.substr(dot + 1));
  }
}

TEST(DrafterConfig, ReadsTheFirstDflash) {
  const DrafterConfig c = must_parse(v1());
  EXPECT_EQ(c.block_size, 16);
  EXPECT_EQ(c.n_drafts(), 15);
  EXPECT_EQ(c.mask_id, 151669);
  EXPECT_EQ(c.target_layers, (std::vector<int>{1, 9, 17, 25, 33}));
  EXPECT_EQ(c.n_target_layers, 36);
  EXPECT_EQ(c.bidirectional, std::vector<bool>(5, true));
  EXPECT_EQ(c.network.windows, std::vector<int>(5, 0));
  EXPECT_FALSE(c.v2.has_value());
  EXPECT_FALSE(c.changes_logits());
}

TEST(DrafterConfig, ReadsDflash2AsPublished) {
  const DrafterConfig c = must_parse(v2());
  ASSERT_TRUE(c.v2.has_value());
  EXPECT_EQ(c.v2->conv_taps, 2);
  EXPECT_EQ(c.v2->conv_group, 16);
  EXPECT_EQ(c.v2->selector_rank, 256);
  EXPECT_EQ(c.v2->selector_top_k, 16);
  EXPECT_EQ(c.block_size, 8);
  EXPECT_EQ(c.n_drafts(), 7);
  EXPECT_EQ(c.mask_id, 248070);
  EXPECT_EQ(c.bidirectional, std::vector<bool>(5, true));
  EXPECT_EQ(c.network.windows, std::vector<int>(5, 2048));
  EXPECT_EQ(c.network.rope.theta, 1e7);
  EXPECT_FALSE(c.sample_from_anchor);
}

TEST(DrafterConfig, FieldsMayStandBesideDflashConfigWhichWins) {
  Json json = v2();
  for (const char* key : {"block_size", "conv_group_size", "conv_kernel_size", "mask_token_id",
                          "selector_rank", "selector_top_k", "target_layer_ids"}) {
    json[key] = json["dflash_config"][key];
    json["dflash_config"].erase(key);
  }
  json["dflash_config"]["selector_top_k"] = 8;
  json["dflash_config"]["sample_from_anchor"] = true;
  const DrafterConfig c = must_parse(json);
  EXPECT_EQ(c.block_size, 8);
  EXPECT_EQ(c.v2->selector_rank, 256);
  EXPECT_EQ(c.v2->selector_top_k, 8);
  EXPECT_TRUE(c.sample_from_anchor);
  EXPECT_EQ(c.n_drafts(), 8);
}

struct BadField {
  std::string path;
  Json value;  // discarded: the field is left out
  std::string says;
};

TEST(DrafterConfig, NamesTheFieldThatIsWrong) {
  const Json gone = Json::value_t::discarded;
  const auto check = [&](Json json, const std::vector<BadField>& fields) {
    for (const BadField& bad : fields) {
      Json edited = json;
      if (bad.value.is_discarded()) {
        erase(edited, bad.path);
      } else {
        field(edited, bad.path) = bad.value;
      }
      const std::string error = error_of(edited);
      EXPECT_TRUE(error.starts_with("d/config.json: " + bad.path + ": ")) << bad.path << ": " << error;
      EXPECT_NE(error.find(bad.says), std::string::npos) << bad.path << ": " << error;
    }
  };
  check(v1(), {{"dflash_config", gone, "not a DFlash drafter"},
               {"dflash_config", 3, "expected an object"},
               {"dflash_config.block_size", "16", "expected an integer"},
               {"dflash_config.mask_token_id", gone, "expected an integer"},
               {"dflash_config.mask_token_id", -1, "found -1"},
               {"dflash_config.mask_token_id", 151936, "outside the vocabulary of 151936"},
               {"dflash_config.target_layer_ids", gone, "found none"},
               {"dflash_config.target_layer_ids", Json::array(), "found none"},
               {"dflash_config.target_layer_ids", {1, -9}, "-9"},
               {"dflash_config.target_layer_ids", {1, "9"}, "\"9\""},
               {"dflash_config.causal", 1, "expected true or false"},
               {"is_causal", "no", "expected true or false"},
               {"sample_from_anchor", 1, "expected true or false"},
               {"block_size", 1, "found 1"},
               {"block_size", 257, "found 257"},
               {"num_target_layers", 0, "found 0"},
               {"hidden_size", gone, "expected an integer"},
               {"dflash_config.output_multiplier", 0, "found 0"},
               {"dflash_config.final_logit_softcapping", -1, "found -1"},
               {"input_embedding_scale", 2.0, "not supported"},
               {"dflash_config.swa_window_size", 128, "not supported"},
               {"dflash_config.conv_kernel_size", 2, "DFlash2DraftModel"},
               {"selector_rank", 256, "DFlash2DraftModel"}});
  check(v2(), {{"dflash_config.block_size", gone, "expected an integer"},
               {"dflash_config.block_size", 0, "found 0"},
               {"dflash_config.conv_kernel_size", gone, "expected an integer"},
               {"dflash_config.conv_kernel_size", 0, "found 0"},
               {"dflash_config.conv_kernel_size", 2.5, "found 2.5"},
               {"dflash_config.conv_group_size", gone, "expected an integer"},
               {"dflash_config.conv_group_size", 5121, "found 5121"},
               {"dflash_config.conv_group_size", 48, "does not divide hidden_size = 5120"},
               {"dflash_config.selector_rank", gone, "expected an integer"},
               {"dflash_config.selector_rank", -4, "found -4"},
               {"dflash_config.selector_top_k", gone, "expected an integer"},
               {"dflash_config.selector_top_k", 0, "found 0"},
               {"dflash_config.selector_top_k", 257, "found 257"},
               {"dflash_config.selector_top_k", "16", "found \"16\""}});
  Json few = v2();
  few["vocab_size"] = 12;
  few["dflash_config"]["mask_token_id"] = 11;
  EXPECT_NE(error_of(few).find("dflash_config.selector_top_k: expected an integer in [1, 12], found 16"),
            std::string::npos)
      << error_of(few);
}

TEST(DrafterConfig, LayersSlideAsTheirTypesOrMaxWindowLayersSay) {
  Json json = v1();
  json["sliding_window"] = 2048;
  json["layer_types"][1] = "sliding_attention";
  EXPECT_EQ(must_parse(json).network.windows, (std::vector<int>{0, 2048, 0, 0, 0}));
  json["sliding_window"] = nullptr;
  EXPECT_EQ(error_of(json), "d/config.json: sliding_window: layer 1 slides: expected a length");
  json["layer_types"][1] = "linear_attention";
  EXPECT_NE(error_of(json).find("layer_types: entry 1 is 'linear_attention'"), std::string::npos)
      << error_of(json);

  json = v1();
  json.erase("layer_types");
  json["sliding_window"] = 4096;
  EXPECT_EQ(must_parse(json).network.windows, std::vector<int>(5, 0));  // use_sliding_window is false
  json["use_sliding_window"] = true;
  json["max_window_layers"] = 3;
  EXPECT_EQ(must_parse(json).network.windows, (std::vector<int>{0, 0, 0, 4096, 4096}));
}

TEST(DrafterConfig, CausalBeatsIsCausalBeatsTheKindOfTheLayer) {
  Json json = v1();
  json["sliding_window"] = 2048;
  json["layer_types"][0] = json["layer_types"][2] = "sliding_attention";
  EXPECT_EQ(must_parse(json).bidirectional, (std::vector<bool>{false, true, false, true, true}));
  json["is_causal"] = false;
  EXPECT_EQ(must_parse(json).bidirectional, std::vector<bool>(5, true));
  json["is_causal"] = true;
  EXPECT_EQ(must_parse(json).bidirectional, std::vector<bool>(5, false));
  json["dflash_config"]["causal"] = false;
  EXPECT_EQ(must_parse(json).bidirectional, std::vector<bool>(5, true));
  json["dflash_config"]["causal"] = nullptr;  // as if it were not there
  EXPECT_EQ(must_parse(json).bidirectional, std::vector<bool>(5, false));
}

TEST(DrafterConfig, ATargetsConfigIsNoDrafters) {
  EXPECT_NE(error_of(Json::parse(kQwen3Text)).find("architectures: 'Qwen3ForCausalLM' is not supported"),
            std::string::npos);
  EXPECT_NE(error_of(Json::parse(kQwen35Text)).find("model_type: 'qwen3_5_text' is no backbone"),
            std::string::npos)
      << error_of(Json::parse(kQwen35Text));
  EXPECT_NE(error_of(Json::parse(kQwen3MoeText)).find("is no backbone"), std::string::npos);
  Json other = v2();
  other["architectures"] = {"DSparkDraftModel"};
  EXPECT_NE(error_of(other).find("'DSparkDraftModel' is not supported"), std::string::npos);
}

TEST(DrafterConfig, AFolderIsADraftersIfItsConfigHasADflashConfig) {
  const TempFolder folder;
  EXPECT_FALSE(is_drafter_folder(folder.path()));
  folder.write("config.json", kQwen3Text);
  EXPECT_FALSE(is_drafter_folder(folder.path()));
  Json broken = v1();
  broken["architectures"] = {"DSparkDraftModel"};
  folder.write("config.json", broken.dump());
  EXPECT_TRUE(is_drafter_folder(folder.path()));
}

TEST(DrafterConfig, AnotherTargetIsToldByTheFirstFieldThatDiffers) {
  const DrafterConfig drafter = must_parse(v1());
  const TargetShape target{.name = "t", .n_layers = 36, .d_model = 4096, .n_vocab = 151936};
  EXPECT_TRUE(check_target(drafter, target).ok());
  const auto says = [&](TargetShape other, const std::string& what) {
    const Status status = check_target(drafter, other);
    EXPECT_NE((status.ok() ? "fits" : status.error().message).find(what), std::string::npos);
  };
  says({.name = "t", .n_layers = 36, .d_model = 2560, .n_vocab = 151936}, "hidden_size: 4096");
  says({.name = "t", .n_layers = 36, .d_model = 4096, .n_vocab = 151937}, "vocab_size: 151936");
  says({.name = "t", .n_layers = 35, .d_model = 4096, .n_vocab = 151936}, "num_target_layers: 36");
}

// cap tanh(multiplier logit / cap), as the drafter of a model with capped logits was trained.
TEST(DrafterConfig, LogitsAreScaledThenCapped) {
  Json json = v2();
  json["dflash_config"]["output_multiplier"] = 0.5;
  DrafterConfig c = must_parse(json);
  EXPECT_TRUE(c.changes_logits());
  EXPECT_EQ(c.output(-6), -3);
  json["dflash_config"]["final_logit_softcapping"] = 20;
  c = must_parse(json);
  EXPECT_NEAR(c.output(30), 20 * std::tanh(15.0 / 20), 1e-5);
  EXPECT_LE(c.output(1e30f), 20);
}

}  // namespace
}  // namespace tandem
