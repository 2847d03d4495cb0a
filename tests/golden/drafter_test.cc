// The drafters' networks against independent implementations: the DFlash block and the MTP chain of
// spec.safetensors, on the bf16 original (hidden states of transformers, drafters in fp32).
#include <gtest/gtest.h>

#include <numeric>

#include "golden/golden_check.h"
#include "golden/golden_file.h"
#include "golden/model_under_test.h"
#include "model/dflash_network.h"
#include "model/mtp_head.h"

namespace tandem {
namespace {

constexpr double kBound = 1e-4;  // of the largest value: fp32 throughout on both sides

class DrafterGolden : public testing::Test {
 protected:
  DrafterGolden()
      : golden_(std::string(TANDEM_ORIGINAL_GOLDENS) + "/spec.safetensors"),
        model_(TANDEM_ORIGINAL_MODEL, {.name = "reference"}) {}

  MutView upload(DeviceBuffer& buffer, const std::vector<float>& values, int cols) {
    buffer = value_or_throw(model_.backend().allocate(values.size() * sizeof(float), "golden rows"));
    model_.backend().copy_in(buffer.data(), std::as_bytes(std::span(values)));
    return buffer.view(DType::f32, int(values.size()) / cols, cols);
  }
  static std::vector<float> floats(View v) {
    std::vector<float> out;
    for (int r = 0; r < v.rows; ++r) {
      const float* row = static_cast<const float*>(v.data) + r * v.stride;
      out.insert(out.end(), row, row + v.cols);
    }
    return out;
  }

  GoldenFile golden_;
  ModelUnderTest model_;
};

TEST_F(DrafterGolden, DflashBlockFollowsTheContext) {
  const std::string folder = std::string(TANDEM_MODELS) + "/tandem-demo-dflash";
  const DrafterConfig config = value_or_throw(load_drafter_config(folder));
  const Checkpoint checkpoint = value_or_throw(Checkpoint::open(folder));
  CheckpointSource source =
      value_or_throw(CheckpointSource::create_drafter(checkpoint, config.network, nullptr));
  auto network = value_or_throw(DflashNetwork::load(source, config, model_.decoder(), {.max_rows = 64}));
  for (const std::string p : {"dflash.p0", "dflash.p3"}) {
    const std::vector<int32_t> ids = golden_.ints(p + ".ids"), block = golden_.ints(p + ".block_ids");
    EXPECT_EQ(block[1], config.mask_id);
    StatePool pool =
        value_or_throw(StatePool::create(model_.backend(), network->state_shape(),
                                         {.max_sequences = 1, .max_positions = 64, .tape_rows = 32}));
    SequenceState state = value_or_throw(SequenceState::create(pool));
    DeviceBuffer memory;
    const MutView features = upload(memory, golden_.floats(p + ".context_features"), 3 * 384);
    ASSERT_EQ(features.rows, int(ids.size()));
    ok_or_throw(state.begin_prefill(features.rows));
    SeqStep seq = state.rows(0);
    network->ingest({.path = Path::prefill, .n_rows = features.rows, .seqs = {&seq, 1}}, features, pool);
    state.end_prefill();
    ok_or_throw(state.begin_verify(int(block.size())));
    seq = state.rows(0);
    network->forward_block({.n_rows = int(block.size()), .seqs = {&seq, 1}}, block, pool);
    std::vector<int32_t> rows(block.size());
    std::iota(rows.begin(), rows.end(), 0);
    const std::span<const float> logits = network->logits(rows);
    const GoldenError of_logits =
        compare(logits.subspan(size_t(model_.n_vocab())), golden_.floats(p + ".draft_logits"));
    EXPECT_LE(of_logits.relative(), kBound);
    EXPECT_LE(compare(floats(network->hidden()), golden_.floats(p + ".draft_hidden")).relative(), kBound);
  }
}

TEST_F(DrafterGolden, MtpChainFollowsTheTargetsStates) {
  const ModelConfig config = value_or_throw(load_model_config(TANDEM_ORIGINAL_MODEL));
  const Checkpoint checkpoint = value_or_throw(Checkpoint::open(TANDEM_ORIGINAL_MODEL));
  CheckpointSource source =
      value_or_throw(value_or_throw(CheckpointSource::create(checkpoint, config, nullptr)).mtp_head());
  auto head = value_or_throw(MtpHead::load(source, config, model_.decoder(), {.max_rows = 64}, {}));
  for (const std::string p : {"mtp.p0", "mtp.p3"}) {
    const std::vector<int32_t> ids = golden_.ints(p + ".ids");
    StatePool pool = value_or_throw(StatePool::create(
        model_.backend(), head->state_shape(), {.max_sequences = 1, .max_positions = 64, .tape_rows = 32}));
    SequenceState state = value_or_throw(SequenceState::create(pool));
    DeviceBuffer memory, chained;
    View hidden = upload(memory, golden_.floats(p + ".target_hidden"), 384);
    int rows = hidden.rows;
    ASSERT_EQ(rows + 1, int(ids.size()));
    const std::vector<float> want_hidden = golden_.floats(p + ".hidden"),
                             want_logits = golden_.floats(p + ".logits");
    std::vector<TokenId> tokens(ids.begin() + 1, ids.end());
    const auto v = size_t(model_.n_vocab());
    for (size_t i = 0; i < 3; ++i) {
      ok_or_throw(state.begin_verify(rows));
      const SeqStep seq = state.rows(0);
      head->forward({.n_rows = rows, .seqs = {&seq, 1}}, tokens, hidden, pool);
      state.commit(rows);
      const int32_t last = rows - 1, first = 0;
      const std::span<const float> logits = head->logits({&last, 1});
      EXPECT_LE(compare(logits, std::span(want_logits).subspan(i * v, v)).relative(), kBound)
          << p << " step " << i;
      DeviceBuffer next_memory;
      const MutView next_row = upload(next_memory, std::vector<float>(384), 384);
      head->chain_hidden({&last, 1}, {&first, 1}, next_row);
      const std::vector<float> next = floats(next_row);
      EXPECT_LE(compare(next, std::span(want_hidden).subspan(i * 384, 384)).relative(), kBound)
          << p << " step " << i;
      tokens = {argmax(logits)};
      hidden = upload(chained, next, 384);
      rows = 1;
    }
    // The cache of the reference backend: a page holds [positions, KV heads, d_head] of keys, then of values,
    // in fp32.
    const std::vector<float> want_k = golden_.floats(p + ".cache_k"), want_v = golden_.floats(p + ".cache_v");
    const KvLayer layer = pool.kv(0);
    const auto* page =
        reinterpret_cast<const float*>(layer.pages + size_t(state.pages()[0]) * layer.page_bytes);
    const int n = int(want_k.size()) / 2 / 64;
    std::vector<float> k, val;
    for (int h = 0; h < 2; ++h) {
      for (int t = 0; t < n; ++t) {
        k.insert(k.end(), page + (t * 2 + h) * 64, page + (t * 2 + h + 1) * 64);
        const float* values = page + kPageTokens * 2 * 64;
        val.insert(val.end(), values + (t * 2 + h) * 64, values + (t * 2 + h + 1) * 64);
      }
    }
    EXPECT_LE(compare(k, want_k).relative(), kBound);
    EXPECT_LE(compare(val, want_v).relative(), kBound);
  }
}

}  // namespace
}  // namespace tandem
