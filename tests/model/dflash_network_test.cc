// The networks of DFlash and DFlash 2 drafters against double precision, and what they promise of bits.
#include "model/dflash_network.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "golden/bounds.h"
#include "model/tiny_dflash.h"
#include "support/backends.h"

namespace tandem {
namespace {

// One sequence: its context and the block after it.
struct Sequence {
  std::vector<std::vector<float>> features;  // [context, features x d]
  std::vector<TokenId> block;
};

Sequence random_sequence(std::mt19937& rng, const TinyDrafter& d, int context) {
  Sequence s;
  std::normal_distribution<float> normal(0, 1);
  for (int i = 0; i < context; ++i) {
    auto& row = s.features.emplace_back(d.features.size() * size_t(d.sizes.d));
    for (float& x : row) x = normal(rng);
  }
  s.block.assign(size_t(d.block), TokenId(d.sizes.vocab - 1));
  s.block[0] = TokenId(rng() % unsigned(d.sizes.vocab));
  return s;
}

class DflashOnBackend : public testing::TestWithParam<BackendOptions> {
 protected:
  DflashOnBackend()
      : target_tensors_(write_tiny_target(target_folder_)), target_(target_folder_.path(), GetParam()) {}

  std::unique_ptr<DflashNetwork> load(const TempFolder& folder) {
    return value_or_throw(load_tiny_drafter(folder.path(), target_.decoder()));
  }

  void ingest(DflashNetwork& network, StatePool& pool, SequenceState& state,
              std::span<const std::vector<float>> features) {
    std::vector<float> flat;
    for (const auto& row : features) flat.insert(flat.end(), row.begin(), row.end());
    Backend& backend = target_.backend();
    const DeviceBuffer memory = value_or_throw(backend.allocate(flat.size() * sizeof(float), "features"));
    backend.copy_in(memory.data(), std::as_bytes(std::span(flat)));
    const int n = int(features.size());
    ok_or_throw(state.begin_prefill(n));
    const SeqStep seq = state.rows(0);
    network.ingest({.path = Path::prefill, .n_rows = n, .seqs = {&seq, 1}},
                   memory.view(DType::f32, n, int(features[0].size())), pool);
    state.end_prefill();
  }

  // Logits of all rows of the blocks, run in one step; contexts taken in pieces of at most `piece` rows.
  std::vector<std::vector<float>> run(DflashNetwork& network, const std::vector<Sequence>& sequences,
                                      int piece = 1000) {
    StatePool pool = value_or_throw(
        StatePool::create(target_.backend(), network.state_shape(),
                          {.max_sequences = int(sequences.size()), .max_positions = 1024, .tape_rows = 32}));
    std::vector<SequenceState> states;
    std::vector<SeqStep> seqs;
    std::vector<TokenId> ids;
    for (const Sequence& s : sequences) {
      states.push_back(value_or_throw(SequenceState::create(pool)));
      for (size_t done = 0; done < s.features.size();) {
        const size_t n = std::min(size_t(piece), s.features.size() - done);
        ingest(network, pool, states.back(), std::span(s.features).subspan(done, n));
        done += n;
      }
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      ok_or_throw(states[i].begin_verify(int(sequences[i].block.size())));
      seqs.push_back(states[i].rows(int(ids.size())));
      ids.insert(ids.end(), sequences[i].block.begin(), sequences[i].block.end());
    }
    network.forward_block({.n_rows = int(ids.size()), .seqs = seqs}, ids, pool);
    std::vector<std::vector<float>> logits;
    for (const SeqStep& seq : seqs) {
      std::vector<int32_t> rows(size_t(seq.n_rows), 0);
      std::iota(rows.begin(), rows.end(), seq.first_row);
      const std::span<const float> of_rows = network.logits(rows);
      logits.emplace_back(of_rows.begin(), of_rows.end());
    }
    return logits;
  }

  bool is_reference() const { return GetParam().name == "reference"; }

