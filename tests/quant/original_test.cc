// Needs the bf16 original of the embedded model (TANDEM_ORIGINAL_MODEL): quantising it must give the embedded
// files.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/temp_folder.h"
#include "format/checkpoint.h"
#include "quant/quantize_folder.h"

namespace tandem {
namespace {

TEST(OriginalModel, QuantisedToEightBitsItIsTheEmbeddedModelBitForBit) {
  const TempFolder out;
  const auto report = quantize_folder({.input = TANDEM_ORIGINAL_MODEL,
                                       .output = out / "q",
                                       .params = {.bits = 8, .group_size = 64},
                                       .n_threads = 2,
                                       .on_progress = {}});
  ASSERT_TRUE(report.ok()) << report.error().message;
  const auto made = Checkpoint::open(out / "q"),
             embedded = Checkpoint::open(std::string(TANDEM_MODELS) + "/tandem-demo");
  ASSERT_TRUE(made.ok() && embedded.ok());
  ASSERT_EQ(made->names(), embedded->names());
  for (const HostTensor& t : embedded->tensors()) {
    const HostTensor* other = made->find(t.name);
    EXPECT_EQ(other->dtype, t.dtype) << t.name;
    EXPECT_EQ(other->shape, t.shape) << t.name;
    EXPECT_TRUE(std::equal(t.bytes.begin(), t.bytes.end(), other->bytes.begin(), other->bytes.end()))
        << t.name;
  }
  EXPECT_EQ(load_model_config(out / "q")->quantization.global,
            load_model_config(std::string(TANDEM_MODELS) + "/tandem-demo")->quantization.global);
  EXPECT_NEAR(report->relative_rms_error, 6.9e-3, 5e-5);
}

}  // namespace
}  // namespace tandem
