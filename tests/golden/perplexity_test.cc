// What 8 bits cost, in perplexity per token on a text the model was not trained on
// (tests/data/text/held_out.py, a program of this project): 8-bit activations on the CPU against fp32 ones,
// and, where the bf16 original is at hand, 8-bit weights.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "engine/loaded_model.h"
#include "engine/score.h"
#include "golden/model_under_test.h"

namespace tandem {
namespace {

double perplexity(const std::string& folder, const BackendOptions& backend, size_t most_tokens) {
  const LoadedModel model = value_or_throw(load_model({.model = folder, .backend = backend}));
  std::ifstream file(std::string(TANDEM_TEST_DATA) + "/text/held_out.py");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<TokenId> ids = value_or_throw(model.tokenizer->encode(text, SpecialTokens::plain));
  EXPECT_GT(ids.size(), 512u);
  ids.resize(std::min(ids.size(), most_tokens));
  double sum = 0;
  ok_or_throw(score_tokens(*model.decoder, ids, 0, [&](int, const Logprobs& l) { sum += l.chosen; }));
  return std::exp(-sum / double(ids.size() - 1));
}

TEST(Perplexity, EightBitActivationsCostUnderAFifthOfAPercent) {
  const std::string demo = std::string(TANDEM_MODELS) + "/tandem-demo";
  const double exact = perplexity(demo, {.name = "reference"}, 512);
  const double cpu = perplexity(demo, {.name = "cpu", .threads = 2}, 512);
  EXPECT_NEAR(cpu / exact, 1.0, 2e-3) << "reference " << exact << ", cpu " << cpu;
}

#ifdef TANDEM_ORIGINAL_MODEL
TEST(Perplexity, EightBitWeightsCostUnderOnePercent) {
  const BackendOptions cpu{.name = "cpu", .threads = 2};
  const double bf16 = perplexity(TANDEM_ORIGINAL_MODEL, cpu, 2048);
  const double eight = perplexity(std::string(TANDEM_MODELS) + "/tandem-demo", cpu, 2048);
  EXPECT_NEAR(eight / bf16, 1.0, 1e-2) << "bf16 " << bf16 << ", 8 bits " << eight;
}
#endif

}  // namespace
}  // namespace tandem