  TempFolder target_folder_;
  TinyTensors target_tensors_;
  ModelUnderTest target_;
};

// Largest |got - want| over largest |want|.
double relative_error(const std::vector<float>& got, const DflashOracle::Rows& want) {
  double error = 0, largest = 0;
  size_t i = 0;
  for (const auto& row : want) {
    for (const double x : row) {
      error = std::max(error, std::abs(got[i++] - x));
      largest = std::max(largest, std::abs(x));
    }
  }
  return error / largest;
}

std::vector<TinyDrafter> all_kinds() {
  std::vector<TinyDrafter> all;
  for (const bool second : {false, true}) {
    all.push_back({.second = second});                        // full: both ways
    all.push_back({.second = second, .windows = {5, 0, 5}});  // sliding layers are causal
    all.push_back({.second = second, .windows = {4, 4, 4}, .is_causal = false});
    all.push_back({.second = second, .windows = {0, 9, 0}, .is_causal = true});
    all.push_back({.second = second, .rotary_dims = 8, .prefix = "model."});
    all.push_back({.second = second, .block = 2, .encoder_names = true, .dtype = DType::bf16});
  }
  all.push_back({.taps = 3, .group = 1, .prefix = "model.", .encoder_names = true});
  all.push_back({.block = 16, .taps = 4, .group = 32, .dtype = DType::f16});
  return all;
}

// fp32 throughout on the reference: the roundings of about thirty operations. The bound of `cpu` is that of
// whole models.
TEST_P(DflashOnBackend, BlocksFollowTheDefinition) {
  std::mt19937 rng(1);
  for (const TinyDrafter& d : all_kinds()) {
    const TempFolder folder;
    const TinyTensors tensors = write_tiny_drafter(folder, d);
    const DflashOracle oracle(d, tensors, target_tensors_);
    const auto network = load(folder);
    const std::vector<Sequence> sequences = {random_sequence(rng, d, 11), random_sequence(rng, d, 70)};
    const auto logits = run(*network, sequences);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto want = oracle.logits(oracle.hidden(sequences[i].features, sequences[i].block));
      const double error = relative_error(logits[i], want);
      EXPECT_LE(error, is_reference() ? 1e-6 : golden_bound(GetParam().name, false))
          << tiny_drafter_config(d) << " sequence " << i;
    }
  }
}

// The cache takes context as it comes: pieces of any size, up to the same positions, the same bits.
TEST_P(DflashOnBackend, ContextInPiecesIsContextAtOnce) {
  std::mt19937 rng(3);
  const TinyDrafter d{.windows = {7, 0, 7}};
  const TempFolder folder;
  write_tiny_drafter(folder, d);
  const auto network = load(folder);
  const std::vector<Sequence> sequences = {random_sequence(rng, d, 90)};
  const auto whole = run(*network, sequences);
  for (const int piece : {1, 2, 6, 64}) EXPECT_EQ(run(*network, sequences, piece), whole) << piece;
}

TEST_P(DflashOnBackend, ASequenceInCompanyHasItsOwnBits) {
  std::mt19937 rng(4);
  for (const bool second : {false, true}) {
    const TinyDrafter d{.second = second, .block = 8, .windows = {0, 6, 0}, .taps = 3};
    const TempFolder folder;
    write_tiny_drafter(folder, d);
    const auto network = load(folder);
    std::vector<Sequence> sequences;
    for (const int context : {9, 1, 65}) sequences.push_back(random_sequence(rng, d, context));
    const auto together = run(*network, sequences);
    for (size_t i = 0; i < sequences.size(); ++i) {
      EXPECT_EQ(run(*network, {sequences[i]})[0], together[i]) << "sequence " << i << ", DFlash 2 " << second;
    }
  }
}

// Training starts from convolutions that change nothing: then DFlash 2 is the first DFlash, bit for bit.
TEST_P(DflashOnBackend, IdentityConvolutionsLeaveTheFirstDflash) {
  std::mt19937 rng(5);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TinyDrafter second{.block = 8, .windows = {0, 6, 0}, .dtype = dtype};
    TinyDrafter first = second;
    first.second = false;
    const TempFolder one, two;
    write_tiny_drafter(one, first);
    write_tiny_drafter(two, second, /*identity=*/true);
    const std::vector<Sequence> sequences = {random_sequence(rng, second, 33),
                                             random_sequence(rng, second, 70)};
    EXPECT_EQ(run(*load(two), sequences), run(*load(one), sequences)) << dtype_name(dtype);
  }
}

// What a drafter reads of its target: the outputs of zero-based layers, in the order asked for. A target that
// ends with a layer has that layer's output as its last residual.
TEST_P(DflashOnBackend, TapsAreTheOutputsOfTheirLayers) {
  const std::vector<int> layers = {2, 0, 3};
  std::vector<TokenId> ids;
  for (int i = 0; i < 50; ++i) ids.push_back(i * 7 % 64);
  ok_or_throw(target_.decoder().tap_layers(layers));
  const auto rows_of = [](View v) {
    std::vector<std::vector<float>> rows;
    for (int r = 0; r < v.rows; ++r) {
      const float* row = static_cast<const float*>(v.data) + r * v.stride;
      rows.emplace_back(row, row + v.cols);
    }
    return rows;
  };
  const auto run = [&](ModelUnderTest& model) {
    StatePool pool = model.make_pool(1, 64);
    SequenceState state = value_or_throw(SequenceState::create(pool));
    model.prefill(pool, state, ids);
  };
  run(target_);
  const auto features = rows_of(target_.decoder().features());
  ASSERT_EQ(features.size(), ids.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const TempFolder folder;
    target_tensors_.builder().write(folder, tiny_config({}, "Qwen3ForCausalLM", layers[i] + 1).dump());
    ModelUnderTest shorter(folder.path(), GetParam());
    run(shorter);
    const auto want = rows_of(shorter.decoder().residual());
    for (size_t r = 0; r < ids.size(); ++r) {
      const auto first = features[r].begin() + int64_t(i) * 32;
      ASSERT_EQ(std::vector<float>(first, first + 32), want[r]) << "layer " << layers[i] << ", row " << r;
    }
  }
}

std::string name_of(const testing::TestParamInfo<BackendOptions>& info) {
  return info.param.name == "cpu" ? "cpu_" + info.param.isa : info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Backends, DflashOnBackend, testing::ValuesIn(all_backends()), name_of);

// Had the definition another mask, other taps or groups, BlocksFollowTheDefinition would see it: the logits
// move by far more than its bound.
TEST(DflashOracle, MasksAndConvolutionsMatter) {
  const TempFolder folder;
  const TinyTensors target_tensors = write_tiny_target(folder);
  std::mt19937 rng(2);
  const TinyDrafter d{.windows = {5, 5, 5}, .is_causal = false};
  const TinyTensors tensors = tiny_drafter_tensors(d);
  const Sequence s = random_sequence(rng, d, 20);
  const auto logits_of = [&](const TinyDrafter& other) {
    const DflashOracle oracle(other, tensors, target_tensors);
    std::vector<float> flat;
    for (const auto& row : oracle.logits(oracle.hidden(s.features, s.block))) {
      flat.insert(flat.end(), row.begin(), row.end());
    }
    return flat;
  };
  const DflashOracle right(d, tensors, target_tensors);
  const auto want = right.logits(right.hidden(s.features, s.block));
  EXPECT_LT(relative_error(logits_of(d), want), 1e-6);
  for (const TinyDrafter& other : {TinyDrafter{.windows = {5, 5, 5}, .is_causal = true},
                                   TinyDrafter{.windows = {6, 5, 5}, .is_causal = false},
                                   TinyDrafter{.second = false, .windows = {5, 5, 5}, .is_causal = false}}) {
    EXPECT_GT(relative_error(logits_of(other), want), 0.01);
  }
}

// ---- what does not belong together, by name ----

class DflashFolder : public testing::Test {
 protected:
  DflashFolder() {
    write_tiny_target(target_folder_);
    target_.emplace(target_folder_.path(), BackendOptions{.name = "reference"});
  }
  std::string error_of(const TinyDrafter& d, const TinyTensors& tensors, const nlohmann::json& config) {
    const TempFolder folder;
    tensors.builder().write(folder, config.dump());
    const auto network = load_tiny_drafter(folder.path(), target_->decoder());
    // What loads has every tensor, and what lacks one does not load.
    const Status tensors_there = check_tiny_drafter(folder.path());
    if (network.ok()) {
      EXPECT_TRUE(tensors_there.ok()) << tensors_there.error().message;
    } else if (network.error().message.find("tensor") != std::string::npos) {
      EXPECT_EQ(tensors_there.ok() ? "" : tensors_there.error().message, network.error().message);
    }
    return network.ok() ? "no error, block of " + std::to_string(d.block) : network.error().message;
  }
  std::string error_of(const TinyDrafter& d) {
    return error_of(d, tiny_drafter_tensors(d), tiny_drafter_config(d));
  }
  static void expect_says(const std::string& error, const std::string& what) {
    EXPECT_NE(error.find(what), std::string::npos) << error;
  }

  TempFolder target_folder_;
  std::optional<ModelUnderTest> target_;
};

TEST_F(DflashFolder, ADrafterOfAnotherTargetIsRefused) {
  TinyDrafter d;
  d.sizes.vocab = 63;
  expect_says(error_of(d), "vocab_size: 63 in the drafter, 64 in the target");
  d = {};
  d.sizes.d = 64;
  expect_says(error_of(d), "hidden_size: 64 in the drafter, 32 in the target");
  d = {.features = {1, 4}};
  expect_says(error_of(d), "target_layer_ids: layer 4 is read");
  nlohmann::json config = tiny_drafter_config({});
  config["num_target_layers"] = 5;
  expect_says(error_of({}, tiny_drafter_tensors({}), config), "num_target_layers: 5 in the drafter, 4 in");
}

TEST_F(DflashFolder, ABlockLongerThanAStepIsRefused) {
  expect_says(error_of({.block = 33}),
              "block_size: a block of 33 rows, a step of this engine has at most 32");
  expect_says(error_of({.block = 32}), "no error");
}

TEST_F(DflashFolder, AMissingOrMisshapenTensorIsNamed) {
  const TinyDrafter first{.second = false};
  nlohmann::json config = tiny_drafter_config({});
  // The first DFlash's tensors under a configuration of the second.
  expect_says(error_of({}, tiny_drafter_tensors(first), config),
              "'layers.0.attention_conv.kernel_projection.weight' is missing");
  config["dflash_config"]["selector_rank"] = 6;
  expect_says(error_of({}, tiny_drafter_tensors({}), config),
              "candidate_selector.predecessor_codebook' has shape [64, 5], config.json asks for [64, 6]");
  config = tiny_drafter_config({});
  config["dflash_config"]["conv_kernel_size"] = 3;
  expect_says(error_of({}, tiny_drafter_tensors({}), config), "kernel_projection.weight' has shape [16, 32]");
  TinyTensors none(1, DType::f32);
  none.gain("norm.weight", 32);
  expect_says(error_of({}, none, tiny_drafter_config({})), "no tensor fc.weight");
}

}  // namespace
}  // namespace tandem
